"""Methods without rounds over the same apps: every reply is a step, in any order of arrival."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.core.capabilities import StalenessWeighting
from fedadmm.core.contracts import Cohort, Round
from fedadmm.core.errors import EngineError, ParameterError
from fedadmm.core.messages import Download
from fedadmm.core.regularizers import Zero
from fedadmm.run.client import run_client
from fedadmm.run.stores import MemoryStore
from support.jobs import job_of

from .harness import (
    CLIENTS,
    FakeGrid,
    check_invariant,
    federation,
    objectives,
    run_through,
    server_on_disk,
)

pytestmark = pytest.mark.usefixtures("quick")
STEPS = 14


class Unhurried(FakeGrid):
    """Answers one waiting task at a time, chosen by chance; slow clients are chosen seldom."""

    def __init__(self, settings, folder, seed, slow=(), **rest):
        super().__init__(settings, folder, **rest)
        self.chance = random.Random(seed)
        self.slow = slow

    def pull_messages(self, identities):
        waiting = [i for i in identities if i in self._waiting]
        quick = [i for i in waiting if self._node(i) not in self.slow]
        chosen = self.chance.choice(quick or waiting) if waiting else None
        return super().pull_messages([chosen] if chosen is not None else [])

    def _node(self, identity):
        return self._waiting[identity].metadata.dst_node_id - 1000


def by_hand(settings, order):
    """Algorithm 2 of the paper: an independent loop that replays the order of arrivals."""
    run, initial = settings.experiment, settings.problem.initial
    algorithm = run.algorithm
    job = job_of(algorithm, fa.Problem(objectives()), run.local, run.seed, initial)
    server, store = algorithm.init_server(initial), MemoryStore()
    casts = {client: algorithm.broadcast(server, Round(0, 0)) for client in range(CLIENTS)}
    done: Counter[int] = Counter()
    for client in order:
        upload, _ = run_client(job, store, client, Download(casts[client]), done[client])
        done[client] += 1
        message = upload.message
        if isinstance(algorithm, StalenessWeighting):
            message = algorithm.weight_update(server, message)
        total = trees.scaled(message, 1 / CLIENTS)
        received = Cohort(1, 1 / CLIENTS, CLIENTS, 0)
        server = algorithm.server_update(server, total, received, Zero())
        casts[client] = algorithm.broadcast(server, Round(0, 0))
    return algorithm.global_params(server)


METHODS = [fa.AsyncFedDR(eta=1.0), fa.FedAsync("hinge", grace=1.0), fa.FedBuff(size=3)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("seed", range(3))
def test_equal_to_the_algorithm_by_hand(method, seed, tmp_path):
    settings = federation(method, rounds=STEPS, mode="asynchronous")
    history = run_through(settings, Unhurried(settings, tmp_path, seed), tmp_path)
    order = [clients[0] for clients in history.trace]
    assert len(order) == STEPS
    assert history.outcome.ending.sentence == f"completed all {STEPS} steps"
    assert max(record["clock"]["staleness"] for record in history.records) > 0
    wanted = by_hand(settings, order)
    assert torch.allclose(history.outcome.params, wanted, rtol=0, atol=1e-6)
    check_invariant(settings, tmp_path)


def test_a_slow_client_never_holds_the_server(tmp_path):
    settings = federation(fa.AsyncFedDR(eta=1.0), rounds=STEPS, mode="asynchronous")
    history = run_through(settings, Unhurried(settings, tmp_path, 0, slow={3}), tmp_path)
    assert len(history.trace) == STEPS
    assert [3] not in history.trace
    check_invariant(settings, tmp_path)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("seed", range(4))
def test_losses_and_resumption(method, seed, tmp_path, monkeypatch):
    from .test_faults import FaultSequence

    settings = federation(method, rounds=STEPS, mode="asynchronous")
    faults = FaultSequence(seed, monkeypatch)
    history = run_through(settings, FakeGrid(settings, tmp_path, faults), tmp_path)
    assert faults.count > 0
    ledger = server_on_disk(settings, tmp_path).ledger
    acked_version = Counter(clients[0] for clients in history.trace)
    assert {c: ledger.entry(c).version for c in range(CLIENTS)} == {
        c: acked_version[c] for c in range(CLIENTS)
    }
    check_invariant(settings, tmp_path)


def test_a_wiped_disk_is_repaired(tmp_path):
    settings = federation(fa.AsyncFedDR(eta=1.0), rounds=STEPS, mode="asynchronous", ledger="disk")
    grid = FakeGrid(settings, tmp_path)

    def wipe(report):
        if report.record["round"] == 5:
            grid.wipe(1)

    history = run_through(settings, grid, tmp_path, wipe)
    assert history.outcome.counts["repaired"] == 1
    check_invariant(settings, tmp_path)


def test_a_method_without_rounds_is_refused_with_rounds():
    with pytest.raises(ParameterError, match="AsyncFedDR folds every reply as it arrives"):
        federation(fa.AsyncFedDR(eta=1.0))


def test_nobody_there_ends_with_a_sentence(tmp_path):
    settings = federation(fa.AsyncFedDR(eta=1.0), mode="asynchronous")
    grid = FakeGrid(settings, tmp_path)
    grid.offline = set(range(CLIENTS))
    with pytest.raises(EngineError, match=r"0 of 1 clients came within 60 s"):
        run_through(settings, grid, tmp_path)
