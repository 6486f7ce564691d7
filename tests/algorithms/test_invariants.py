"""What holds in every round, whoever takes part."""

from __future__ import annotations

import numpy as np
import pytest

import fedadmm as fa
from support import reference
from support.federations import (
    SAMPLERS,
    WEIGHTS,
    assert_same,
    federation,
    snapshots,
    stacked,
    weighted_mean,
)

REGULARIZERS = {"none": fa.regularizers.Zero(), "l1": fa.L1(0.3)}
EXACT_DUALS = {
    "FedADMM": fa.FedADMM(1.2),
    "FedADMM-In": fa.FedADMMIn(1.2),
    "FedADMM-InSa": fa.FedADMMInSa(1.2, mu=1.5),
    "FedDyn": fa.FedDyn(0.8),
    "FedPD": fa.FedPD(0.8),
    "FedPD with silent rounds": fa.FedPD(0.8, 0.4),
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_fedadmm_tracks_the_mean_of_all_augmented_models(sampler, regularizer):
    given = federation(81, weights=WEIGHTS, regularizer=REGULARIZERS[regularizer])
    rho = 1.2
    for snapshot in snapshots(fa.FedADMM(rho), given, sampler=SAMPLERS[sampler]):
        u = [client.w + client.y / rho for client in snapshot.clients]
        assert_same(snapshot.server.mean.numpy(), weighted_mean(given.a, u))


@pytest.mark.parametrize("start", ["own", "current"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_members_seen_is_the_mean_over_past_participants(sampler, start):
    given = federation(82, weights=WEIGHTS)
    rho = 1.2
    method = fa.FedADMM(rho, members="seen")
    for snapshot in snapshots(method, given, sampler=SAMPLERS[sampler], start=start):
        ids = sorted(snapshot.seen)
        if ids:
            u = stacked([snapshot.clients[i].w + snapshot.clients[i].y / rho for i in ids])
            shares = given.a[ids]
            assert_same(snapshot.server.mean.numpy(), shares @ u / shares.sum())
            assert abs(float(snapshot.server.members) - shares.sum()) < 1e-12


@pytest.mark.parametrize("init", ["start", "prox"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_feddr_tracks_the_mean_of_all_reflected_models(sampler, init):
    given = federation(83, weights=WEIGHTS, regularizer=fa.L1(0.3))
    method = fa.FedDR(0.8, alpha=1.6, init=init)
    for snapshot in snapshots(method, given, sampler=SAMPLERS[sampler]):
        xhat = [2 * client.x - client.v for client in snapshot.clients]
        assert_same(snapshot.server.xtilde.numpy(), weighted_mean(given.a, xhat))


@pytest.mark.parametrize("members", ["all", "seen"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_feddyn_tracks_the_mean_of_all_duals(sampler, members):
    given = federation(84, weights=WEIGHTS)
    method = fa.FedDyn(0.8, members)
    for snapshot in snapshots(method, given, sampler=SAMPLERS[sampler]):
        duals = [client.y for client in snapshot.clients]
        assert_same(snapshot.server.h.numpy(), weighted_mean(given.a, duals))
        counted = given.a.sum() if members == "all" else given.a[sorted(snapshot.seen)].sum()
        assert abs(float(snapshot.server.members) - counted) < 1e-12


@pytest.mark.parametrize("method", [m for m in EXACT_DUALS if m != "FedDyn"])
def test_after_an_exact_solve_the_dual_is_minus_the_gradient(method):
    """y_i = -grad f_i(w_i)."""
    given = federation(85)
    algorithm = EXACT_DUALS[method]
    sampler = (
        fa.FullParticipation()
        if algorithm.requirements.full_participation
        else fa.UniformSampling(2)
    )
    for snapshot in snapshots(algorithm, given, sampler=sampler):
        for i in snapshot.seen:
            client = snapshot.clients[i]
            assert_same(client.y.numpy(), -given.gradient(i, client.w.numpy()))


def test_after_an_exact_solve_the_dual_of_feddyn_is_minus_the_gradient():
    """FedDyn keeps no w_i, so it is solved for here from what the client had and received."""
    given, eta = federation(85), 0.8
    solve = reference.exact(given)
    duals, theta = np.zeros_like(given.b), given.start
    for snapshot in snapshots(fa.FedDyn(eta), given, sampler=fa.UniformSampling(2)):
        for i in snapshot.record["cohort"]["clients"]:
            w = solve(i, theta, duals[i], 1 / eta, theta)
            duals[i] = snapshot.clients[i].y.numpy()
            assert_same(duals[i], -given.gradient(i, w))
        theta = snapshot.theta.numpy()


@pytest.mark.parametrize("method", [m for m in EXACT_DUALS if "silent" not in m])
def test_the_weighted_sum_of_duals_vanishes_at_convergence(method):
    given = federation(86, weights=WEIGHTS)
    algorithm = EXACT_DUALS[method]
    sampler = (
        fa.FullParticipation()
        if algorithm.requirements.full_participation
        else fa.UniformSampling(3)
    )
    rounds = snapshots(algorithm, given, rounds=150, sampler=sampler)
    sums = [
        float(np.linalg.norm(weighted_mean(given.a, [client.y for client in snapshot.clients])))
        for snapshot in rounds
    ]
    assert max(sums[:10]) > 1e-2
    assert sums[-1] < 1e-6
    for i, client in enumerate(rounds[-1].clients):
        np.testing.assert_allclose(client.y, -given.gradient(i, given.optimum), atol=1e-5)
