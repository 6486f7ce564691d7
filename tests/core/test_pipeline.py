"""The pipeline between a client's update and the sum: what the server has is what was sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fedadmm as fa
from fedadmm.core.pipeline import UpdatePipeline
from fedadmm.core.pipeline.postprocessors import vectors_of
from support.federations import WEIGHTS, distance, federation, run
from support.rejections import naming
from support.thinning import thinned
from test_properties import DETERMINISTIC, ROWS, cohort, least_squares_federation

COMPRESSED = {
    "top-k": [fa.TopK(0.5)],
    "random-k": [fa.RandomK(2)],
    "2 bits": [fa.Quantise(2, block=3)],
    "8 bits": [fa.Quantise(8)],
    "bfloat16": [fa.BFloat16()],
    "top-k, 4 bits": [fa.TopK(3), fa.Quantise(4)],
    "random-k, bfloat16": [fa.RandomK(0.5), fa.BFloat16()],
}
CLIPPED = {
    "clip": [fa.Clip(0.05)],
    "adaptive clip": [fa.AdaptiveClip(0.05, 0.7)],
    "clip, top-k, 2 bits": [fa.Clip(0.05), fa.TopK(2), fa.Quantise(2)],
}
STAGES: dict[str, list[Any]] = COMPRESSED | CLIPPED
WHOLE = {
    *("Scaffnew", "FedPD", "FedPD gradient", "FedAsync", "FedAsync hinge"),
    *("FedADMM seen", "FedADMM of Wang, released", "FedADMM schedule", "FedADMM schedule seen"),
    *("FedADMM-InSa", "FedADMM-InSa seen", "FedADMM-InSa released"),
}
"""Methods that send something which must not be cut."""
ROUNDS = 12


class Spy:
    """Every message as it was made and as it was sent, and every sum, of one run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, algorithm: Any) -> None:
        self.made: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self.totals: list[dict[str, Any]] = []
        on_client, kind = UpdatePipeline.on_client, type(algorithm)
        update = kind.server_update

        def spied_client(pipeline: UpdatePipeline, method: Any, message: Any, *rest: Any) -> Any:
            sent = on_client(pipeline, method, message, *rest)
            self.made.append(vectors_of(method, message))
            self.sent.append(vectors_of(method, sent.message))
            template = sent.encoded._replace(**vectors_of(method, message))
            decoded = pipeline.decode_message(sent.encoded, template)
            for name, vector in self.sent[-1].items():
                assert torch.equal(vectors_of(method, decoded)[name], vector)
            return sent

        def spied_update(method: Any, server: Any, total: Any, *rest: Any) -> Any:
            self.totals.append(
                {name: vector.clone() for name, vector in vectors_of(method, total).items()}
            )
            return update(method, server, total, *rest)

        monkeypatch.setattr(UpdatePipeline, "on_client", spied_client)
        monkeypatch.setattr(kind, "server_update", spied_update)


def options(row: Any, stages: list[Any]) -> dict[str, Any]:
    return {"sampler": cohort(row), "pipeline": stages, "seed": 3, **DETERMINISTIC}


@pytest.mark.parametrize(
    ("name", "stages"), thinned(3, [name for name in ROWS if name not in WHOLE], STAGES)
)
def test_the_server_has_what_was_sent_and_the_client_the_rest(name, stages, monkeypatch):
    row, given = ROWS[name], least_squares_federation()
    spy, store = Spy(monkeypatch, row.algorithm), fa.MemoryStore()
    result = run(row.algorithm, given, ROUNDS, store=store, **options(row, STAGES[stages]))
    cohorts = [found for record in result.history if (found := record["cohort"]["clients"])]
    a = given.problem.weight
    replies = [client for clients in cohorts for client in clients]
    assert len(replies) == len(spy.sent)
    if not row.algorithm.requirements.asynchronous:  # there a message counts by its age
        position = 0
        for clients, total in zip(cohorts, spy.totals, strict=True):
            for field, vector in total.items():
                sent = spy.sent[position : position + len(clients)]
                expected = sum(a(i) * s[field] for i, s in zip(clients, sent, strict=True))
                torch.testing.assert_close(vector, expected, rtol=0, atol=1e-10)
            position += len(clients)
    if not row.algorithm.requirements.asynchronous:
        keeps_all = (*row.algorithm.increments, *row.algorithm.deltas)
        if stages in CLIPPED:  # of a fresh move a clip is meant to lose what lies outside
            keeps_all = row.algorithm.increments
        carried = UpdatePipeline.of(STAGES[stages]).residual_fields(row.algorithm)
        for client in set(replies):
            record = store.get(client)
            assert record is not None
            rest = dict(zip(carried, record.error_feedback or (), strict=True))
            mine = [k for k, replied in enumerate(replies) if replied == client]
            for field in keeps_all:
                made = sum(spy.made[k][field] for k in mine)
                sent = sum(spy.sent[k][field] for k in mine)
                torch.testing.assert_close(sent + rest[field], made, rtol=0, atol=1e-10)


@pytest.mark.parametrize("stages", ["clip", "clip, top-k, 2 bits"])
@pytest.mark.parametrize("name", ["FedAvg", "SCAFFOLD 2", "FedADMM", "aligned"])
def test_nothing_that_is_sent_is_longer_than_the_clip(name, stages, monkeypatch):
    row = ROWS[name]
    spy = Spy(monkeypatch, row.algorithm)
    run(row.algorithm, least_squares_federation(), ROUNDS, **options(row, STAGES[stages]))
    norms = [float(torch.cat(list(sent.values())).norm()) for sent in spy.sent]
    assert max(norms) <= 0.05 * (1 + 1e-12)
    assert max(norms) > 0.03


TRACKED = {
    "FedADMM": (lambda s: s.mean, lambda c: c.w + c.y / 1.1, 1.0),
    "FedDR": (lambda s: s.xtilde, lambda c: 2 * c.x - c.v, 1.0),
    "FedDyn": (lambda s: s.h, lambda c: c.y, 1 / 0.9),
    "SCAFFOLD 2": (lambda s: s.c, lambda c: c.c_i, 1.0),
}
"""Where a method tracks the mean of what, and how a rest counts in it."""


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("name", TRACKED)
def test_the_tracked_mean_is_the_mean_of_what_was_sent(name, stages):
    row, given, store = ROWS[name], least_squares_federation(), fa.MemoryStore()
    chosen = options(row, STAGES[stages])
    result = run(row.algorithm, given, ROUNDS, store=store, **chosen)
    mean, own, scale = TRACKED[name]
    total = torch.zeros(4, dtype=torch.float64)
    for client in range(given.clients):
        record = store.get(client)
        state = row.algorithm.init_client(given.initial) if record is None else record.state
        rest = record.error_feedback[0] if record is not None and record.error_feedback else 0.0
        total += given.problem.weight(client) * (own(state) - scale * rest)
    torch.testing.assert_close(mean(result.server), total, rtol=0, atol=1e-10)


@pytest.mark.parametrize("stages", ["clip", "top-k, 4 bits"])
@pytest.mark.parametrize("name", ["FedADMM", "FedDR"])
def test_diagnostics_know_that_a_rest_is_not_lost(name, stages):
    row, look = ROWS[name], fa.Diagnostics(1)
    chosen = options(row, STAGES[stages])
    result = run(row.algorithm, least_squares_federation(), ROUNDS, callbacks=[look], **chosen)
    assert max(record["callbacks"]["mean_drift"] for record in result.history) < 1e-10


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_message_that_must_not_be_cut_is_rejected(name):
    row = ROWS[name]
    with pytest.raises(
        fa.errors.CompatibilityError, match=naming(f"algorithm {type(row.algorithm).__name__} TopK")
    ):
        run(row.algorithm, least_squares_federation(), 2, **options(row, [fa.TopK(1)]))


@pytest.mark.parametrize("stages", ["8 bits", "top-k", "bfloat16", "random-k", "2 bits"])
@pytest.mark.parametrize("method", [fa.FedADMM(1.1), fa.FedDR(0.9)], ids=["fedadmm", "feddr"])
def test_a_compressed_method_still_reaches_the_optimum(method, stages):
    given = federation(2, weights=WEIGHTS)
    aim = torch.from_numpy(given.optimum)
    assert distance(method, given, aim, 1500, pipeline=STAGES[stages]) < 1e-6


@pytest.mark.parametrize(
    "engine", [fa.engines.Vectorised(2), fa.engines.Workers(2), fa.engines.VirtualTime(mode="sync")]
)
@pytest.mark.parametrize("name", ["FedAvg", "SCAFFOLD 2", "aligned"])
def test_every_engine_sends_the_same(name, engine):
    row = ROWS[name]
    stages = [fa.AdaptiveClip(0.1), fa.TopK(3), fa.Quantise(4), fa.GaussianNoise(0.5, 0.1)]
    chosen = options(row, stages)
    one = run(row.algorithm, least_squares_federation(), ROUNDS, engine="sequential", **chosen)
    other = run(row.algorithm, least_squares_federation(), ROUNDS, engine=engine, **chosen)
    torch.testing.assert_close(one.params, other.params, rtol=0, atol=1e-10)
    assert [r["traffic"]["bytes_up"] for r in one.history] == [
        r["traffic"]["bytes_up"] for r in other.history
    ]


@pytest.mark.parametrize("store", ["memory", "disk"])
@pytest.mark.parametrize("name", ["FedAvg", "SCAFFOLD 2", "aligned"])
def test_a_resumed_run_is_the_same_to_the_last_bit(name, store, tmp_path):
    row = ROWS[name]
    stages = [fa.AdaptiveClip(0.1), fa.TopK(3), fa.Quantise(2), fa.GaussianNoise(0.5, 0.1)]
    chosen = options(row, stages)

    def kept() -> Any:
        return fa.MemoryStore() if store == "memory" else fa.DiskStore(tmp_path / "clients")

    whole = run(row.algorithm, least_squares_federation(), ROUNDS, **chosen)
    points = fa.Checkpoints(tmp_path / "points", every=1)
    run(row.algorithm, least_squares_federation(), 5, checkpoints=points, store=kept(), **chosen)
    points = fa.Checkpoints(tmp_path / "points", every=1)
    rest = run(
        row.algorithm,
        least_squares_federation(),
        ROUNDS,
        checkpoints=points,
        store=kept(),
        resume=True,
        **chosen,
    )
    assert torch.equal(whole.params, rest.params)
    assert [r["privacy"] for r in whole.history[5:]] == [r["privacy"] for r in rest.history]


D = 1000
BYTES = {
    "nothing": ([], 4 * D),
    "clip": ([fa.Clip(1.0)], 4 * D),
    "ten indices": ([fa.TopK(10)], 10 * (4 + 4)),
    "a bit for each": ([fa.TopK(0.1)], D // 8 + 100 * 4),
    "key": ([fa.RandomK(10)], 8 + 10 * 4),
    "8 bits": ([fa.Quantise(8, block=100)], D + 10 * 4),
    "2 bits": ([fa.Quantise(2, block=1000)], D // 4 + 4),
    "bfloat16": ([fa.BFloat16()], 2 * D),
    "both": ([fa.TopK(10), fa.Quantise(4)], 10 * 4 + 5 + 4),
}


@pytest.mark.parametrize("case", BYTES)
def test_bytes_are_those_of_the_encoding(case):
    stages, each = BYTES[case]
    clients = [fa.Quadratic(torch.eye(D), torch.randn(D)) for _ in range(2)]
    result = fa.simulate(
        fa.FedAvg(),
        fa.Problem(clients),
        2,
        initial=torch.zeros(D),
        solver=fa.GradientDescent(0.1),
        pipeline=stages,
    )
    assert [record["traffic"]["bytes_up"] for record in result.history] == [2 * each, 2 * each]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rounding_is_within_a_level_and_never_longer(bits):
    stage = fa.Quantise(bits, block=64)
    draws = torch.Generator().manual_seed(bits)
    for scale in (1e-20, 1.0, 1e6):
        x = scale * torch.randn(1000, generator=draws, dtype=torch.float64) ** 3
        y = stage.decode_values(stage.encode_values(x, bits), x)
        assert y.norm() <= x.norm() * (1 + 1e-12)
        assert (x - y).norm() <= x.norm()
        padded = torch.nn.functional.pad(x, (0, 24)).reshape(-1, 64)
        level = 2 * padded.abs().amax(1, keepdim=True) / (2**bits - 1)
        near = torch.nn.functional.pad(y, (0, 24)).reshape(-1, 64)
        if bits == 8:
            assert ((padded - near).abs() <= 1.1 * level).all()
    zero = torch.zeros(70, dtype=torch.float64)
    assert torch.equal(stage.decode_values(stage.encode_values(zero, 1), zero), zero)


def test_an_adaptive_bound_finds_the_quantile():
    clients = [fa.Quadratic(torch.eye(4), k * torch.ones(4)) for k in range(1, 11)]
    problem = fa.Problem([c.to(torch.float64) for c in clients])
    bounds: list[dict[str, float]] = []
    result = fa.simulate(
        fa.FedSGD(1e-9),
        problem,
        200,
        initial=torch.zeros(4, dtype=torch.float64),
        pipeline=[fa.AdaptiveClip(0.1, 0.55, 0.3)],
        callbacks=[lambda report: bounds.append(report.state.components["pipeline"])],
    )
    assert result.code == "completed"
    # Gradients have norm 2k, k = 1 ... 10: between the fifth and the sixth lies the quantile.
    assert 10 <= bounds[-1]["adaptive-clip"] <= 12.5


WRONG = {
    "order": ([fa.Quantise(8), fa.TopK(2)], "pipeline quantise top-k"),
    "twice": ([fa.TopK(2), fa.RandomK(2)], "pipeline top-k random-k"),
    "nothing": ([fa.TopK(0.1)], "TopK keep 0.1 4"),
    "too many": ([fa.RandomK(5)], "RandomK keep 5 4"),
    "no clip": ([fa.GaussianNoise(1.0)], "pipeline GaussianNoise Clip"),
    "delta": ([fa.Clip(1.0), fa.GaussianNoise(1.0, 0.2)], "delta 0.2"),
    "budget": ([fa.Clip(1.0), fa.GaussianNoise(0.1, budget=0.5)], "budget 0.5"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_stages_are_rejected_before_the_first_round(case):
    stages, names = WRONG[case]
    with pytest.raises(fa.FedADMMError, match=naming(names)):
        run(
            fa.FedAvg(),
            least_squares_federation(),
            2,
            pipeline=stages,
            solver=fa.GradientDescent(0.1),
        )


NOISY = [fa.Clip(1.0), fa.GaussianNoise(1.0)]


def test_noise_with_vectors_that_it_does_not_cover_is_rejected():
    given = least_squares_federation()
    work: dict[str, Any] = {"solver": fa.GradientDescent(0.1), "pipeline": NOISY}
    with pytest.raises(
        fa.errors.CompatibilityError, match=naming("algorithm FedNova GaussianNoise")
    ):
        run(fa.FedNova(), given, 2, **work)
    with pytest.raises(fa.errors.CompatibilityError, match=naming("engine GaussianNoise")):
        run(fa.AsyncFedDR(0.9), given, 2, **work)
    falling = fa.BernoulliSampling(fa.schedules.Geometric(0.9, 0.9, 0.1))
    with pytest.raises(
        fa.errors.CompatibilityError, match=naming("sampler BernoulliSampling GaussianNoise")
    ):
        run(fa.FedAvg(), given, 2, sampler=falling, **work)
