"""Where the methods go on strongly convex problems whose optimum is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given as hypothesis_given, settings, strategies as st

import fedadmm as fa
from fedadmm.core.rng import derive, uniform
from support import reference
from support.federations import WEIGHTS, distance, federation, run, snapshots, weighted_mean

EXACT = {"solver": fa.ExactSolver()}
SMOOTH = {"solver": fa.GradientDescent(0.2), "stop": fa.Steps(5)}
CRITERION = {"solver": fa.GradientDescent(0.2)}
EVERYBODY, SOME = fa.FullParticipation(), fa.UniformSampling(3)

METHODS = {
    "FedADMM": (fa.FedADMM(1.5), SOME, EXACT),
    "FedADMM inexact": (fa.FedADMM(1.5), SOME, SMOOTH),
    "FedADMM seen": (fa.FedADMM(1.5, members="seen"), SOME, EXACT | {"start": "current"}),
    "FedADMM-In": (fa.FedADMMIn(1.5), SOME, EXACT),
    "FedADMM-In inexact": (fa.FedADMMIn(1.5), SOME, {"solver": fa.GradientDescent(0.2)}),
    "FedADMM-In with memory": (fa.algorithms.FedADMMInReleased(1.5), SOME, EXACT),
    "FedADMM-InSa": (fa.FedADMMInSa(1.5), SOME, EXACT),
    "FedDR": (fa.FedDR(0.7, 1.5), SOME, EXACT),
    "FedDR prox": (fa.FedDR(0.7, init="prox"), SOME, EXACT),
    "FedDR-II": (fa.FedDRII(0.7), SOME, EXACT),
    "FedSplit": (fa.FedSplit(0.7), EVERYBODY, EXACT),
    "FedPD": (fa.FedPD(0.7), EVERYBODY, EXACT),
    "FedDyn": (fa.FedDyn(0.7), SOME, EXACT),
    "FedDyn inexact": (fa.FedDyn(0.7), EVERYBODY, SMOOTH),
    "SCAFFOLD 1": (fa.Scaffold(1), SOME, SMOOTH),
    "SCAFFOLD 2": (fa.Scaffold(2), SOME, SMOOTH),
}
COMPOSITE = [name for name, (method, _, _) in METHODS.items() if method.requirements.regularizer]
METHODS |= {
    f"{name} from {start}": (method, sampler, options | {"start": start})
    for name, method, sampler, options in (
        ("FedADMM", fa.FedADMM(1.5), SOME, SMOOTH),
        ("FedADMM-In", fa.FedADMMIn(1.5), SOME, CRITERION),
        ("FedADMM-InSa", fa.FedADMMInSa(1.5), SOME, CRITERION),
        ("FedDR", fa.FedDR(0.7), SOME, SMOOTH),
        ("FedDR-II", fa.FedDRII(0.7), SOME, SMOOTH),
        ("FedSplit", fa.FedSplit(0.7), EVERYBODY, SMOOTH),
        ("FedPD", fa.FedPD(0.7), EVERYBODY, SMOOTH),
    )
    for start in ("own", "current", "global")
}
"""The limit does not depend on where local work starts, when it is accurate enough."""


@pytest.mark.parametrize("method", METHODS)
def test_it_reaches_the_optimum_under_heterogeneity(method):
    given = federation(91, weights=WEIGHTS)
    algorithm, sampler, options = METHODS[method]
    aim = torch.from_numpy(given.optimum)
    assert distance(algorithm, given, aim, 200, sampler=sampler, **options) < 1e-6


@pytest.mark.parametrize("method", COMPOSITE)
@pytest.mark.parametrize("kind", ["l1", "box"])
def test_it_reaches_the_optimum_with_a_regularizer(method, kind):
    regularizer = fa.L1(0.4) if kind == "l1" else fa.regularizers.Box(-0.1, 0.3)
    given = federation(92, weights=WEIGHTS, regularizer=regularizer)
    if kind == "l1":
        optimum = reference.composite_optimum(
            given, lambda v, t: reference.soft_threshold(v, 0.4 * t)
        )
        assert (optimum == 0).any()
        assert (optimum != 0).any()
    else:
        optimum = reference.composite_optimum(given, lambda v, t: np.clip(v, -0.1, 0.3))
    algorithm, sampler, options = METHODS[method]
    aim = torch.from_numpy(optimum)
    assert distance(algorithm, given, aim, 200, sampler=sampler, **options) < 1e-6


@settings(max_examples=4)
@hypothesis_given(seed=st.integers(0, 2**20), steps=st.integers(2, 8), lr=st.floats(0.15, 0.3))
def test_fedavg_goes_to_its_own_fixed_point(seed, steps, lr):
    """K steps map theta to x_i + M_i (theta - x_i) with M_i = (I - lr A_i)^K and x_i = A_i^-1 b_i.

    The mean of these maps stands still where sum a_i (I - M_i) (theta - x_i) = 0.
    """
    given = federation(seed, weights=WEIGHTS)
    identity = np.eye(4)
    kept = [np.linalg.matrix_power(identity - lr * A, steps) for A in given.A]
    left = sum(a * (identity - M) for a, M in zip(given.a, kept, strict=True))
    right = sum(
        a * (identity - M) @ np.linalg.solve(A, b)
        for a, M, A, b in zip(given.a, kept, given.A, given.b, strict=True)
    )
    fixed_point = np.linalg.solve(left, right)
    options = {"solver": fa.GradientDescent(lr), "stop": fa.Steps(steps)}
    result = run(fa.FedAvg(), given, rounds=150, **options)
    np.testing.assert_allclose(result.params, fixed_point, atol=1e-8)
    assert np.linalg.norm(fixed_point - given.optimum) > 1e-3


def test_scaffold_stands_still_where_fedavg_does_not():
    given = federation(93)
    options = {"solver": fa.GradientDescent(0.2), "stop": fa.Steps(5), "rounds": 150}
    average = run(fa.FedAvg(), given, **options).params.numpy()
    controlled = run(fa.Scaffold(), given, **options).params.numpy()
    assert np.linalg.norm(average - given.optimum) > 1e-2
    assert np.linalg.norm(controlled - given.optimum) < 1e-9


def test_a_server_vector_that_is_not_the_mean_converges_to_a_biased_point():
    """A step that falls to tracking leaves an offset from the mean of the u_i for ever.

    Where the run stands still all w_i are theta, so sum a_i y_i = -rho * offset, and with
    y_i = -grad f_i the mean gradient at theta is rho * offset instead of zero.
    """
    given, rho = federation(94), 1.5
    method = fa.FedADMM(rho, step=fa.schedules.Geometric(1.0, 0.7, 2 / 5))
    last = snapshots(method, given, rounds=200, sampler=fa.UniformSampling(2))[-1]
    mean = weighted_mean(given.a, [client.w + client.y / rho for client in last.clients])
    offset = last.server.mean.numpy() - mean
    theta = last.theta.numpy()
    gradient = sum(given.a[i] * given.gradient(i, theta) for i in range(given.clients))
    assert np.linalg.norm(offset) > 1e-3
    np.testing.assert_allclose(gradient, rho * offset, atol=1e-6)


def test_fedpd_leaves_the_optimum_in_a_silent_round():
    """Without communication theta_i = w_i + eta y_i: the dual cancels, and the client makes a
    proximal step on its own f_i, away from consensus."""
    given, eta = federation(95), 0.7
    method = fa.FedPD(eta, 0.5)
    seed = 1
    silent = [uniform(derive(seed, "broadcast", t)) < 0.5 for t in range(30)]
    rounds = snapshots(method, given, rounds=30, seed=seed)
    checked = 0
    for t in range(1, 30):
        if silent[t - 1]:
            for i in range(given.clients):
                before = rounds[t - 1].clients[i].w.numpy()
                np.testing.assert_allclose(
                    rounds[t].clients[i].w, given.prox(i, before, eta), atol=1e-10
                )
            checked += 1
    assert checked > 5
    assert np.linalg.norm(rounds[-1].theta.numpy() - given.optimum) > 1e-3
