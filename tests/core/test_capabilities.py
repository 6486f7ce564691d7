"""The contract of every capability mix-in, for every method that has it.

The expected values come from the local solutions of the clients, in closed form, and from nothing
that the method keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.core.capabilities import (
    AbsentClientAlignment,
    ClientRemoval,
    InitialDuals,
    LocalModels,
    ParticipantsMeanModel,
    PrimalDualStates,
    ProximalServer,
    StalenessWeighting,
    TrackedMean,
    fit_penalties,
    local_model,
    prox_step,
)
from fedadmm.core.compatibility import default_requirements
from fedadmm.core.contracts import LocalNeeds, LocalResult, Requirements
from fedadmm.run.engines import VirtualTime
from support.federations import WEIGHTS, Federation, assert_same, federation, run, snapshots
from support.minimal import Accepting, Move, expected, run as minimal_run
from test_properties import DETERMINISTIC, ROWS, cohort

ROUNDS = 8
SYNCHRONOUS = {
    name: row for name, row in ROWS.items() if not row.algorithm.requirements.asynchronous
}


def having(capability: type) -> list[str]:
    return [name for name, row in SYNCHRONOUS.items() if isinstance(row.algorithm, capability)]


def options(name: str) -> dict[str, Any]:
    """Return partial participation, and exact solves unless the method needs plain steps."""
    needs = ROWS[name].algorithm.requirements
    plain = needs.local.mean_gradient or needs.local.step_sum
    work = DETERMINISTIC if plain or not needs.local.local_solve else {"solver": fa.ExactSolver()}
    return {"sampler": cohort(ROWS[name]), "seed": 3, **work}


class Solutions:
    """The local solutions of a run, round by round, in the order in which the clients ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: Any) -> None:
        self.found: list[Tensor] = []
        update = type(method).client_update

        def spied(method: Any, cast: Any, client: Any, result: LocalResult) -> Any:
            self.found.append(result.params.clone())
            return update(method, cast, client, result)

        monkeypatch.setattr(type(method), "client_update", spied)

    def of_last_round(self, participants: int) -> list[Tensor]:
        return self.found[-participants:]


@pytest.mark.parametrize("name", having(LocalModels))
def test_a_local_model_is_the_last_local_solution(name, monkeypatch):
    method, given = ROWS[name].algorithm, federation(11, weights=WEIGHTS)
    solutions = Solutions(monkeypatch, method)
    last = snapshots(method, given, ROUNDS, **options(name))[-1]
    clients = last.record["cohort"]["clients"]
    assert clients
    for client, solution in zip(clients, solutions.of_last_round(len(clients)), strict=True):
        torch.testing.assert_close(method.local_params(last.clients[client]), solution)
        assert torch.equal(
            local_model(method, last.clients[client]), method.local_params(last.clients[client])
        )


def test_a_method_without_local_models_has_none():
    assert local_model(fa.FedAvg(), fa.FedAvg().init_client(torch.zeros(2))) is None


@pytest.mark.parametrize("name", having(PrimalDualStates))
def test_after_an_exact_solve_the_dual_vector_is_minus_the_gradient(name):
    method, given = ROWS[name].algorithm, federation(12, weights=WEIGHTS)
    last = snapshots(method, given, ROUNDS, **options(name))[-1]
    for client in last.seen:
        found = method.primal_dual(last.clients[client])
        assert_same(found.y.numpy(), -given.gradient(client, found.w.numpy()))
        assert_same(found.w.numpy(), method.local_params(last.clients[client]).numpy())
        assert float(torch.as_tensor(found.penalty)) > 0


def mean_of_augmented_models(method: Any, given: Federation, states: list[Any]) -> np.ndarray:
    found = [method.primal_dual(state) for state in states]
    return sum(a * (one.w + one.y / one.penalty) for a, one in zip(given.a, found, strict=True))


DRIFTING = ("numeric", "released", "printed")
"""Variants whose server does not move by the increments of the clients' means."""


@pytest.mark.parametrize("name", having(TrackedMean))
def test_a_tracked_mean_is_the_mean_over_all_clients(name):
    """Absent clients count with the state that they keep."""
    method, given = ROWS[name].algorithm, federation(13, weights=WEIGHTS)
    distances = []
    for one in snapshots(method, given, ROUNDS, **options(name)):
        mean = method.tracked_mean(one.server)
        if mean is None:  # its options weight clients by their penalties or by membership
            assert method.numeric_step(0) is None
            continue
        wanted = mean_of_augmented_models(method, given, one.clients)
        distances.append(float((mean - wanted).norm()))
    if distances and any(word in name for word in DRIFTING):
        assert max(distances) > 1e-3
    else:
        assert max(distances, default=0.0) < 1e-10


@pytest.mark.parametrize(("step", "numeric"), [("tracking", None), (0.3, 0.3)])
def test_a_numeric_step_is_declared(step, numeric):
    assert fa.FedADMM(1.0, step=step).numeric_step(4) == numeric
    assert fa.FedDR(1.0).numeric_step(4) is None


@pytest.mark.parametrize("name", having(ParticipantsMeanModel))
def test_the_participants_mean_is_the_mean_of_their_local_solutions(name, monkeypatch):
    method, given = ROWS[name].algorithm, federation(14, weights=WEIGHTS)
    solutions = Solutions(monkeypatch, method)
    last = snapshots(method, given, ROUNDS, **options(name))[-1]
    clients = last.record["cohort"]["clients"]
    shares = given.a[clients] / given.a[clients].sum()
    models = solutions.of_last_round(len(clients))
    wanted = sum(share * model for share, model in zip(shares, models, strict=True))
    torch.testing.assert_close(method.participants_mean(last.server), wanted, rtol=0, atol=1e-10)


@dataclass(frozen=True)
class Recorded(fa.Regularizer):
    """g = 0 that remembers the step of every proximal operator."""

    is_zero = True  # so that every method accepts it

    steps: list[float]

    def value(self, params):
        return params.new_zeros(())

    def prox(self, params, step):
        self.steps.append(float(step))
        return params


@pytest.mark.parametrize(
    "name", [name for name in having(ProximalServer) if "schedule" not in name]
)
def test_the_declared_prox_step_is_the_one_of_the_server_update(name):
    steps: list[float] = []
    method, given = ROWS[name].algorithm, federation(15, regularizer=Recorded(steps))
    run(method, given, 2, **options(name))
    if "InSa" in name:  # its penalties adapt from the declared first one on
        assert steps[0] == pytest.approx(method.prox_step)
    else:
        assert steps == pytest.approx([method.prox_step] * len(steps))
    assert prox_step(method) == method.prox_step
    assert prox_step(fa.FedAvg()) == 1.0


@dataclass(frozen=True)
class Halving(StalenessWeighting[Any, Move], Accepting):
    """Weights every update that is aggregated on arrival by one half."""

    def weight_update(self, server, message):
        return Move(message.move / 2)


def test_only_updates_that_are_aggregated_on_arrival_are_weighted():
    """One client steps x <- x + (c - x) / 2 alone, with the weight x <- x + (c - x) / 4."""
    declared = Requirements(regularizer=True, stale_updates=True)
    single = fa.Problem(
        [fa.Quadratic(torch.eye(1).double(), torch.ones(1).double())], fa.regularizers.Zero()
    )
    work = {"solver": fa.GradientDescent(0.5), "stop": fa.Steps(1)}
    work |= {"initial": torch.zeros(1).double(), "keep_trajectory": True}
    for method, factor in ((Accepting(declared), 0.5), (Halving(declared), 0.25)):
        late = fa.simulate(method, single, 5, engine=VirtualTime(mode="async"), **work)
        wanted = [1 - (1 - factor) ** k for k in range(1, 6)]
        assert [float(x) for x in late.trajectory] == pytest.approx(wanted)
        rounds = fa.simulate(method, single, 5, engine="sequential", **work)
        assert [float(x) for x in rounds.trajectory] == pytest.approx(
            [1 - 0.5**k for k in range(1, 6)]
        )
    assert [float(x) for x in minimal_run("sequential").trajectory] == pytest.approx(expected(4))


REMOVABLE = [
    name
    for name in having(ClientRemoval)
    if name in having(TrackedMean) and not any(word in name for word in DRIFTING)
]


@pytest.mark.parametrize("name", REMOVABLE)
def test_a_removed_client_counts_as_at_its_initial_state(name, monkeypatch):
    method, given = ROWS[name].algorithm, federation(16, weights=WEIGHTS)
    sent: list[Any] = []
    update = type(method).client_update

    def spied(method: Any, cast: Any, client: Any, result: LocalResult) -> Any:
        following, message = update(method, cast, client, result)
        sent.append(message)
        return following, message

    monkeypatch.setattr(type(method), "client_update", spied)
    last = snapshots(method, given, 1, **(options(name) | {"sampler": None}))[-1]
    past = [trees.scaled(one, float(given.a[1])) for one in sent[1 :: given.clients]]
    after = method.remove_client(last.server, sum_of(past), fa.regularizers.Zero())
    assert after is not None
    if method.tracked_mean(after) is None:
        return
    states = [
        method.init_client(given.initial) if client == 1 else state
        for client, state in enumerate(last.clients)
    ]
    wanted = mean_of_augmented_models(method, given, states)
    torch.testing.assert_close(method.tracked_mean(after), wanted, rtol=0, atol=1e-10)


def sum_of(messages: list[Any]) -> Any:
    return trees.map_tensors(lambda stacked: stacked.sum(0), trees.stack(messages))


@pytest.mark.parametrize("name", ["FedADMM numeric", "FedADMM released"])
def test_a_client_that_left_no_separate_trace_cannot_be_removed(name):
    method = ROWS[name].algorithm
    server = method.init_server(torch.ones(3))
    assert method.remove_client(server, None, fa.regularizers.Zero()) is None


@pytest.mark.parametrize("name", having(AbsentClientAlignment))
def test_virtual_steps_move_every_absent_client_by_the_same_vector(name):
    """The dual of a client that was away is what it kept, plus the difference of two sums."""
    method, given = ROWS[name].algorithm, federation(17, weights=WEIGHTS)
    work = {"solver": fa.ExactSolver(), "sampler": fa.TraceSampling([[0, 1], [2, 3], [4]])}
    rounds = snapshots(method, given, 3, **work)
    sums = [method.virtual_steps(one.server) for one in rounds]
    for client in (0, 1):
        kept = rounds[0].clients[client]
        back = method.catch_up(kept, sums[-1] - sums[0])
        torch.testing.assert_close(back.y, kept.y + sums[-1] - sums[0])
    assert not torch.equal(sums[-1], sums[0])


@pytest.mark.parametrize("kind", [fa.FedADMM, fa.FedPD])
def test_duals_begin_at_zero_or_at_minus_the_gradient(kind):
    """In the initial round nothing is solved, and y_i = -grad f_i(theta^0)."""
    assert issubclass(kind, InitialDuals)
    zero, gradient = kind(1.0, dual="zero"), kind(1.0, dual="gradient")
    assert zero.requirements.initial_round is None
    assert gradient.requirements.initial_round == LocalNeeds(local_solve=False, start_gradient=True)
    assert gradient.requirements.local_in(-1).local_solve is False
    assert gradient.requirements.local_in(0) == zero.requirements.local_in(0)
    y, g = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0])
    assert torch.equal(kind.dual_after(y, LocalResult(y)), y)
    assert torch.equal(kind.dual_after(y, LocalResult(y, start_gradient=g)), -g)


def test_a_penalty_per_work_becomes_a_number_once():
    lengths = iter([2.0])
    method = fit_penalties(fa.FedADMM(fa.PerWork(0.25)), lambda: next(lengths))
    assert method == fa.FedADMM(fa.PerWork(0.25).penalty(2.0))
    assert fit_penalties(method, lambda: next(lengths)) is method


def test_the_requirements_of_a_class_are_those_of_its_default_options():
    assert default_requirements(fa.FedPD).full_participation
    assert default_requirements(fa.AsyncFedDR).asynchronous
    assert default_requirements(fa.FedADMM).regularizer
    assert default_requirements(Accepting) == Requirements()  # it has no default options
