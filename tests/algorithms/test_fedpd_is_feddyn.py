"""FedPD without skipped rounds = FedDyn = FedADMM(tracking) when everybody takes part.

Zhang and Hong, On the connection between FedDyn and FedPD; and where it ends: under partial
participation FedDyn is not FedADMM.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as hypothesis_given, strategies as st

import fedadmm as fa
from fedadmm.core.rng import derive, uniform
from support import reference
from support.federations import (
    PARTIAL_SAMPLERS,
    ROUNDS,
    WEIGHTS,
    assert_same,
    federation,
    run,
    snapshots,
    stacked,
)


@hypothesis_given(seed=st.integers(0, 2**20), eta=st.floats(0.05, 5.0))
def test_fedpd_is_feddyn_under_full_participation(seed, eta):
    given = federation(seed, weights=WEIGHTS)
    assert_same(run(fa.FedPD(eta), given).trajectory, run(fa.FedDyn(eta), given).trajectory)


@hypothesis_given(seed=st.integers(0, 2**20), eta=st.floats(0.05, 5.0))
def test_fedadmm_is_fedpd_under_full_participation(seed, eta):
    given = federation(seed, weights=WEIGHTS)
    admm = run(fa.FedADMM(1 / eta), given)
    assert_same(admm.trajectory, run(fa.FedPD(eta), given).trajectory)


def test_the_duals_agree_in_every_round():
    given = federation(21, weights=WEIGHTS)
    eta = 0.8
    runs = [snapshots(m, given) for m in (fa.FedPD(eta), fa.FedDyn(eta), fa.FedADMM(1 / eta))]
    for pd, dyn, admm in zip(*runs, strict=True):
        assert_same([c.y for c in pd.clients], [c.y for c in dyn.clients])
        assert_same([c.y for c in pd.clients], [c.y for c in admm.clients])
        assert_same([c.w for c in pd.clients], [c.w for c in admm.clients])


@pytest.mark.parametrize("sampler", PARTIAL_SAMPLERS)
def test_feddyn_is_not_fedadmm_under_partial_participation(sampler):
    given = federation(22)
    options = {"sampler": PARTIAL_SAMPLERS[sampler], "rounds": 5}
    dyn, admm = run(fa.FedDyn(0.5), given, **options), run(fa.FedADMM(2.0), given, **options)
    assert np.abs(stacked(dyn.trajectory) - stacked(admm.trajectory)).max() > 1e-2


def test_by_how_much_they_differ_after_one_round():
    """Both add the mean dual of everybody; FedDyn moves with the mean of the participants only.

    theta_dyn - theta_admm = (1/|S| - 1/n) sum over S of (w - theta).
    """
    given = federation(23)
    cohort, eta, n = [1, 4], 0.5, 5
    sampler = fa.TraceSampling([cohort, [0, 2, 3]])
    dyn = run(fa.FedDyn(eta), given, rounds=1, sampler=sampler).params.numpy()
    admm = run(fa.FedADMM(1 / eta), given, rounds=1, sampler=sampler).params.numpy()
    moves = sum(given.prox(i, given.start, eta) - given.start for i in cohort)
    assert_same(dyn - admm, (1 / len(cohort) - 1 / n) * moves)


@pytest.mark.parametrize("members", ["all", "seen"])
def test_feddyn_under_partial_participation_against_its_formula(members):
    """h is the mean dual of all clients, or of those that have taken part so far."""
    given = federation(24)
    eta, n, sampler = 0.5, 5, fa.UniformSampling(2)
    result = run(fa.FedDyn(eta, members), given, sampler=sampler, seed=9)
    seen: set[int] = set()
    solve = reference.exact(given)
    y, theta = np.zeros_like(given.b), given.start.copy()
    for t in range(ROUNDS):
        cohort = sampler.sample(9, t, n)
        moves = [solve(i, theta, y[i], 1 / eta, theta) - theta for i in cohort]
        for i, move in zip(cohort, moves, strict=True):
            y[i] += move / eta
        seen |= set(cohort)
        h = y.mean(0) if members == "all" else y[sorted(seen)].mean(0)
        theta = theta + sum(moves) / len(cohort) + eta * h
        assert_same(result.trajectory[t].numpy(), theta)


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.7])
def test_fedpd_with_silent_rounds_against_a_direct_program(probability):
    given = federation(25, weights=WEIGHTS)
    seed = 6
    silent = [uniform(derive(seed, "broadcast", t)) < probability for t in range(ROUNDS)]
    assert any(silent) == (probability > 0)
    result = run(fa.FedPD(0.9, probability), given, seed=seed)
    assert_same(result.trajectory, reference.fedpd(given, 0.9, silent, reference.exact(given)))
    sent = [record["traffic"]["bytes_up"] > 0 for record in result.history]
    assert sent == [not skip for skip in silent]


def test_fedpd_with_silent_rounds_and_inexact_solves():
    given = federation(26)
    silent = [uniform(derive(8, "broadcast", t)) < 0.5 for t in range(ROUNDS)]
    solver, stop = fa.GradientDescent(0.1), fa.Steps(3)
    result = run(fa.FedPD(0.9, 0.5), given, seed=8, solver=solver, stop=stop, start="own")
    expected = reference.fedpd(given, 0.9, silent, reference.gradient_steps(given, 3, 0.1))
    assert_same(result.trajectory, expected)
