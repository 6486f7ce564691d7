"""Taking a client out: the server stands as if that client had its initial state."""

from __future__ import annotations

import pytest
import torch

import fedadmm as fa
from fedadmm.algorithms import REGISTRY
from fedadmm.core import trees
from fedadmm.core.capabilities import ClientRemoval
from fedadmm.core.contracts import Cohort, Round
from fedadmm.core.local_work import LocalWork
from fedadmm.core.messages import Download
from fedadmm.core.regularizers import L1, Zero
from fedadmm.core.rng import derive
from fedadmm.run.client import run_client
from fedadmm.run.stores import MemoryStore
from support.jobs import job_of

from .harness import CLIENTS, contribution, objectives, tracked

KEEPS_NOTHING = {
    *("fedsgd", "fedavg", "fedprox", "fedpd", "fedavgm", "fedadagrad", "fedadam", "fedyogi"),
    *("adabest", "fedasync", "fedbuff", "fednova", "fedcm", "fedmid", "feddualavg", "scaffnew"),
    *("fedexp", "pfedme"),
}
CASES = {
    "fedadmm": fa.FedADMM(rho=1.0),
    "fedadmm, prox": fa.FedADMM(rho=1.0),
    "fedadmm-in": fa.FedADMMIn(beta=1.0),
    "fedadmm-insa": fa.FedADMMInSa(beta=1.0),
    "fedadmm-insa-released": fa.algorithms.FedADMMInSaReleased(beta=1.0, mu=1.2),
    "feddr": fa.FedDR(eta=1.0, alpha=1.5),
    "feddr-ii": fa.FedDRII(eta=1.0),
    "scaffold": fa.Scaffold(),
    "feddyn": fa.FedDyn(eta=1.0),
}


def test_every_method_has_decided():
    """A server that keeps something of each client must say how it is taken out."""
    decided = {name for name, method in REGISTRY.items() if issubclass(method, ClientRemoval)}
    assert decided | KEEPS_NOTHING == set(REGISTRY)
    assert not decided & KEEPS_NOTHING


def play(algorithm, regularizer, cohorts):
    """Rounds in double precision: the server, the clients' states, and all uploads by client."""
    initial = torch.linspace(-1, 1, 6, dtype=torch.float64)
    problem = fa.Problem(objectives(), regularizer).to(torch.float64)
    solver = fa.SGD(lr=0.1, batch_size=10)
    job = job_of(algorithm, problem, LocalWork(solver, fa.Epochs(1)), 0, initial)
    server, store, past = algorithm.init_server(initial), MemoryStore(), {}
    for number, cohort in enumerate(cohorts):
        cast = algorithm.broadcast(server, Round(number, derive(0, "b", number)))
        total = None
        for client in cohort:
            upload, _ = run_client(job, store, client, Download(cast), number)
            share = trees.scaled(upload.message, 1 / CLIENTS)
            past[client] = (
                trees.add_scaled_(trees.clone(share), past[client], 1.0)
                if client in past
                else share
            )
            total = trees.add_scaled_(total, share, 1.0) if total else trees.clone(share)
        received = Cohort(len(cohort), len(cohort) / CLIENTS, CLIENTS, number)
        server = algorithm.server_update(server, total, received, regularizer)
    states = {c: store.get(c).state for c in store.clients()}
    return server, states, past, algorithm.init_client(initial)


@pytest.mark.parametrize("case", CASES)
def test_the_mean_is_that_of_the_others_and_an_initial_client(case):
    algorithm = CASES[case]
    regularizer = L1(0.01) if case.endswith("prox") else Zero()
    server, states, past, fresh = play(algorithm, regularizer, [[0, 1, 2], [1, 2, 3], [0, 1, 3]])
    after = algorithm.remove_client(server, past[1], regularizer)
    states[1] = fresh
    parts = [contribution(algorithm, states[c]) for c in range(CLIENTS)]
    for held, column in zip(tracked(algorithm, after), zip(*parts, strict=True), strict=True):
        wanted = sum(part / CLIENTS for part in column)
        assert torch.allclose(held, wanted, rtol=0, atol=1e-12)
    if case.endswith("prox"):
        assert torch.allclose(after.theta, regularizer.prox(after.mean, 1.0))


@pytest.mark.parametrize(
    "algorithm",
    [fa.FedADMM(rho=1.0, members="seen"), fa.FedADMMIn(beta=1.0, members="seen")],
    ids=["fedadmm", "fedadmm-in"],
)
def test_with_seen_members_the_mean_runs_over_the_rest(algorithm):
    server, states, past, _ = play(algorithm, Zero(), [[0, 1], [1]])
    after = algorithm.remove_client(server, past[1], Zero())
    wanted = contribution(algorithm, states[0])[0]
    if algorithm.name == "fedadmm-in":
        wanted = wanted / states[0].sent
    assert torch.allclose(after.theta, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "algorithm",
    [fa.FedADMM(rho=1.0, members="seen"), fa.FedADMMIn(beta=1.0, members="seen")],
    ids=["fedadmm", "fedadmm-in"],
)
def test_when_the_last_member_leaves_the_model_stays(algorithm):
    server, _, past, _ = play(algorithm, Zero(), [[1], [1]])
    after = algorithm.remove_client(server, past[1], Zero())
    assert torch.equal(after.theta, server.theta)


def test_a_numeric_step_keeps_no_mean():
    algorithm = fa.FedADMM(rho=1.0, step=1.0)
    server, _, past, _ = play(algorithm, Zero(), [[0, 1]])
    assert algorithm.remove_client(server, past[1], Zero()) is None
