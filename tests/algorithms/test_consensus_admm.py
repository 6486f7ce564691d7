"""Consensus ADMM in the classic order against numpy recursions and its theorems."""

from __future__ import annotations

import numpy as np
import pytest

import fedadmm as fa
from support.federations import (
    SAMPLERS,
    WEIGHTS,
    Array,
    Federation,
    assert_same,
    federation,
    run,
    snapshots,
    stacked,
)
from support.reference import Solve, composite_optimum, exact, gradient_steps, soft_threshold

RHO = 0.8


def boyd(
    given: Federation, cohorts: list[list[int]], solve: Solve, threshold: float = 0.0
) -> Array:
    """Section 7.1 of Boyd et al. with separate w_i and u_i, which the method does not store."""
    w = np.tile(given.start, (given.clients, 1))
    u = np.zeros_like(w)
    theta, trajectory = given.start.copy(), []
    for cohort in cohorts:
        for i in cohort:
            u[i] = u[i] + w[i] - theta
            w[i] = solve(i, theta, RHO * u[i], RHO, theta)
        theta = soft_threshold(given.a @ (w + u), threshold / RHO)
        trajectory.append(theta.copy())
    return np.array(trajectory)


def cohorts_of(name: str, given: Federation, rounds: int) -> list[list[int]]:
    return [list(SAMPLERS[name].sample(0, t, given.clients)) for t in range(rounds)]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("threshold", [0.0, 0.4])
def test_equals_the_recursion_of_boyd_et_al(sampler: str, threshold: float) -> None:
    g = fa.L1(threshold) if threshold else None
    given = federation(3, weights=WEIGHTS, regularizer=g)
    result = run(fa.ConsensusADMM(RHO), given, 30, sampler=SAMPLERS[sampler])
    expected = boyd(given, cohorts_of(sampler, given, 30), exact(given), threshold)
    np.testing.assert_allclose(stacked(result.trajectory), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "workers"])
def test_equals_the_recursion_with_inexact_solves_on_every_engine(engine: str) -> None:
    given = federation(4, weights=WEIGHTS)
    options = {"solver": fa.GradientDescent(0.1), "stop": fa.Steps(3), "engine": engine}
    result = run(
        fa.ConsensusADMM(RHO),
        given,
        20,
        sampler=SAMPLERS["uniform"],
        keep_trajectory=True,
        **options,
    )
    expected = boyd(given, cohorts_of("uniform", given, 20), gradient_steps(given, 3, 0.1))
    np.testing.assert_allclose(stacked(result.trajectory), expected, rtol=0, atol=1e-12)


def test_is_douglas_rachford_splitting_with_the_operators_exchanged() -> None:
    """z+ = z + prox_f(2 prox_g(z) - z) - prox_g(z), where FedDR (alpha = 1) begins with prox_f."""
    given = federation(5)
    z = np.tile(given.start, (given.clients, 1))
    classic = []
    for _ in range(40):
        theta = given.a @ z
        z = z + np.array([given.prox(i, 2 * theta - z[i], 1 / RHO) for i in range(len(z))]) - theta
        classic.append(given.a @ z)
    assert_same(run(fa.ConsensusADMM(RHO), given, 40).trajectory, np.array(classic))
    v = np.tile(given.start, (given.clients, 1))
    x, theta, papers = v.copy(), given.start.copy(), []
    for _ in range(40):
        v = v + theta - x
        x = np.array([given.prox(i, v[i], 1 / RHO) for i in range(len(v))])
        theta = given.a @ (2 * x - v)
        papers.append(theta)
    assert_same(run(fa.FedADMM(RHO), given, 40).trajectory, np.array(papers))


def test_the_first_local_models_are_those_of_fedadmm() -> None:
    """All duals are zero in the first round, after which theta is the mean w of one method and
    the mean of w + u = 2 w - theta^0 of the other."""
    given = federation(6)
    first = stacked(run(fa.ConsensusADMM(RHO), given, 1).trajectory)[0]
    other = stacked(run(fa.FedADMM(RHO), given, 1).trajectory)[0]
    np.testing.assert_allclose(other, 2 * first - given.start, atol=1e-12)


def test_duals_sum_to_zero_after_every_full_round() -> None:
    given = federation(7, weights=WEIGHTS)
    for before, after in zip(
        [None, *(taken := snapshots(fa.ConsensusADMM(RHO), given, 10))], taken, strict=False
    ):
        theta = given.start if before is None else before.theta.numpy()
        w = np.array([state.z.numpy() for state in after.clients])
        if before is not None:
            u = np.array([state.z.numpy() for state in before.clients]) - theta
            assert np.abs(given.a @ u).max() < 1e-12
            w = w - u
        np.testing.assert_allclose(after.theta.numpy(), given.a @ w, atol=1e-12)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_converges_to_the_optimum_with_l1(sampler: str) -> None:
    given = federation(8, regularizer=fa.L1(0.4))
    optimum = composite_optimum(given, lambda v, t: soft_threshold(v, 0.4 * t))
    result = run(fa.ConsensusADMM(RHO), given, 600, sampler=SAMPLERS[sampler])
    assert np.abs(result.params.numpy() - optimum).max() < 1e-6


def test_a_removed_client_counts_as_at_its_initial_state() -> None:
    given, method = federation(9), fa.ConsensusADMM(RHO)
    last = snapshots(method, given, 6)[-1]
    sent = given.a[2] * (last.clients[2].z - given.initial)
    past = fa.algorithms.consensus_admm.Message(sent)
    server = method.remove_client(last.server, past, fa.regularizers.Zero())
    states = [given.initial if i == 2 else one.z for i, one in enumerate(last.clients)]
    np.testing.assert_allclose(server.theta.numpy(), given.a @ stacked(states), atol=1e-12)
