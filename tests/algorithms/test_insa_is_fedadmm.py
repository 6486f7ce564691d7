"""InSa with its adaptation off = FedADMM-In; with the same local solves = FedADMM(tracking)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedadmm as fa
from support.federations import SAMPLERS, WEIGHTS, assert_same, federation, run, snapshots
from support.models import small_federation

BETA = 1.4
OFF = 1e300
"""A mu that no ratio of residuals exceeds."""
REGULARIZERS = {
    "none": fa.regularizers.Zero(),
    "l1": fa.L1(0.3),
    "box": fa.regularizers.Box(-0.2, 0.4),
}


@pytest.mark.parametrize("sampler", ["full", "uniform", "bernoulli"])
@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_all_three_with_exact_solves(sampler, regularizer):
    given = federation(61, weights=WEIGHTS, regularizer=REGULARIZERS[regularizer])
    options = {"sampler": SAMPLERS[sampler], "seed": 5}
    insa = run(fa.FedADMMInSa(BETA, mu=OFF), given, **options)
    fixed = run(fa.FedADMMIn(BETA), given, **options)
    admm = run(fa.FedADMM(BETA), given, **options)
    assert all(torch.equal(a, b) for a, b in zip(insa.trajectory, fixed.trajectory, strict=True))
    assert_same(fixed.trajectory, admm.trajectory)


@pytest.mark.parametrize("start", ["own", "current", "global"])
@pytest.mark.parametrize("members", ["all", "seen"])
def test_all_three_with_a_fixed_number_of_epochs(start, members):
    given = federation(62, weights=WEIGHTS)
    options = {
        "sampler": fa.UniformSampling(2),
        "solver": fa.GradientDescent(0.15),
        "stop": fa.Epochs(4),
    }
    options["start"] = start
    insa = run(fa.FedADMMInSa(BETA, members, mu=OFF), given, **options)
    fixed = run(fa.FedADMMIn(BETA, members), given, **options)
    admm = run(fa.FedADMM(BETA, members=members), given, **options)
    assert_same(insa.trajectory, fixed.trajectory)
    assert_same(fixed.trajectory, admm.trajectory)


def test_all_three_on_a_network_with_mini_batches():
    problem = small_federation(weights=(1, 2, 3, 4))
    options = {
        "rounds": 8,
        "sampler": fa.UniformSampling(2),
        "solver": fa.SGD(0.1, batch_size=6, momentum=0.5),
        "stop": fa.Epochs(2),
        "keep_trajectory": True,
    }
    methods = (fa.FedADMMInSa(BETA, mu=OFF), fa.FedADMMIn(BETA), fa.FedADMM(BETA))
    insa, fixed, admm = (fa.simulate(m, problem, **options).trajectory for m in methods)
    assert_same(insa, fixed)
    assert_same(fixed, admm)


def test_the_stopping_rule_that_belongs_to_the_method_is_the_default():
    given = federation(63)
    solver = fa.GradientDescent(0.15)
    default = run(fa.FedADMMIn(BETA), given, rounds=5, solver=solver)
    explicit = run(
        fa.FedADMMIn(BETA), given, rounds=5, solver=solver, stop=fa.stopping.InSaCriterion()
    )
    one_epoch = run(fa.FedADMMIn(BETA), given, rounds=5, solver=solver, stop=fa.Epochs(1))
    assert torch.equal(default.params, explicit.params)
    assert not torch.equal(default.params, one_epoch.params)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("members", ["all", "seen"])
def test_the_server_holds_the_sums_with_the_penalties_that_were_used(sampler, members):
    """theta = sum a_i (beta_i w_i + y_i) / sum a_i beta_i; a new beta_i waits for its round."""
    given = federation(64, weights=WEIGHTS)
    method = fa.FedADMMInSa(0.05, members=members, mu=1.5, tau=3.0)
    rounds = snapshots(method, given, sampler=SAMPLERS[sampler], seed=7)
    used = dict.fromkeys(range(given.clients), 0.05)
    following = dict(used)
    changed = False
    for snapshot in rounds:
        for i in snapshot.record["cohort"]["clients"]:
            used[i] = following[i]  # the penalty this round was solved with
            following[i] = float(snapshot.clients[i].beta)
            changed |= following[i] != used[i]
        ids = range(given.clients) if members == "all" else sorted(snapshot.seen)
        if not ids:
            continue
        numerator = sum(
            given.a[i] * (used[i] * snapshot.clients[i].w + snapshot.clients[i].y) for i in ids
        )
        denominator = sum(given.a[i] * used[i] for i in ids)
        assert_same([snapshot.server.numerator], [numerator])
        assert abs(float(snapshot.server.denominator) - denominator) < 1e-10
        assert_same([snapshot.theta], [numerator / denominator])
    assert changed


def test_the_penalty_follows_the_residuals_by_the_rule():
    """beta grows by tau when d > mu p, shrinks when p > mu d, p = beta ||w+ - w||."""
    given = federation(65)
    mu, tau, low, high = 2.0, 3.0, 0.02, 20.0
    method = fa.FedADMMInSa(0.05, mu=mu, tau=tau, beta_min=low, beta_max=high)
    rounds = snapshots(method, given, sampler=fa.UniformSampling(3), seed=1)
    theta, before = given.initial, [method.init_client(given.initial)] * given.clients
    moves = set()
    for snapshot in rounds:
        for i in snapshot.record["cohort"]["clients"]:
            old, new = before[i], snapshot.clients[i]
            beta = float(old.beta)
            p, d = beta * float((new.w - old.w).norm()), float((new.w - theta).norm())
            factor = tau if d > mu * p else 1 / tau if p > mu * d else 1.0
            moves.add(factor)
            assert float(new.beta) == pytest.approx(min(max(beta * factor, low), high), rel=1e-12)
        theta, before = snapshot.theta, snapshot.clients
    assert moves == {tau, 1 / tau, 1.0}


def test_server_memory_is_a_weighted_mean_of_new_and_old():
    given = federation(66)
    delta = 0.25
    plain, remembering = (
        snapshots(fa.algorithms.FedADMMInReleased(BETA, memory=m), given, rounds=1)[0]
        for m in (0.0, delta)
    )
    assert_same([remembering.theta], [(plain.theta + delta * given.initial) / (1 + delta)])


def full_knowledge(given, cohorts, server_beta, mu, tau, low, high):
    """InSa with a server that knows every (u_i, lambda_i, beta_i), in the letters of the slides.

    (S3) is solved anew in every round; `counted` is the penalty that a client has in it.
    """
    n, d = given.b.shape
    u, lam, z = np.tile(given.start, (n, 1)), np.zeros((n, d)), given.start.copy()
    beta = np.full(n, BETA)
    counted = beta.copy()
    trajectory = []
    for cohort in cohorts:
        following = beta.copy()
        for i in cohort:
            new = np.linalg.solve(
                given.A[i] + beta[i] * np.eye(d), given.b[i] + lam[i] + beta[i] * z
            )
            p, dual = beta[i] * np.linalg.norm(new - u[i]), np.linalg.norm(new - z)
            grown = beta[i] * tau if dual > mu * p else beta[i]
            following[i] = np.clip(beta[i] / tau if p > mu * dual else grown, low, high)
            lam[i] = lam[i] - beta[i] * (new - z)
            u[i], counted[i] = new, beta[i]
        if cohort:
            share = given.a * counted
            z = (share @ u - given.a @ lam) / share.sum()
        beta = following
        if server_beta == "next":
            counted = beta.copy()
        trajectory.append(z.copy())
    return np.array(trajectory), beta


@pytest.mark.parametrize("server_beta", ["solved", "next"])
@pytest.mark.parametrize("sampler", ["uniform", "bernoulli", "cyclic"])
def test_absent_clients_count_with_their_last_penalty_or_as_released_with_their_next(
    server_beta, sampler
):
    given = federation(64, weights=WEIGHTS)
    scheme = SAMPLERS[sampler]
    cohorts = [list(scheme.sample(5, t, given.clients)) for t in range(50)]
    rule = {"mu": 1.2, "tau": 2.0}
    expected, beta = full_knowledge(given, cohorts, server_beta, **rule, low=0.1, high=20.0)
    options = {"beta_min": 0.1, "beta_max": 20.0} | rule
    method = fa.FedADMMInSa(BETA, **options)
    if server_beta == "next":
        method = fa.algorithms.FedADMMInSaReleased(BETA, **options, memory=0.0)
    assert len(set(beta)) > 1
    assert_same(run(method, given, sampler=scheme, seed=5).trajectory, expected)


def test_with_full_participation_both_definitions_of_the_penalty_agree():
    given = federation(65)
    solved = run(fa.FedADMMInSa(BETA, mu=1.2), given).trajectory
    following = run(fa.algorithms.FedADMMInSaReleased(BETA, mu=1.2, memory=0.0), given).trajectory
    assert_same(solved, following)
