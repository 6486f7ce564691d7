"""Every postprocessor on its own, on a client and on the server, against closed forms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import fedadmm as fa
from fedadmm.core.contracts import Cohort, LocalResult, Round
from fedadmm.core.messages import Upload
from fedadmm.core.pipeline import UpdatePipeline
from fedadmm.core.pipeline.postprocessors import (
    Aggregate,
    AggregateContext,
    ClientContext,
    Coded,
    Encoded,
    ExpectedCohort,
    Postprocessor,
    Update,
)
from fedadmm.core.rng import KeyedGenerator
from support import reference
from support.federations import assert_same, federation, run
from support.rejections import naming

KEY = 5


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def update(**vectors: Tensor) -> Update:
    return Update({name: Encoded(Coded(values)) for name, values in vectors.items()})


def values(update: Update) -> dict[str, list[float]]:
    return {name: one.values.codes.tolist() for name, one in update.vectors.items()}


# Clipping -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "factor"), [(1.0, 0.2), (5.0, 1.0), (9.0, 1.0)])
def test_a_clip_scales_all_vectors_by_their_joint_norm(bound, factor):
    """Two vectors of norm 3 and 4 have the joint norm 5."""
    found = fa.Clip(bound).on_client(
        update(a=vector(3.0, 0.0), b=vector(0.0, -4.0)), ClientContext(KEY)
    )
    assert values(found)["a"] == pytest.approx([3.0 * factor, 0.0])
    assert values(found)["b"] == pytest.approx([0.0, -4.0 * factor])
    assert found.statistics is None


@pytest.mark.parametrize(("bound", "within"), [(4.9, -0.5), (5.0, 0.5), (6.0, 0.5)])
def test_an_adaptive_clip_uses_the_broadcast_bound_and_reports_whether_it_was_kept(bound, within):
    found = fa.AdaptiveClip(norm=100.0).on_client(
        update(a=vector(3.0, 4.0)), ClientContext(KEY, broadcast=bound)
    )
    length = math.hypot(*values(found)["a"])
    assert length == pytest.approx(min(5.0, bound))
    assert found.statistics.tolist() == [within]


def aggregate(total: Upload | None, replies: int = 4, weight: float = 0.8) -> Aggregate:
    return Aggregate(total, Cohort(replies, weight, 5, 3))


class Message(NamedTuple):
    """What FedAvg sends, with a second field that is no vector of the method."""

    delta: Tensor
    count: Tensor


def context(**changes: Any) -> AggregateContext:
    usual = AggregateContext(
        *(fa.FedAvg(), None, 0.25, 2.0, False, 1.0, KeyedGenerator(KEY)),
        lambda: Message(vector(0.0, 0.0), vector(0.0)),
    )
    return usual._replace(**changes)


def test_the_adaptive_bound_moves_by_the_share_of_clients_within_it():
    """Three of four clients of weight 0.2 were within: the share is 3/4."""
    stage = fa.AdaptiveClip(norm=2.0, quantile=0.5, lr=0.2)
    total = Upload(Message(vector(1.0), vector(1.0)), None, vector(0.2 * (3 * 0.5 - 0.5)))
    same, bound = stage.on_aggregate(aggregate(total), 2.0, context())
    assert same == aggregate(total)
    assert bound == pytest.approx(2.0 * math.exp(-0.2 * (0.75 - 0.5)))
    assert stage.init_state() == 2.0


@pytest.mark.parametrize("statistic", [-10.0, 10.0])
def test_a_noised_share_is_cut_to_the_unit_interval(statistic):
    total = Upload(Message(vector(1.0), vector(1.0)), None, vector(statistic))
    _, bound = fa.AdaptiveClip(1.0, 0.5, 0.2).on_aggregate(aggregate(total), 1.0, context())
    assert bound == pytest.approx(math.exp(0.1 if statistic < 0 else -0.1))


def test_a_round_without_updates_keeps_the_bound():
    stage, nothing = fa.AdaptiveClip(1.0), aggregate(None, 0, 0.0)
    assert stage.on_aggregate(nothing, 0.7, context()) == (nothing, 0.7)


# Compression --------------------------------------------------------------------------------------


def test_top_k_sends_the_entries_of_largest_magnitude():
    stage, whole = fa.TopK(2), vector(1.0, -5.0, 2.0, 4.0)
    sent = stage.on_client(update(a=whole), ClientContext(KEY)).vectors["a"]
    assert sent.values.codes.tolist() == [-5.0, 4.0]
    assert stage.decode(sent, whole).values.codes.tolist() == [0.0, -5.0, 0.0, 4.0]
    assert sent.where.tolist() == [0b1010]  # one bit for each of the four entries


def test_few_indices_are_sent_as_such():
    stage, whole = fa.TopK(2), torch.zeros(100, dtype=torch.float64)
    whole[[7, 42]] = 1.0
    sent = stage.on_client(update(a=whole), ClientContext(KEY)).vectors["a"]
    assert sent.where.dtype == torch.int32
    assert sent.where.tolist() == [7, 42]
    assert torch.equal(stage.decode(sent, whole).values.codes, whole)


@pytest.mark.parametrize("where", [[7, 7], [42, 7], [7], [7, 100], [-1, 7]])
def test_indices_that_no_client_sends_are_rejected(where):
    like = torch.zeros(100, dtype=torch.float64)
    sent = Encoded(Coded(torch.ones(len(where)).double()), torch.tensor(where, dtype=torch.int32))
    with pytest.raises(fa.errors.ParameterError, match=naming("TopK 2")):
        fa.TopK(2).decode(sent, like)


def test_random_k_sends_a_seed_from_which_the_server_draws_the_same_entries():
    stage, whole = fa.RandomK(3), torch.arange(1.0, 9.0).double()
    sent = stage.on_client(update(a=whole), ClientContext(KEY)).vectors["a"]
    assert sent.where.shape == (1,)
    decoded = stage.decode(sent, whole).values.codes
    assert sorted(decoded[decoded != 0].tolist()) == sorted(sent.values.codes.tolist())
    assert torch.equal(decoded[decoded != 0], whole[decoded != 0])
    other = stage.on_client(update(a=whole), ClientContext(KEY + 1)).vectors["a"]
    assert int(other.where) != int(sent.where)


def test_bfloat16_truncates_towards_zero():
    """Eight bits of precision: 1 + 2^-7 is kept, what is below it is cut off."""
    whole = vector(1 + 2**-7 + 2**-9, -(1 + 2**-7 + 2**-9), 0.0)
    stage = fa.BFloat16()
    sent = stage.on_client(update(a=whole), ClientContext(KEY)).vectors["a"]
    assert sent.values.codes.dtype == torch.bfloat16
    assert stage.decode(sent, whole).values.codes.tolist() == [1 + 2**-7, -(1 + 2**-7), 0.0]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_equidistant_levels_are_quantised_without_error(bits):
    """The levels of a block are -M + k 2M / (2^bits - 1); a vector of two levels is exact."""
    top = 2**bits - 1
    whole = 3.0 * (vector(0.0, float(top), 1.0, top - 1.0) * 2 / top - 1)
    stage = fa.Quantise(bits, block=4)
    sent = stage.on_client(update(a=whole), ClientContext(KEY)).vectors["a"]
    assert sent.values.codes.numel() == max(1, 4 * bits // 8)
    torch.testing.assert_close(stage.decode(sent, whole).values.codes, whole, rtol=0, atol=0.51)
    ends = 3.0 * vector(1.0, -1.0, -1.0, 1.0)
    sent = stage.on_client(update(a=ends), ClientContext(KEY)).vectors["a"]
    torch.testing.assert_close(stage.decode(sent, ends).values.codes, ends)


# Gaussian mechanism -------------------------------------------------------------------------------


def test_noise_has_the_scale_of_the_largest_influence_of_a_client():
    """Multiplier 3, clip 2, largest weight 1/4 and scale 1.5: a deviation of 2.25."""
    total = Upload(Message(vector(1.0, 2.0), vector(7.0)))
    cohort = ExpectedCohort(size=2.6, weight=0.4)
    found, state = fa.GaussianNoise(3.0).on_aggregate(
        aggregate(total), None, context(cohort=cohort, noise_scale=1.5)
    )
    drawn = KeyedGenerator(KEY).normal(vector(0.0, 0.0), "delta")
    torch.testing.assert_close(found.total.message.delta, vector(1.0, 2.0) + 2.25 * drawn)
    assert found.total.message.count.tolist() == [7.0]
    assert (found.cohort.size, found.cohort.weight) == (3, 0.4)
    assert state is None


def test_a_server_without_an_expected_cohort_adds_no_noise():
    given = aggregate(Upload(Message(vector(1.0), vector(1.0))))
    assert fa.GaussianNoise(3.0).on_aggregate(given, None, context()) == (given, None)


def test_a_round_without_participants_releases_noise_only():
    cohort = ExpectedCohort(0.3, 0.1)
    found, _ = fa.GaussianNoise(1.0).on_aggregate(
        aggregate(None, 0, 0.0), None, context(cohort=cohort)
    )
    drawn = KeyedGenerator(KEY).normal(vector(0.0, 0.0), "delta")
    torch.testing.assert_close(found.total.message.delta, 0.5 * drawn)
    assert found.cohort.size == 1


@pytest.mark.parametrize(("multiplier", "size"), [(1.0, 100.0), (3.0, 10.0)])
def test_vectors_and_count_together_are_as_private_as_the_multiplier(multiplier, size):
    """z_v^-2 + (2 sigma)^-2 = z^-2 with sigma the larger of a twentieth of the cohort and z."""
    stage, count = fa.GaussianNoise(multiplier), max(size / 20, multiplier)
    vectors = stage.vector_multiplier(count)
    assert vectors**-2 + (2 * count) ** -2 == pytest.approx(multiplier**-2)
    assert stage.vector_multiplier(0.0) == multiplier
    total = Upload(Message(vector(0.0, 0.0), vector(0.0)), None, vector(0.5))
    found, _ = stage.on_aggregate(
        aggregate(total), None, context(cohort=ExpectedCohort(size, 0.5), counted=True)
    )
    rng = KeyedGenerator(KEY)
    deviation = vectors * 0.25 * 2.0
    torch.testing.assert_close(
        found.total.message.delta, deviation * rng.normal(vector(0.0, 0.0), "delta")
    )
    torch.testing.assert_close(
        found.total.statistics, 0.5 + count * 0.25 * rng.normal(vector(0.5), "count")
    )


# The pipeline -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [fa.FedAvg(), fa.FedADMM(1.0)], ids=["delta", "increment"])
def test_a_residual_is_what_the_server_has_not(method):
    """An increment keeps what was clipped; of a delta a clip is meant to lose it."""
    (field,) = (*method.increments, *method.deltas)
    message = method.client_update(
        method.broadcast(method.init_server(torch.zeros(2).double()), Round(0, KEY)),
        method.init_client(torch.zeros(2).double()),
        LocalResult(vector(0.0, 0.0)),
    )[1]._replace(**{field: vector(6.0, 8.0)})
    pipeline = UpdatePipeline.of([fa.Clip(5.0), fa.TopK(1)])
    first = pipeline.on_client(method, message, None, KEY)
    assert getattr(first.message, field).tolist() == [0.0, 4.0]
    lost = [6.0, 4.0] if method.increments else [3.0, 0.0]
    assert first.residual[field].tolist() == pytest.approx(lost)
    zero = message._replace(**{field: vector(0.0, 0.0)})
    second = pipeline.on_client(method, zero, first.residual, KEY)
    scale = min(1.0, 5.0 / math.hypot(*lost))
    assert getattr(second.message, field).tolist() == pytest.approx([scale * lost[0], 0.0])


def test_without_postprocessors_nothing_changes():
    message = Message(vector(1.0, 2.0), vector(3.0))
    found = UpdatePipeline().on_client(fa.FedAvg(), message, None, KEY)
    assert torch.equal(found.message.delta, message.delta)
    assert found.residual == {}
    given = aggregate(Upload(message))
    assert UpdatePipeline().on_aggregate(given, {}, context()) == (given, {})
    assert UpdatePipeline().broadcast({}) is None
    assert UpdatePipeline().clip_norm({}) == math.inf


@pytest.mark.parametrize(
    "stages",
    [
        [fa.TopK(1), fa.Clip(1.0)],
        [fa.TopK(1), fa.RandomK(1)],
        [fa.GaussianNoise(1.0), fa.BFloat16()],
    ],
)
def test_postprocessors_have_an_order(stages):
    with pytest.raises(fa.errors.ParameterError, match=naming(f"pipeline {stages[0].name}")):
        UpdatePipeline.of(stages)


@dataclass(frozen=True)
class Diminishing(Postprocessor):
    """Sends halves, which decoding doubles, and divides the sum of round k by k."""

    place: ClassVar[str] = "code"
    name = "diminishing"

    def init_state(self) -> float:
        return 1.0

    def on_client(self, update: Update, context: ClientContext) -> Update:
        halves = {n: Encoded(Coded(v.values.codes / 2)) for n, v in update.vectors.items()}
        return Update(halves, vector(float(context.broadcast)))

    def decode(self, vector: Encoded, like: Tensor) -> Encoded:
        return Encoded(Coded(2 * vector.values.codes))

    def on_aggregate(self, aggregate: Aggregate, state: float | None, context: Any) -> Any:
        total = aggregate.total
        reported = float(total.statistics) / aggregate.cohort.weight
        assert reported == pytest.approx(state)  # every client reports what it was sent
        message = total.message._replace(delta=total.message.delta / state)
        return Aggregate(total._replace(message=message), aggregate.cohort), state + 1


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_postprocessor_of_ones_own_has_two_sides_and_a_state(engine, tmp_path):
    """FedAvg whose server step in round k is 1/k, also after a restart."""
    given, counts = federation(21), []

    def look(report: Any) -> None:
        counts.append(report.state.components["pipeline"]["diminishing"])

    options: dict[str, Any] = {"pipeline": [Diminishing()], "engine": engine, "callbacks": [look]}
    options |= {"solver": fa.GradientDescent(0.1), "stop": fa.Steps(2)}
    points = fa.Checkpoints(tmp_path, every=1)
    first = run(fa.FedAvg(), given, 3, checkpoints=points, **options)
    points = fa.Checkpoints(tmp_path, every=1)
    rest = run(fa.FedAvg(), given, 6, checkpoints=points, resume=True, **options)
    theta, wanted = given.start, []
    solve = reference.gradient_steps(given, 2, 0.1)
    for k in range(1, 7):
        models = [solve(i, theta, 0 * theta, 0.0, theta) for i in range(given.clients)]
        theta = theta + (given.a @ np.array(models) - theta) / k
        wanted.append(theta)
    assert_same([*first.trajectory, *rest.trajectory], np.array(wanted))
    assert counts == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def test_server_sides_run_in_the_reverse_order():
    """The noise is added before the adaptive clip reads the noised count."""
    pipeline = UpdatePipeline.of([fa.AdaptiveClip(1.0, 0.5, 0.2), fa.GaussianNoise(1.0)])
    states = pipeline.init_state()
    assert states == {"adaptive-clip": 1.0}
    assert pipeline.broadcast(states).tolist() == [1.0]
    total = Upload(Message(vector(0.0, 0.0), vector(0.0)), None, vector(0.0))
    given = context(cohort=ExpectedCohort(4.0, 0.8), counted=True)
    _, following = pipeline.on_aggregate(aggregate(total), states, given)
    noised = 1.0 * 0.25 * float(KeyedGenerator(KEY).normal(vector(0.0), "count"))
    share = min(1.0, max(0.0, noised / 0.8 + 0.5))
    assert following["adaptive-clip"] == pytest.approx(math.exp(-0.2 * (share - 0.5)))
    assert states == {"adaptive-clip": 1.0}
