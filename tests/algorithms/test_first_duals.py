"""Duals that begin at -grad f_i(theta^0): the note's input lambda^0, and what it is worth."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core.errors import ParameterError
from fedadmm.core.rng import derive, uniform
from fedadmm.data.problems import load
from fedadmm.theory import gong_bound
from support import reference
from support.certified import certified, curves
from support.federations import ROUNDS, SAMPLERS, WEIGHTS, assert_same, federation, run, snapshots
from support.rejections import naming

RHO, ETA = 1.7, 0.6
SOLVES = {
    "exact": (fa.ExactSolver(), None, reference.exact),
    "three gradient steps": (
        fa.GradientDescent(0.15),
        fa.Steps(3),
        lambda given: reference.gradient_steps(given, 3, 0.15),
    ),
}


def first_duals(given):
    return np.array([-given.gradient(i, given.start) for i in range(given.clients)])


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("solves", SOLVES)
def test_fedadmm_against_the_recursion(sampler, solves):
    given, chosen = federation(71, weights=WEIGHTS), SAMPLERS[sampler]
    solver, stop, made = SOLVES[solves]
    solve, w, y = made(given), np.tile(given.start, (given.clients, 1)), first_duals(given)
    expected = [given.a @ (w + y / RHO)]
    for t in range(ROUNDS):
        theta = expected[-1]
        for i in chosen.sample(4, t, given.clients):
            w[i] = solve(i, theta, y[i], RHO, theta)
            y[i] += RHO * (w[i] - theta)
        expected.append(given.a @ (w + y / RHO))
    method = fa.FedADMM(RHO, dual="gradient")
    found = run(method, given, sampler=chosen, seed=4, solver=solver, stop=stop)
    assert_same(found.trajectory, np.array(expected))
    first, second = found.history[:2]
    assert (first["round"], second["round"]) == (0, 1)
    assert len(first["cohort"]["clients"]) == given.clients
    assert first["work"]["steps"] == 0


@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_fedpd_is_the_notes_algorithm_from_these_duals(probability):
    """With exact solves its first round stays at x^0 and is our initial one."""
    given, seed = federation(72, weights=WEIGHTS), 6
    solve = reference.exact(given)
    silent = [uniform(derive(seed, "broadcast", t)) < probability for t in range(ROUNDS)]
    assert any(silent) == (probability > 0)
    n, theta, lam = given.clients, given.start.copy(), first_duals(given)
    x, x0, expected = np.zeros_like(given.b), np.tile(given.start, (given.clients, 1)), []
    for skip in [False, *silent]:
        for i in range(n):
            x[i] = solve(i, x0[i], lam[i], 1 / ETA, x0[i])
            lam[i] += (x[i] - x0[i]) / ETA
        if skip:
            x0 = x + ETA * lam
        else:
            theta = given.a @ (x + ETA * lam)
            x0 = np.tile(theta, (n, 1))
        expected.append(theta)
    found = run(fa.FedPD(ETA, probability, dual="gradient"), given, seed=seed)
    assert_same(found.trajectory, np.array(expected))
    if not probability:
        same = run(fa.FedADMM(1 / ETA, dual="gradient"), given, seed=seed)
        assert_same(same.trajectory, found.trajectory)


@pytest.mark.parametrize("members", ["all", "seen"])
def test_all_clients_are_members_after_an_initial_round(members):
    given = federation(73, weights=WEIGHTS)
    options = {"sampler": fa.UniformSampling(2), "seed": 1, "rounds": 8}
    plain = run(fa.FedADMM(RHO, dual="gradient"), given, **options)
    both = run(fa.FedADMM(RHO, members=members, dual="gradient"), given, **options)
    assert_same(plain.trajectory, both.trajectory)
    first, *_ = snapshots(fa.FedADMM(RHO, dual="gradient"), given, rounds=1)
    for i, client in enumerate(first.clients):
        assert_same(client.y, -given.gradient(i, given.start))


@pytest.mark.parametrize(
    "method", [fa.FedADMM(RHO, dual="gradient"), fa.FedPD(ETA, dual="gradient")]
)
def test_a_run_that_starts_at_the_optimum_stays_there(method):
    """Every client already agrees; with duals of zero the first round moves away."""
    given = federation(74, weights=WEIGHTS)
    options = {"initial": torch.from_numpy(given.optimum), "rounds": 10}
    found = run(method, given, **options)
    assert np.abs(np.array(found.trajectory) - given.optimum).max() < 1e-12
    away = run(fa.FedADMM(RHO), given, sampler=fa.UniformSampling(2), **options)
    assert np.abs(np.array(away.trajectory) - given.optimum).max() > 1e-2


@pytest.mark.parametrize("dual", ["zero", "gradient"])
def test_gongs_bound_loses_the_term_of_the_start(dual):
    options = {"clients": 6, "dimension": 4, "smoothness": 1.0}
    problem = load("quadratics", **options)
    facts, rho = problem.facts, 4.0
    x0 = torch.zeros(4, dtype=torch.float64)
    gap = float(problem.value(x0)) - facts.infimum
    gradients = [client.gradient(x0).square().sum() for client in problem.clients]
    mean = 0.0 if dual == "gradient" else float(sum(gradients)) / 6
    found = certified(
        fa.FedADMM(rho, dual=dual),
        problem,
        theorem="gong",
        solver=fa.ExactSolver(),
        sampler=fa.UniformSampling(2),
        initial=x0,
    )
    measured, bounds = curves(found)
    expected = [gong_bound(1.0, rho, 1 / 3, t, gap, start_gradient=mean) for t in range(1, 16)]
    assert bounds == pytest.approx(expected, rel=1e-9)
    assert all(value <= bound for value, bound in zip(measured, bounds, strict=True))


def test_a_numeric_step_is_rejected():
    with pytest.raises(ParameterError, match=naming("step 1.0 'tracking' dual")):
        fa.FedADMM(RHO, step=1.0, dual="gradient")
    with pytest.raises(ParameterError, match=naming("dual 'gradient' 'zero'")):
        fa.algorithms.FedADMMReleased(RHO, dual="gradient")
