"""asyncFedDR: FedDR when nothing is late, async FedADMM by the equivalence, and an exact mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedadmm as fa
from fedadmm.run.engines import VirtualTime
from support.federations import (
    ROUNDS,
    WEIGHTS,
    Array,
    Federation,
    assert_same,
    federation,
    run,
    snapshots,
    stacked,
    weighted_mean,
)

STALE = {
    "one by one": VirtualTime(ratio=5.0),
    "log-normal": VirtualTime(compute="log-normal", spread=1.0, redraw=True, network_time=0.3),
    "buffered": VirtualTime(ratio=5.0, redraw=True, buffer=2),
    "few places": VirtualTime(ratio=5.0, redraw=True, concurrency=3),
    "too stale is dropped": VirtualTime(ratio=8.0, redraw=True, max_staleness=3, policy="drop"),
    "waits": VirtualTime(ratio=8.0, redraw=True, max_staleness=2, policy="wait"),
    "unreliable": VirtualTime(ratio=4.0, redraw=True, availability=0.7, dropout=0.3, deadline=3.0),
}


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("init", ["start", "prox"])
def test_without_delay_it_is_feddr_with_one_client(alpha, init):
    given = federation(41, weights=WEIGHTS, regularizer=fa.L1(0.2))
    engine = VirtualTime(compute="constant", concurrency=1)
    late = run(fa.AsyncFedDR(0.6, alpha, init), given, engine=engine, seed=2)
    steps = [record for record in late.history if record["round"] > 0]
    order = [record["cohort"]["clients"] for record in steps]
    assert [len(ids) for ids in order] == [1] * ROUNDS
    assert {client for ids in order for client in ids} == set(range(given.clients))
    assert all(record["clock"]["delays"] == [0] for record in steps)
    rounds = run(fa.FedDR(0.6, alpha, init), given, sampler=fa.TraceSampling(order))
    assert_same(late.trajectory, rounds.trajectory)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_batch_of_simultaneous_arrivals_is_feddr_on_that_batch(size):
    given = federation(42, weights=WEIGHTS)
    sampler = fa.UniformSampling(size)
    engine = VirtualTime(compute="constant", buffer=size)
    late = run(fa.AsyncFedDR(0.8, 1.3), given, engine=engine, sampler=sampler, seed=3)
    rounds = run(fa.FedDR(0.8, 1.3), given, sampler=sampler, seed=3)
    assert_same(late.trajectory, rounds.trajectory)
    assert [r["clock"]["virtual_time"] for r in late.history] == pytest.approx(
        np.arange(1.0, ROUNDS + 1)
    )


@pytest.mark.parametrize("name", STALE)
def test_async_fedadmm_is_async_feddr_under_the_same_schedule(name):
    given = federation(43, weights=WEIGHTS, regularizer=fa.L1(0.2))
    eta = 0.7
    runs = [
        run(method, given, 200, engine=STALE[name], seed=5)
        for method in (fa.AsyncFedDR(eta), fa.FedADMM(1 / eta), fa.FedDRII(eta))
    ]
    assert [r["cohort"]["clients"] for r in runs[0].history] == [
        r["cohort"]["clients"] for r in runs[1].history
    ]
    assert max(max(r["clock"]["delays"], default=0) for r in runs[0].history) > 0
    assert_same(runs[0].trajectory, runs[1].trajectory)
    assert_same(runs[0].trajectory, runs[2].trajectory)


@pytest.mark.parametrize("name", STALE)
def test_the_server_holds_the_mean_after_every_step(name):
    given = federation(44, weights=WEIGHTS)
    taken = snapshots(fa.AsyncFedDR(0.7, 1.2), given, 120, engine=STALE[name], seed=6)
    for shot in taken:
        mean = weighted_mean(given.a, [2 * client.x - client.v for client in shot.clients])
        np.testing.assert_allclose(shot.server.xtilde, mean, atol=1e-12, rtol=0)


def direct(given: Federation, history: list[dict[str, Any]], eta: float, alpha: float) -> Array:
    """asyncFedDR from the paper: who replied when with which delay, and nothing else."""
    v = np.tile(given.start, (given.clients, 1))
    x = v.copy()
    models = [given.start.copy()]
    for step, record in enumerate(history):
        (client,), (delay,) = record["cohort"]["clients"], record["clock"]["delays"]
        v[client] = v[client] + alpha * (models[step - delay] - x[client])
        x[client] = given.prox(client, v[client], eta)
        models.append(given.a @ (2 * x - v))
    return np.array(models[1:])


def test_each_client_works_from_the_model_it_received():
    given = federation(45, weights=WEIGHTS)
    late = run(fa.AsyncFedDR(0.5, 0.9), given, 150, engine=VirtualTime(ratio=6.0), seed=7)
    assert max(record["clock"]["staleness_max"] for record in late.history) >= 5
    assert_same(late.trajectory, direct(given, late.history, 0.5, 0.9))


@pytest.mark.parametrize("name", ["one by one", "unreliable"])
def test_it_reaches_the_optimum_in_spite_of_delays(name):
    given = federation(46, weights=WEIGHTS)
    late = run(fa.AsyncFedDR(0.5, 0.8), given, 500, engine=STALE[name], seed=8)
    far = np.abs(given.start - given.optimum).max()
    assert np.abs(stacked([late.params])[0] - given.optimum).max() < 1e-4 * far


def test_a_client_that_is_always_too_late_is_never_heard():
    """With the same times in every turn, dropping stale replies silences the slow for good."""
    given = federation(46, weights=WEIGHTS)
    engine = VirtualTime(ratio=8.0, max_staleness=3, policy="drop")
    late = run(fa.AsyncFedDR(0.5, 0.8), given, 300, engine=engine, seed=8)
    heard = {client for record in late.history for client in record["cohort"]["clients"]}
    assert 0 < len(heard) < given.clients
    assert np.abs(stacked([late.params])[0] - given.optimum).max() > 0.1
