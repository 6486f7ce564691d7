"""Every option of FedADMM against a direct program that keeps all u_i on the server."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as hypothesis_given, strategies as st

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
    "start current": {"start": "current"},
    "released": {"increment": "released", "step": 0.3},
    "released, tracking, global": {"increment": "released", "start": "global"},
    "members seen": {"members": "seen"},
    "seen, starting at current": {"members": "seen", "start": "current"},
    "start global": {"start": "global"},
    "current, numeric": {"start": "current", "step": 0.4},
}
SOLVES = {
    "exact": (fa.ExactSolver(), None),
    "three gradient steps": (fa.GradientDescent(0.15), fa.Steps(3)),
}


METHODS = {
    "exact": fa.FedADMM,
    "printed": fa.algorithms.FedADMMPrinted,
    "released": fa.algorithms.FedADMMReleased,
}


def ours(rho, given, *, start=None, increment="exact", step=None, members="all", **settings):
    """The method with these options, run."""
    method = METHODS[increment](rho, members=members, **({} if step is None else {"step": step}))
    return run(method, given, start=start, **settings)


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
    work = {"solver": solver, "stop": stop}
    result = ours(RHO, given, sampler=sampler, seed=2, **work, **options)
    assert_same(result.trajectory, direct(given, sampler, 2, lambda t: RHO, numpy_solve, **options))


PENALTY_SCHEDULES = {
    "weighted mean": {},
    "weighted mean over the members": {"members": "seen", "start": "current"},
    "printed": {"increment": "printed"},
    "printed, step schedule": {"increment": "printed", "step": falling},
    "released": {"increment": "released", "step": 0.3},
}


@pytest.mark.parametrize("option", PENALTY_SCHEDULES)
def test_penalty_schedule_with_l1(option):
    given = federation(32, weights=WEIGHTS, regularizer=fa.L1(LAM))
    sampler, options = fa.UniformSampling(3), PENALTY_SCHEDULES[option]
    result = ours(growing, given, sampler=sampler, seed=1, **options)
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
def test_the_server_minimises_the_augmented_lagrangian_although_rho_changes(sampler):
    """Its gradient sum a_i (rho_i (theta - w_i) - y_i) is zero at theta.

    rho_i is that of the round in which the client last took part; empty rounds count.
    """
    given = federation(33, weights=WEIGHTS)
    rounds = snapshots(fa.FedADMM(growing), given, sampler=SAMPLERS[sampler], seed=4)
    last = dict.fromkeys(range(given.clients), growing(0))
    for t, snapshot in enumerate(rounds):
        last |= dict.fromkeys(snapshot.record["cohort"]["clients"], growing(t))
        slopes = [last[i] * (snapshot.theta - c.w) - c.y for i, c in enumerate(snapshot.clients)]
        assert_same(weighted_mean(given.a, slopes), 0 * slopes[0].numpy())


@pytest.mark.parametrize("before", [0.3, 1.0])
def test_a_change_of_rho_does_not_change_the_limit(before):
    """2 of 10 clients a round: theta is at the optimum when rho grows tenfold, and stays there."""
    given = federation(37, clients=10)
    schedule = fa.schedules.Piecewise({0: before, 900: 10 * before})
    sampler = fa.UniformSampling(2)
    result = run(fa.FedADMM(schedule), given, rounds=1200, sampler=sampler)
    away = np.linalg.norm(stacked(result.trajectory) - given.optimum, axis=1)
    assert away[899] < 1e-6
    assert away[900:].max() < 2e-6


@hypothesis_given(factor=st.floats(0.5, 0.95), initial=st.floats(0.5, 2.0))
def test_a_geometric_step_falls_to_the_participation_and_not_below(factor, initial):
    given = federation(34)
    sampler = fa.UniformSampling(2)
    schedule = fa.schedules.Geometric(initial, factor, 2 / 5)
    result = run(fa.FedADMM(RHO, step=schedule), given, sampler=sampler)

    def step(t: int) -> float:
        return max(initial * factor**t, 2 / 5)

    cohorts = [list(sampler.sample(0, t, 5)) for t in range(ROUNDS)]
    expected = reference.fedadmm(given, cohorts, lambda t: RHO, reference.exact(given), step)
    # a step above the participation may grow, so the comparison is relative
    scale = max(1.0, abs(expected).max())
    assert_same(stacked(result.trajectory) / scale, expected / scale)


@pytest.mark.parametrize("rho", [RHO, fa.schedules.Piecewise({0: RHO, 1: 0.3})])
def test_the_released_increment_is_twice_the_move(rho):
    given = federation(36)
    cohort = [1, 3]
    sampler = fa.TraceSampling([[0, 2, 4], cohort])
    method = fa.algorithms.FedADMMReleased(rho)
    first, second = snapshots(method, given, rounds=2, sampler=sampler)
    moves = sum(second.clients[i].w - first.theta for i in cohort) / given.clients
    assert_same([second.server.mean - first.server.mean], [2 * moves])


PULLS = {
    "numeric": (fa.FedADMM, lambda share, step: RHO * (1 - share / step)),
    "released": (fa.algorithms.FedADMMReleased, lambda share, step: -RHO / 2 * share / step),
}


@pytest.mark.parametrize("step", [0.25, 0.4, 0.7])
@pytest.mark.parametrize("kind", PULLS)
def test_where_a_biased_limit_lies(kind, step):
    """grad f(theta) = pull (theta - theta^0), with exact solves and two of five clients a round."""
    given = federation(39)
    method, pull = PULLS[kind]
    result = run(method(RHO, step=step), given, rounds=1500, sampler=fa.UniformSampling(2))
    theta = result.params.numpy()
    slope = sum(given.a[i] * given.gradient(i, theta) for i in range(given.clients))
    np.testing.assert_allclose(slope, pull(2 / 5, step) * (theta - given.start), atol=1e-9)
    assert method(RHO, step=step).bias is not None


def test_members_seen_equals_all_once_every_client_has_participated():
    """With everybody in round 0 the two options cannot be told apart."""
    given = federation(35, weights=WEIGHTS)
    trace = fa.TraceSampling([[0, 1, 2, 3, 4], [0, 3], [1], [2, 4]], repeat=True)
    everyone = run(fa.FedADMM(RHO), given, sampler=trace)
    seen = run(fa.FedADMM(RHO, members="seen"), given, sampler=trace)
    assert_same(everyone.trajectory, seen.trajectory)


def test_steps_and_penalties_count_the_same_rounds_empty_ones_included():
    """Both change in round 10 of the run, whoever takes part."""
    given = federation(38)
    sampler = fa.BernoulliSampling(0.2)
    change = fa.schedules.Piecewise({0: 0.7, 10: 1.4})
    method = fa.algorithms.FedADMMPrinted(change, step=fa.schedules.Piecewise({0: 0.2, 10: 0.6}))
    result = run(method, given, sampler=sampler, seed=3)
    assert any(not record["cohort"]["clients"] for record in result.history[:10])
    expected = direct(
        given,
        sampler,
        3,
        change,
        reference.exact(given),
        step=lambda t: 0.2 if t < 10 else 0.6,
        increment="printed",
    )
    assert_same(result.trajectory, expected)
