"""Every option of FedADMM against a direct program that keeps all u_i on the server."""

from __future__ import annotations

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

import fedadmm as fa
from support import reference
from support.federations import (
    ROUNDS,
    SAMPLERS,
    WEIGHTS,
    assert_same,
    federation,
    run,
    snapshots,
    stacked,
    weighted_mean,
)

RHO = 1.7
LAM = 0.2


def falling(t: int) -> float:
    return 1.0 if t < 20 else 0.4


def growing(t: int) -> float:
    return 0.8 + 0.05 * t


OPTIONS = {
    "tracking": {},
    "step 0.3": {"step": 0.3},
    "step schedule": {"step": falling},
    "join current": {"join": "current"},
    "join always": {"join": "always", "step": 0.3},
    "members seen": {"members": "seen"},
    "seen, joining at current": {"members": "seen", "join": "current"},
    "start global": {"start": "global"},
    "global, numeric, current": {"start": "global", "step": 0.4, "join": "current"},
}
SOLVES = {
    "exact": (fa.ExactSolver(), None),
    "three gradient steps": (fa.GradientDescent(0.15), fa.Steps(3)),
}


def direct(given, sampler, seed, rho, solve, **options):
    cohorts = [list(sampler.sample(seed, t, given.clients)) for t in range(ROUNDS)]
    step = options.pop("step", None)
    if isinstance(step, float):
        number = step
        step = lambda t: number  # noqa: E731
    return reference.fedadmm(given, cohorts, rho, solve, step, **options)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("solve", SOLVES)
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_option(option, solve, weights):
    given = federation(31, weights=weights)
    solver, stop = SOLVES[solve]
    numpy_solve = (
        reference.exact(given) if stop is None else reference.gradient_steps(given, 3, 0.15)
    )
    sampler, options = fa.UniformSampling(2), OPTIONS[option]
    result = run(
        fa.FedADMM(RHO, **options), given, sampler=sampler, seed=2, solver=solver, stop=stop
    )
    assert_same(result.trajectory, direct(given, sampler, 2, lambda t: RHO, numpy_solve, **options))


@pytest.mark.parametrize("option", ["tracking", "step schedule", "members seen"])
def test_penalty_schedule_with_l1(option):
    given = federation(32, weights=WEIGHTS, regularizer=fa.L1(LAM))
    sampler, options = fa.UniformSampling(3), OPTIONS[option]
    result = run(fa.FedADMM(growing, **options), given, sampler=sampler, seed=1)
    expected = direct(
        given,
        sampler,
        1,
        growing,
        reference.exact(given),
        prox=lambda v, t: reference.soft_threshold(v, t * LAM),
        **options,
    )
    assert_same(result.trajectory, expected)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_mean_is_tracked_although_rho_changes(sampler):
    """Each u_i counts with the rho of the round in which the client last took part."""
    given = federation(33, weights=WEIGHTS)
    rounds = snapshots(fa.FedADMM(growing), given, sampler=SAMPLERS[sampler], seed=4)
    last: dict[int, float] = {}
    steps = 0
    for snapshot in rounds:
        for client in snapshot.record["clients"]:
            last[client] = growing(steps)
        steps += bool(snapshot.record["clients"])
        u = [c.w + c.y / last.get(i, growing(0)) for i, c in enumerate(snapshot.clients)]
        assert_same(snapshot.server.mean.numpy(), weighted_mean(given.a, u))


@hypothesis_given(factor=st.floats(0.5, 0.95), initial=st.floats(0.5, 2.0))
def test_a_geometric_step_falls_to_the_participation_and_not_below(factor, initial):
    given = federation(34)
    sampler = fa.UniformSampling(2)
    schedule = fa.Geometric(initial, factor, "tracking")
    result = run(fa.FedADMM(RHO, step=schedule), given, sampler=sampler)

    def step(t: int) -> float:
        return max(initial * factor**t, 2 / 5)

    cohorts = [list(sampler.sample(0, t, 5)) for t in range(ROUNDS)]
    expected = reference.fedadmm(given, cohorts, lambda t: RHO, reference.exact(given), step)
    # a step above the participation may grow, so the comparison is relative
    scale = max(1.0, abs(expected).max())
    assert_same(stacked(result.trajectory) / scale, expected / scale)


def test_joining_always_sends_twice_the_move():
    """The dual's increment is rho times the move, and w_i counts from theta: 2 (w_i+ - theta)."""
    given = federation(36)
    cohort = [1, 3]
    sampler = fa.TraceSampling([[0, 2, 4], cohort])
    method = fa.FedADMM(RHO, join="always")
    first, second = snapshots(method, given, rounds=2, sampler=sampler)
    moves = sum(second.clients[i].w - first.theta for i in cohort) / given.clients
    assert_same([second.server.mean - first.server.mean], [2 * moves])


def test_members_seen_is_all_once_everybody_was_seen():
    """With everybody in round 0 the two options cannot be told apart."""
    given = federation(35, weights=WEIGHTS)
    trace = fa.TraceSampling([[0, 1, 2, 3, 4], [0, 3], [1], [2, 4]], repeat=True)
    everyone = run(fa.FedADMM(RHO), given, sampler=trace)
    seen = run(fa.FedADMM(RHO, members="seen"), given, sampler=trace)
    assert_same(everyone.trajectory, seen.trajectory)
