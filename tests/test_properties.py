"""Properties of every algorithm.  A new algorithm is one more row of ROWS."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.algorithms import REGISTRY
from fedadmm.core import trees
from fedadmm.core.contracts import Cohort, LocalProblem, LocalResult, Round
from fedadmm.run.engines.choice import SequentialEngine
from support import resumable
from support.federations import WEIGHTS, Chosen, Federation, federation, run, snapshots, stacked

D = 4


class Row(NamedTuple):
    """A method, and how many numbers each participant uploads and downloads."""

    algorithm: Any
    up: int
    down: int


ROWS = {
    "FedSGD": Row(fa.FedSGD(0.1), D, D),
    "FedAvg": Row(fa.FedAvg(), D, D),
    "FedProx": Row(fa.FedProx(0.7), D, D),
    "FedAvgM": Row(fa.FedAvgM(0.5), D, D),
    "FedAvgM nesterov": Row(fa.FedAvgM(0.5, nesterov=True), D, D),
    "FedAdagrad": Row(fa.FedAdagrad(), D, D),
    "FedAdam": Row(fa.FedAdam(), D, D),
    "FedYogi": Row(fa.FedYogi(), D, D),
    "FedExP": Row(fa.FedExP(), D + 1, D),
    "FedNova": Row(fa.FedNova(), D + 1, D),
    "FedCM": Row(fa.FedCM(0.4), D + 1, 2 * D),
    "FedMid": Row(fa.FedMid(), D + 1, D),
    "FedDualAvg": Row(fa.FedDualAvg(), D + 1, D + 1),
    "Scaffnew": Row(fa.Scaffnew(0.5), D + 1, D),
    "AdaBest": Row(fa.AdaBest(0.3, 0.5), D, D + 1),
    "FedAsync": Row(fa.FedAsync(), D + 1, D + 1),
    "FedAsync hinge": Row(fa.FedAsync("hinge", grace=0.0), D + 1, D + 1),
    "FedBuff": Row(fa.FedBuff(size=2), D + 1, D + 1),
    "SCAFFOLD 1": Row(fa.Scaffold(1, 0.8), 2 * D, 2 * D),
    "SCAFFOLD 2": Row(fa.Scaffold(2), 2 * D, 2 * D),
    "FedDyn": Row(fa.FedDyn(0.9), D, D),
    "FedDyn seen": Row(fa.FedDyn(0.9, members="seen"), D + 1, D),
    "pFedMe": Row(fa.PFedMe(1.1, 0.8), D, D),
    "FedPD": Row(fa.FedPD(0.9), D, D),
    "FedADMM": Row(fa.FedADMM(1.1), D, D + 1),
    "FedADMM gradient": Row(fa.FedADMM(1.1, dual="gradient"), D, D + 1),
    "FedPD gradient": Row(fa.FedPD(0.9, dual="gradient"), D, D),
    "FedADMM numeric": Row(fa.FedADMM(1.1, step=0.3), D, D + 1),
    "FedADMM released": Row(fa.algorithms.FedADMMReleased(1.1), D, D + 1),
    "FedADMM seen": Row(fa.FedADMM(1.1, members="seen"), D + 1, D + 1),
    "FedADMM of Wang, released": Row(fa.algorithms.FedADMMWangReleased(1.1), D + 1, D + 1),
    "FedADMM schedule": Row(fa.FedADMM(fa.schedules.Geometric(1.0, 1.05)), D + 1, D + 1),
    "FedADMM schedule printed": Row(
        fa.algorithms.FedADMMPrinted(fa.schedules.Geometric(1.0, 1.05)), D, D + 1
    ),
    "FedADMM schedule seen": Row(
        fa.FedADMM(fa.schedules.Geometric(1.0, 1.05), members="seen"), D + 2, D + 1
    ),
    "FedADMM-In": Row(fa.FedADMMIn(1.1), D + 1, D),
    "FedADMM-In released": Row(fa.algorithms.FedADMMInReleased(1.1), D + 1, D),
    "FedADMM-InSa": Row(fa.FedADMMInSa(1.1, mu=1.2), D + 1, D),
    "FedADMM-InSa seen": Row(fa.FedADMMInSa(1.1, members="seen", mu=1.2), D + 1, D),
    "FedADMM-InSa released": Row(fa.algorithms.FedADMMInSaReleased(1.1, mu=1.2), 2 * D + 2, D),
    "FedDR": Row(fa.FedDR(0.9, 1.5), D, D),
    "FedDR prox": Row(fa.FedDR(0.9, init="prox"), D, D),
    "FedDR-II": Row(fa.FedDRII(0.9), D, D),
    "FedSplit": Row(fa.FedSplit(0.9), D, D),
    "A-FedPD": Row(fa.AFedPD(1.1), D, 2 * D + 1),
    "A-FedPD seen": Row(fa.AFedPD(1.1, members="seen"), D + 1, 2 * D + 1),
    "aligned": Row(fa.AlignedADMM(1.1), D, 2 * D + 1),
    "consensus": Row(fa.ConsensusADMM(1.1), D, D),
    "aligned schedule seen": Row(
        fa.AlignedADMM(fa.schedules.Geometric(1.0, 1.05), sigma=0.3, members="seen"),
        D + 1,
        2 * D + 1,
    ),
    "asyncFedDR": Row(fa.AsyncFedDR(0.9, 1.5), D, D),
    "asyncFedDR prox": Row(fa.AsyncFedDR(0.9, init="prox"), D, D),
}
IN_ROUNDS = [name for name, row in ROWS.items() if not row.algorithm.requirements.asynchronous]
PARTIAL = [name for name in IN_ROUNDS if not ROWS[name].algorithm.requirements.full_participation]
ROUNDS = 8
DETERMINISTIC = {"solver": fa.GradientDescent(0.1), "stop": fa.Steps(3)}
"""Deterministic local work that every method accepts."""


def cohort(row: Row, size: int = 3) -> Any:
    return (
        fa.FullParticipation()
        if row.algorithm.requirements.full_participation
        else fa.UniformSampling(size)
    )


def least_squares_federation(seed: int = 5) -> Federation:
    """Least squares, so that mini-batches and their order matter."""
    given = federation(seed, weights=WEIGHTS)
    rng = torch.Generator().manual_seed(seed)
    clients = [
        fa.LeastSquares(
            torch.randn(12 + i, D, generator=rng, dtype=torch.float64),
            torch.randn(12 + i, generator=rng, dtype=torch.float64),
            0.1,
        )
        for i in range(given.clients)
    ]
    return given._replace(problem=fa.Problem(clients, weights=WEIGHTS))


def random_run(row: Row, given: Federation, seed: int, **options: Any) -> fa.Result:
    """Run with random cohorts, random batches and random amounts of local work."""
    settings = {
        "sampler": cohort(row),
        "solver": fa.SGD(0.1, batch_size=4, momentum=0.3),
        "stop": fa.UniformEpochs(3),
        "seed": seed,
    }
    return run(row.algorithm, given, ROUNDS, **(settings | options))


def test_every_algorithm_has_a_row():
    assert {type(row.algorithm) for row in ROWS.values()} == set(REGISTRY.values())


def test_titles_are_the_names_of_the_papers_and_a_subclass_has_its_own():
    for name, method in REGISTRY.items():
        letters = re.sub("[^a-z]", "", method.title.lower().replace("+", "plus"))
        assert letters == name.replace("-", ""), name
    assert REGISTRY["fedadmm-insa"].title == "FedADMM-InSa"
    assert type("Mine", (REGISTRY["scaffold"],), {}).title == "Mine"


def _untimed(record):
    """Return a record without measured seconds."""
    clock = {name: one for name, one in record["clock"].items() if not name.endswith("seconds")}
    return record | {"clock": clock}


@pytest.mark.parametrize("name", ROWS)
def test_the_same_seed_gives_the_same_run(name):
    given = least_squares_federation()
    torch.manual_seed(1)
    first = random_run(ROWS[name], given, 3)
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    second = random_run(ROWS[name], given, 3)
    assert all(torch.equal(a, b) for a, b in zip(first.trajectory, second.trajectory, strict=True))
    for a, b in zip(first.history, second.history, strict=True):
        assert _untimed(a) == _untimed(b)


@pytest.mark.parametrize("name", ROWS)
def test_another_seed_gives_another_run(name):
    """Cohorts differ for FedSGD, batches for methods with full participation."""
    given = least_squares_federation()
    first, second = random_run(ROWS[name], given, 3), random_run(ROWS[name], given, 4)
    assert not torch.equal(first.params, second.params)


@pytest.mark.parametrize("name", ROWS)
def test_no_global_generator_is_touched(name):
    given = least_squares_federation()
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    random_run(ROWS[name], given, 3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002


class _Reversed(SequentialEngine):
    """Run the same clients in reversed order."""

    def run_clients(self, ids, download, round_index):
        return super().run_clients(list(reversed(ids)), download, round_index)


@pytest.mark.parametrize("name", IN_ROUNDS)
def test_the_order_of_clients_within_a_round_does_not_matter(name):
    given = least_squares_federation()
    forwards, backwards = (
        random_run(ROWS[name], given, 3),
        random_run(ROWS[name], given, 3, engine=Chosen(_Reversed)),
    )
    np.testing.assert_allclose(
        stacked(forwards.trajectory), stacked(backwards.trajectory), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("name", IN_ROUNDS)
def test_the_names_of_clients_do_not_matter(name):
    """Clients, weights and cohorts are relabelled together."""
    row, given = ROWS[name], federation(6, weights=WEIGHTS)
    order = [3, 0, 4, 1, 2]  # the new client i is the old client order[i]
    relabelled = given._replace(
        problem=fa.Problem(
            [given.problem.clients[i] for i in order], weights=[WEIGHTS[i] for i in order]
        )
    )
    cohorts = [list(cohort(row).sample(1, t, 5)) for t in range(ROUNDS)] + [list(range(5))]
    renamed = [[order.index(i) for i in ids] for ids in cohorts]
    samplers = [fa.FullParticipation()] * 2
    if not row.algorithm.requirements.full_participation:
        samplers = [fa.TraceSampling(cohorts), fa.TraceSampling(renamed)]
    one = run(row.algorithm, given, ROUNDS, sampler=samplers[0], **DETERMINISTIC)
    two = run(row.algorithm, relabelled, ROUNDS, sampler=samplers[1], **DETERMINISTIC)
    np.testing.assert_allclose(stacked(one.trajectory), stacked(two.trajectory), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_those_of_the_numbers_in_the_messages(name, dtype):
    row, given = ROWS[name], federation(7)
    result = run(
        row.algorithm,
        given,
        ROUNDS,
        sampler=cohort(row),
        initial=given.initial.to(dtype),
        **DETERMINISTIC,
    )
    width = torch.finfo(dtype).bits // 8
    at_work = 0  # without rounds, a broadcast counts when it is sent
    if row.algorithm.requirements.initial_round is not None:
        assert (result.history[0]["round"], result.history[0]["cohort"]["participants"]) == (
            0,
            given.clients,
        )
    for record in result.history:
        messages = record["cohort"]["participants"]
        assert record["traffic"]["bytes_up"] == messages * row.up * width
        started = messages + record["clock"].get("in_flight", 0) - at_work
        assert record["traffic"]["bytes_down"] == started * row.down * width
        at_work = record["clock"].get("in_flight", 0)


def test_a_round_of_fedpd_without_communication_sends_nothing_up_and_the_next_nothing_down():
    given = federation(7)
    result = run(fa.FedPD(0.9, 0.5), given, 30)
    silent = [record["traffic"]["bytes_up"] == 0 for record in result.history]
    assert any(silent)
    assert not all(silent)
    for before, record in zip(silent, result.history[1:], strict=False):
        assert record["traffic"]["bytes_down"] == (0 if before else 5 * D * 8)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_initial_vector_fixes_the_precision(name, dtype):
    row, given = ROWS[name], federation(8, weights=WEIGHTS)
    options = {"sampler": cohort(row), "keep_trajectory": True, **DETERMINISTIC}
    result = run(row.algorithm, given, ROUNDS, initial=given.initial.to(dtype), **options)
    clients = [result.clients[i] for i in result.clients]
    leaves = [result.params, *result.trajectory, *trees.tensors((result.server, *clients))]
    assert {leaf.dtype for leaf in leaves if leaf.is_floating_point()} == {dtype}
    exact = run(row.algorithm, given, ROUNDS, **options)
    tolerance = 1e-4 if dtype == torch.float32 else 0.0
    np.testing.assert_allclose(result.params.double(), exact.params, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", ROWS)
def test_inputs_and_results_share_no_memory(name):
    row, given = ROWS[name], federation(9)
    options = {"sampler": cohort(row), **DETERMINISTIC}
    initial = given.initial
    first = run(row.algorithm, given, ROUNDS, initial=initial, **options)
    expected = trees.clone((first.params, *first.trajectory, first.server))
    states = {i: trees.clone(first.clients[i]) for i in first.clients}

    def poison(tree: object) -> None:
        for leaf in trees.tensors(tree):
            leaf.fill_(77)

    def unchanged(*, but: str) -> None:
        found = {
            "params": (first.params, expected[0]),
            "trajectory": (tuple(first.trajectory), expected[1:-1]),
            "server": (first.server, expected[-1]),
            "clients": (
                tuple(first.clients[i] for i in sorted(states)),
                tuple(states[i] for i in sorted(states)),
            ),
        }
        for part, (now, then) in found.items():
            if part not in but:
                for a, b in zip(trees.tensors(now), trees.tensors(then), strict=True):
                    assert torch.equal(a, b), part

    poison(initial)
    unchanged(but="")
    poison(first.params)
    unchanged(but="params")
    poison(first.trajectory[-1])
    poison(first.trajectory[0])
    unchanged(but="params trajectory")
    for i in first.clients:
        poison(first.clients[i])
    unchanged(but="params trajectory clients")
    poison(first.server)
    second = run(row.algorithm, given, ROUNDS, **options)
    assert torch.equal(second.params, expected[0])


@pytest.mark.parametrize("name", ROWS)
def test_the_initial_vector_and_reports_are_copied(name):
    """The caller's vector is overwritten after round 1, when some clients have yet to start from
    it, and the result is overwritten before the callbacks' reports are read."""
    row, given = ROWS[name], federation(9)
    options = {"sampler": cohort(row, 1), **DETERMINISTIC}
    expected = run(row.algorithm, given, ROUNDS, **options).params
    initial, reports = given.initial, []

    def observe(report: Any) -> None:
        initial.fill_(77)
        reports.append(report)

    result = run(row.algorithm, given, ROUNDS, initial=initial, callbacks=[observe], **options)
    assert torch.equal(result.params, expected)
    for leaf in trees.tensors((result.params, *result.trajectory, result.server)):
        leaf.fill_(77)
    assert torch.equal(row.algorithm.global_params(reports[-1].state.server), expected)


class _Overwriting(SequentialEngine):
    """Give every client its own copy of the broadcast, and overwrite it with NaN afterwards."""

    def run_clients(self, ids, download, round_index):
        for client in ids:
            copy = trees.clone(download)
            yield from super().run_clients([client], copy, round_index)
            for leaf in trees.tensors(copy):
                leaf.fill_(float("nan"))


@pytest.mark.parametrize("name", IN_ROUNDS)
def test_client_state_does_not_refer_to_the_broadcast(name):
    row, given = ROWS[name], federation(9)
    options = {"sampler": cohort(row), **DETERMINISTIC}
    plain = run(row.algorithm, given, ROUNDS, **options)
    overwritten = run(row.algorithm, given, ROUNDS, engine=Chosen(_Overwriting), **options)
    assert torch.equal(plain.params, overwritten.params)
    for i in plain.clients:
        pairs = zip(
            trees.tensors(plain.clients[i]), trees.tensors(overwritten.clients[i]), strict=True
        )
        assert all(torch.equal(a, b) for a, b in pairs)


def _result(start: torch.Tensor, seed: int) -> LocalResult:
    rng = torch.Generator().manual_seed(seed)
    vectors = [torch.randn(D, generator=rng, dtype=start.dtype) for _ in range(3)]
    return LocalResult(*vectors, torch.rand(1, generator=rng, dtype=start.dtype))


def _states(row: Row) -> tuple[Any, Any, list[Any]]:
    """Return server, broadcast and clients in the middle of a run; some clients are unseen."""
    given = federation(10)
    sampler = cohort(row)
    if not row.algorithm.requirements.full_participation:
        sampler = fa.TraceSampling([[0, 1], [1, 3], [3], [0, 1, 2, 3, 4]])
    last = snapshots(row.algorithm, given, 3, sampler=sampler, **DETERMINISTIC)[-1]
    return last.server, row.algorithm.broadcast(last.server, Round(1, 1)), last.clients


@pytest.mark.parametrize("name", ROWS)
def test_client_functions_on_a_stack_equal_those_of_one_client(name):
    """Each row of a result for (K, D) vectors and (K, 1) scalars is that for (D,) and (1,)."""
    row = ROWS[name]
    _, broadcast, clients = _states(row)
    results = [_result(client_start(row, broadcast, client), i) for i, client in enumerate(clients)]
    stack = _stack(clients)
    problem = row.algorithm.local_problem(broadcast, stack)
    state, message = row.algorithm.client_update(broadcast, stack, _stack(results))
    for i, client in enumerate(clients):
        single = row.algorithm.local_problem(broadcast, client)
        for field in LocalProblem._fields:
            _same_row(getattr(problem, field), getattr(single, field), i, len(clients))
        one, sent = row.algorithm.client_update(broadcast, client, results[i])
        for big, small in zip((*state, *message), (*one, *sent), strict=True):
            _same_row(big, small, i, len(clients))
    for leaf, like in zip(trees.tensors(state), trees.tensors(stack), strict=True):
        assert leaf.shape == like.shape  # so that the next round can be stacked, too


def client_start(row: Row, broadcast: Any, client: Any) -> torch.Tensor:
    return row.algorithm.local_problem(broadcast, client).start


def _stack(parts: list[Any]) -> Any:
    first = parts[0]
    leaves = [
        torch.stack(column) if column[0] is not None else None
        for column in zip(*parts, strict=True)
    ]
    return type(first)(*leaves)


def _same_row(stack: Any, single: Any, row: int, count: int) -> None:
    if not isinstance(single, torch.Tensor):
        assert stack is single or stack == single
        return
    if stack.ndim == single.ndim:  # the same for all clients: it broadcasts
        stack = stack.expand(count, *single.shape)
    assert stack.shape == (count, *single.shape)
    torch.testing.assert_close(stack[row], single, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ROWS)
def test_functions_do_not_modify_their_arguments(name):
    row = ROWS[name]
    server, broadcast, clients = _states(row)
    result = _result(row.algorithm.global_params(server), 0)
    inputs = (broadcast, clients[0], result, server)
    before = trees.clone(inputs)
    row.algorithm.local_problem(broadcast, clients[0])
    _, message = row.algorithm.client_update(broadcast, clients[0], result)
    kept = trees.clone(message)
    received = Cohort(1, 0.2, 5, 0)
    row.algorithm.server_update(server, message, received, fa.regularizers.Zero())
    for now, then in ((inputs, before), (message, kept)):
        pairs = zip(trees.tensors(now), trees.tensors(then), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", PARTIAL)
def test_an_empty_round_changes_nothing(name):
    row, given = ROWS[name], federation(11)
    trace = [[0, 2], [], [1, 3], [], [], [4]]
    with_gaps = run(row.algorithm, given, 6, sampler=fa.TraceSampling(trace), **DETERMINISTIC)
    first = int(row.algorithm.requirements.initial_round is not None)
    for t in (first + 1, first + 3, first + 4):
        assert torch.equal(with_gaps.trajectory[t], with_gaps.trajectory[t - 1])
        record = with_gaps.history[t]
        assert (
            record["cohort"]["participants"]
            == record["traffic"]["bytes_up"]
            == record["traffic"]["bytes_down"]
            == 0
        )
    if "schedule" in name:  # empty rounds count in a schedule
        return
    busy = fa.TraceSampling([ids for ids in trace if ids])
    without = run(row.algorithm, given, 3, sampler=busy, **DETERMINISTIC)
    assert torch.equal(with_gaps.params, without.params)


@pytest.mark.parametrize("name", PARTIAL)
def test_bernoulli_sampling_with_a_small_probability_leaves_rounds_empty(name):
    row, given = ROWS[name], federation(11)
    sampler = fa.BernoulliSampling(0.1)
    result = run(row.algorithm, given, 30, sampler=sampler, seed=2, **DETERMINISTIC)
    sizes = [record["cohort"]["participants"] for record in result.history]
    assert min(sizes) == 0
    assert max(sizes) > 0
    assert result.code == "completed"


@pytest.mark.parametrize(
    "name",
    [name for name in PARTIAL if ROWS[name].algorithm.requirements.initial_round is None],
)
def test_only_participants_of_a_million_clients_are_built(name):
    built = []

    def build(index: int) -> fa.Quadratic:
        built.append(index)
        scale = 1.0 + index % 7
        return fa.Quadratic(scale * torch.eye(3), torch.full((3,), float(index % 11)))

    problem = fa.Problem(fa.LazyClients(1_000_000, build))
    result = fa.simulate(
        ROWS[name].algorithm,
        problem,
        4,
        sampler=fa.UniformSampling(5),
        initial=torch.zeros(3),
        evaluate=False,
        **DETERMINISTIC,
    )
    assert result.code == "completed"
    assert len(built) < 60
    participants = {client for record in result.history for client in record["cohort"]["clients"]}
    assert len(participants) == 20
    assert set(result.clients) == participants


NOISE = [fa.Clip(0.05), fa.GaussianNoise(0.8)]
TOGETHER: dict[str, list[Any]] = {
    "algorithm": [
        ROWS[name].algorithm
        for name in (
            *("FedAvg", "FedDyn", "SCAFFOLD 2", "FedADMM", "aligned", "A-FedPD"),
            "FedDR prox",
        )
    ],
    "weights": [None, range(1, resumable.CLIENTS + 1)],
    "sampler": [
        *(None, fa.UniformSampling(3), fa.BernoulliSampling(0.4), fa.CyclicSampling(3)),
    ],
    "solver": [fa.SGD(0.1, batch_size=4, momentum=0.3), fa.DPSGD(0.1, 1.0, 0.8, batch_size=4)],
    "stop": [fa.Epochs(1), fa.UniformEpochs(3), fa.Steps(4)],
    "pipeline": [
        *([], [fa.Clip(0.05)], [fa.AdaptiveClip(0.05), fa.TopK(2)]),
        *([fa.RandomK(0.5), fa.Quantise(4)], [fa.AdaptiveClip(0.1), fa.BFloat16()], NOISE),
    ],
    "output": [
        *(
            fa.outputs.LastIterate(),
            fa.outputs.Averaged(),
            fa.outputs.ParticipantsMean(),
            fa.outputs.RandomIterate(),
        ),
        fa.outputs.TwoOutputs("averaged", "last-iterate"),
    ],
    "evaluate": [
        fa.Evaluation(),
        fa.Evaluation(every=2, clients=True, train=True),
        fa.Evaluation(target="local", clients=True),
    ],
    "end": [
        {},
        {"patience": 1},
        {"target": fa.Target("loss", 0.68, at_least=False)},
        {"target": fa.Target("primal_residual", 0.0, end_run=False), "patience": 2},
    ],
    "engine": ["sequential", "vectorised", fa.engines.VirtualTime(buffer=2, dropout=0.1)],
    "kind": ["memory", "disk"],
    "every": [0, 1, 2],
    "after": [1, 2, 3],
}
Case = dict[str, int]
"""Index of the chosen option, by key."""


def pairs(case: Case) -> set[tuple[Any, ...]]:
    """Return all pairs of options in a case."""
    return {(*one, *other) for one, other in itertools.combinations(case.items(), 2)}


def cases(count: int) -> list[Case]:
    """Return cases chosen greedily among random ones for the most new pairs of options."""
    rng, met, found = random.Random(0), set[tuple[Any, ...]](), list[Case]()
    for _ in range(count):
        some = [{k: rng.randrange(len(v)) for k, v in TOGETHER.items()} for _ in range(50)]
        found.append(max(some, key=lambda case: len(pairs(case) - met)))
        met |= pairs(found[-1])
    return found


CASES = cases(40)


def drawn(case: Case) -> dict[str, Any]:
    """Return the options, adjusted where noise or a method without stale updates needs it."""
    chosen: dict[str, Any] = {key: TOGETHER[key][place] for key, place in case.items()}
    if chosen["pipeline"] is NOISE:
        chosen |= {"sampler": fa.BernoulliSampling(0.4), "engine": "sequential"}
        chosen["solver"] = TOGETHER["solver"][0]
    if (
        isinstance(chosen["engine"], fa.engines.VirtualTime)
        and not chosen["algorithm"].requirements.stale_updates
    ):
        chosen["engine"] = replace(chosen["engine"], mode="sync")
    given = resumable.problem()
    weighted = fa.Problem(given.clients, weights=chosen.pop("weights"), initial=given.initial)
    return chosen | chosen.pop("end") | {"problem": weighted}


def test_the_cases_cover_nearly_all_pairs_of_options():
    sizes = itertools.combinations(map(len, TOGETHER.values()), 2)
    assert len(set().union(*map(pairs, CASES))) > 0.95 * sum(a * b for a, b in sizes)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_options_keep_their_guarantees_together(number: int, tmp_path: Path):
    """A resumed run is bit-identical, engines agree, and the best model is that of its round."""
    options = drawn(CASES[number])
    how = {key: options.pop(key) for key in ("kind", "every", "after")}
    whole = resumable.run(6, keep_trajectory=True, **options)
    json.dumps(whole.history, allow_nan=False)
    assert whole.best is not None
    rounds = [record["round"] for record in whole.history]
    index = rounds.index(whole.best.round)
    best, reported = whole.trajectory[index], whole.history[index]["metrics"]
    assert torch.equal(whole.best.model.params, best)
    if options["evaluate"].target == "global" and reported:
        assert float(options["problem"].value(best)) == pytest.approx(reported["loss"], rel=1e-12)
    if rounds[-1] > how["after"]:
        again = resumable.interrupted(tmp_path, rounds=6, **how, **options)()
        done = rounds[-1] - len(again.history)
        resumable.assert_continued(again, whole, done)
        assert again.best is not None
        assert again.best[:-1] == whole.best[:-1]
        assert torch.equal(again.best.model.params, best)
    if isinstance(options["engine"], str):
        stacked_run = resumable.run(6, **options | {"engine": "vectorised"})
        sequential = resumable.run(6, **options | {"engine": "sequential"})
        assert stacked_run.status == sequential.status
        torch.testing.assert_close(stacked_run.params, sequential.params, rtol=0, atol=1e-9)
