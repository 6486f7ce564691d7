"""FedAsync and FedBuff, replayed in numpy on the order of arrivals that a run really had."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedadmm as fa
from fedadmm.run.engines import VirtualTime
from support import reference
from support.federations import ROUNDS, WEIGHTS, Array, Federation, assert_same, federation, run
from support.given_delays import GivenDelays

LR, K = 0.1, 3
WORK = {"solver": fa.GradientDescent(LR), "stop": fa.Steps(K)}
ENGINES: dict[str, Any] = {
    "one by one": VirtualTime(ratio=5.0),
    "buffered": VirtualTime(ratio=5.0, redraw=True, buffer=2),
    "few places": VirtualTime(ratio=5.0, redraw=True, concurrency=3),
    "unreliable": VirtualTime(ratio=4.0, redraw=True, availability=0.7, dropout=0.3, deadline=3.0),
    "given delays": GivenDelays(4),
}
STALENESS: dict[str, dict[str, Any]] = {
    "constant": {"staleness": "constant"},
    "polynomial": {"exponent": 0.8},
    "hinge": {"staleness": "hinge", "slope": 2.0, "grace": 1.0},
}


def weight_of(kind: str, delay: float) -> float:
    if kind == "polynomial":
        return (delay + 1) ** -0.8
    if kind == "hinge" and delay > 1:
        return 1 / (2 * (delay - 1) + 1)
    return 1.0


def arrivals(
    engine: Any, method: Any, given: Federation
) -> tuple[Any, list[list[tuple[int, int]]]]:
    """A run, and for each of its steps who replied and how many steps old its model was.

    Delays are in the order of arrival, clients are sorted; the intervals tell who came when.
    """
    sampler = fa.UniformSampling(2) if isinstance(engine, GivenDelays) else None
    result = run(method, given, ROUNDS, engine=engine, sampler=sampler, seed=7, **WORK)
    steps = []
    for record in result.history:
        clock = record["clock"]
        came = [int(i[0]) for i in clock["intervals"] if i[3]] if "intervals" in clock else None
        replied = came or record["cohort"]["clients"]
        steps.append(list(zip(replied, clock["delays"], strict=True)))
    return result, steps


def late(steps: Any) -> int:
    return sum(delay > 0 for replies in steps for _, delay in replies)


@pytest.mark.parametrize("kind", STALENESS)
@pytest.mark.parametrize("engine", ENGINES)
def test_fedasync_mixes_models_by_their_age(kind, engine):
    given = federation(91, weights=WEIGHTS)
    method = fa.FedAsync(alpha=0.7, rho=0.4, **STALENESS[kind])
    result, steps = arrivals(ENGINES[engine], method, given)
    assert late(steps) > ROUNDS // 4
    solve = reference.gradient_steps(given, K, LR)
    zero = np.zeros_like(given.start)
    models, versions = [given.start.copy()], [0]  # before every step
    for replies in steps:
        theta, move, total = models[-1], np.zeros_like(zero), 0.0
        for client, delay in replies:
            base = models[len(models) - 1 - delay]
            age = versions[-1] - versions[len(models) - 1 - delay]
            w = solve(client, base, zero, 0.4, base)
            move = move + given.a[client] * weight_of(kind, age) * (w - theta)
            total += given.a[client]
        models.append(theta + 0.7 * move / total if replies else theta)
        versions.append(versions[-1] + bool(replies))
    assert_same(result.trajectory, np.array(models[1:]))


@pytest.mark.parametrize("kind", STALENESS)
@pytest.mark.parametrize("engine", ENGINES)
def test_fedbuff_steps_when_its_buffer_is_full(kind, engine):
    given = federation(92, weights=WEIGHTS)
    method = fa.FedBuff(size=3, lr=0.9, **STALENESS[kind])
    result, steps = arrivals(ENGINES[engine], method, given)
    assert late(steps) > ROUNDS // 4
    solve = reference.gradient_steps(given, K, LR)
    zero = np.zeros_like(given.start)
    models, versions = [given.start.copy()], [0]
    buffer: list[tuple[float, Array]] = []
    for replies in steps:
        theta, version = models[-1], versions[-1]
        for client, delay in replies:
            base = models[len(models) - 1 - delay]
            age = version - versions[len(models) - 1 - delay]
            move = solve(client, base, zero, 0.0, base) - base
            buffer.append((given.a[client], weight_of(kind, age) * move))
        if len(buffer) >= 3:
            total = sum(weight for weight, _ in buffer)
            theta = theta + 0.9 * sum(weight * move for weight, move in buffer) / total
            version, buffer = version + 1, []
        models.append(theta)
        versions.append(version)
    assert 0 < versions[-1] < ROUNDS
    assert_same(result.trajectory, np.array(models[1:]))


def test_fedbuff_over_a_whole_round_without_delays_is_fedavg():
    """Five clients that start together and reply together, five times in a row."""
    given = federation(93, weights=WEIGHTS)
    together = VirtualTime(compute="constant", buffer=5)
    buffered = run(fa.FedBuff(size=5), given, engine=together, **WORK)
    assert_same(buffered.trajectory, run(fa.FedAvg(), given, **WORK).trajectory)
