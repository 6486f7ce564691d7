"""AdaBest against the algorithm as printed, and where its bias leads."""

from __future__ import annotations

import numpy as np
import pytest

import fedadmm as fa
from support.federations import (
    ROUNDS,
    SAMPLERS,
    WEIGHTS,
    assert_same,
    federation,
    run,
    snapshots,
    stacked,
)

LR, K = 0.1, 3
WORK = {"solver": fa.GradientDescent(LR), "stop": fa.Steps(K)}


def direct(given, cohorts, mu, beta):
    """Algorithm 1 of the paper: theta and m after every round, t counting rounds with replies."""
    n, d = given.b.shape
    theta, before = given.start.copy(), given.start.copy()
    h, last, t, rows = np.zeros((n, d)), np.zeros(n), 0, []
    for cohort in cohorts:
        if cohort:
            t += 1
            models = []
            for i in cohort:
                w = theta.copy()
                for _ in range(K):
                    w = w - LR * (given.gradient(i, w) - h[i])
                h[i] = h[i] / (t - last[i]) + mu * (theta - w)
                last[i] = t
                models.append(w)
            mean = given.a[cohort] @ np.array(models) / given.a[cohort].sum()
            theta, before = mean - beta * (before - mean), mean
        rows.append((theta.copy(), before.copy()))
    return np.array(rows)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_against_the_algorithm_as_printed(sampler):
    given, chosen = federation(81, weights=WEIGHTS), SAMPLERS[sampler]
    taken = snapshots(fa.AdaBest(0.7, 0.6), given, sampler=chosen, seed=3, **WORK)
    expected = direct(given, [list(chosen.sample(3, t, 5)) for t in range(ROUNDS)], 0.7, 0.6)
    assert_same([snapshot.theta for snapshot in taken], expected[:, 0])
    assert_same([snapshot.server.m for snapshot in taken], expected[:, 1])


@pytest.mark.parametrize(("mu", "beta"), [(0.8, 0.0), (0.8, 0.5), (0.3, 0.8)])
def test_with_full_participation_the_limit_depends_on_the_initial_model(mu, beta):
    """The limit is argmin f(x) + (mu (1 - beta) / 2) ||x - x0||^2, for both theta and m."""
    given = federation(82, weights=WEIGHTS)
    last = snapshots(fa.AdaBest(mu, beta), given, 900, **WORK)[-1]
    A, b = np.tensordot(given.a, given.A, 1), given.a @ given.b
    tie = mu * (1 - beta)
    limit = np.linalg.solve(A + tie * np.eye(len(b)), b + tie * given.start)
    assert_same([last.theta, last.server.m], np.array([limit, limit]))
    assert np.linalg.norm(limit - given.optimum) > 1e-2


def test_without_memory_it_is_nesterovs_server_at_the_point_ahead():
    """With mu = 0, theta moves as FedAvgM's with nesterov=True."""
    given = federation(83)
    options = WORK | {"sampler": fa.UniformSampling(2)}
    plain = run(fa.AdaBest(0.0, 0.7), given, **options)
    ahead = run(fa.FedAvgM(0.7, nesterov=True), given, **options)
    assert_same(stacked(plain.trajectory), ahead.trajectory)
