"""FedMid and FedDualAvg: their recursions in numpy, and what they reach of a lasso's optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedadmm as fa
from support import reference
from support.federations import (
    ROUNDS,
    SAMPLERS,
    WEIGHTS,
    Federation,
    assert_same,
    distance,
    federation,
    run,
    snapshots,
)
from support.rejections import naming

LAM, LR = 0.3, 0.08
STEPS = (1, 4, 2, 3, 5)
WORK: dict[str, Any] = {"solver": fa.GradientDescent(LR), "stop": fa.Steps(STEPS)}
ONE: dict[str, Any] = {"solver": fa.GradientDescent(LR), "stop": fa.Steps(1)}
PROXES = {
    "l1": (fa.L1(LAM), lambda v, t: reference.soft_threshold(v, LAM * t)),
    "box": (fa.regularizers.Box(-0.4, 0.5), lambda v, t: np.clip(v, -0.4, 0.5) if t else v),
    "group": (fa.regularizers.GroupLasso(LAM, (2, 2)), lambda v, t: _groups(v, LAM * t)),
}


def _groups(v, threshold):
    parts = []
    for part in (v[:2], v[2:]):
        size = np.linalg.norm(part)
        parts.append(part * max(0.0, 1 - np.sqrt(2) * threshold / size))
    return np.concatenate(parts)


@pytest.mark.parametrize("server_prox", ["printed", "none"])
@pytest.mark.parametrize("g", PROXES)
@pytest.mark.parametrize("sampler", ["full", "uniform", "bernoulli"])
def test_fedmid_against_the_recursion(server_prox, g, sampler):
    regularizer, prox = PROXES[g]
    given, chosen = federation(121, weights=WEIGHTS, regularizer=regularizer), SAMPLERS[sampler]
    result = run(fa.FedMid(0.9, server_prox), given, sampler=chosen, seed=3, **WORK)
    theta, trajectory = given.start.copy(), []
    for t in range(ROUNDS):
        cohort = list(chosen.sample(3, t, 5))
        if cohort:
            p = given.a[cohort] / given.a[cohort].sum()
            mean, count = np.zeros_like(theta), 0.0
            for share, i in zip(p, cohort, strict=True):
                w = theta.copy()
                for _ in range(STEPS[i]):
                    w = prox(w - LR * given.gradient(i, w), LR)
                mean, count = mean + share * (w - theta), count + share * STEPS[i]
            theta = theta + 0.9 * mean
            if server_prox == "printed":
                theta = prox(theta, 0.9 * LR * count)
        trajectory.append(theta.copy())
    assert_same(result.trajectory, np.array(trajectory))


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("g", PROXES)
@pytest.mark.parametrize("sampler", ["full", "uniform", "bernoulli"])
def test_feddualavg_against_the_recursion(momentum, g, sampler):
    """With momentum g is counted as often as the gradients are."""
    regularizer, prox = PROXES[g]
    given, chosen = federation(122, weights=WEIGHTS, regularizer=regularizer), SAMPLERS[sampler]
    work = WORK | {"solver": fa.SGD(LR, batch_size=None, momentum=momentum)}
    taken = snapshots(fa.FedDualAvg(0.9), given, sampler=chosen, seed=3, **work)
    z, r, rows = given.start.copy(), 0.0, []
    for t in range(ROUNDS):
        cohort = list(chosen.sample(3, t, 5))
        if cohort:
            p = given.a[cohort] / given.a[cohort].sum()
            mean, reach = np.zeros_like(z), 0.0
            for share, i in zip(p, cohort, strict=True):
                own, counted, velocity, pace = z.copy(), r, np.zeros_like(z), 0.0
                for _ in range(STEPS[i]):
                    velocity = momentum * velocity + LR * given.gradient(i, prox(own, counted))
                    pace = momentum * pace + LR
                    own, counted = own - velocity, counted + pace
                mean, reach = mean + share * (own - z), reach + share * (counted - r)
            z, r = z + 0.9 * mean, r + 0.9 * reach
        rows.append((z.copy(), prox(z, r)))
    expected = np.array(rows)
    assert_same([snapshot.server.z for snapshot in taken], expected[:, 0])
    assert_same([snapshot.theta for snapshot in taken], expected[:, 1])


@pytest.mark.parametrize("method", [fa.FedMid(), fa.FedMid(server_prox="none"), fa.FedDualAvg()])
@pytest.mark.parametrize("sampler", ["full", "uniform"])
def test_without_g_they_are_fedavg(method, sampler):
    given = federation(123, weights=WEIGHTS)
    options = {"solver": fa.SGD(0.1, momentum=0.4), "stop": fa.Steps(STEPS)}
    options["sampler"] = SAMPLERS[sampler]
    plain = run(fa.FedAvg(), given, **options).trajectory
    assert_same(run(method, given, **options).trajectory, plain)


def lasso(seed: int, lam: float, *, identical: bool) -> Federation:
    """A quadratic lasso; identical clients are five times the mean of the different ones."""
    given = federation(seed, weights=WEIGHTS, regularizer=fa.L1(lam))
    if not identical:
        return given
    A = np.tile(np.tensordot(given.a, given.A, 1), (5, 1, 1))
    b = np.tile(given.a @ given.b, (5, 1))
    clients = [fa.Quadratic(torch.from_numpy(A[i]), torch.from_numpy(b[i])) for i in range(5)]
    return given._replace(A=A, b=b, problem=fa.Problem(clients, fa.L1(lam), WEIGHTS))


def optimum(given: Federation, lam: float = LAM) -> torch.Tensor:
    found = reference.composite_optimum(given, lambda v, t: reference.soft_threshold(v, lam * t))
    assert (found == 0).any()  # it is sparse
    return torch.from_numpy(found)


def error(method: Any, given: Federation, **work: Any) -> float:
    return distance(method, given, optimum(given), 500, near=1e-8, **work)


def test_feddualavg_with_one_step_reaches_the_optimum_of_a_lasso():
    given = lasso(124, LAM, identical=False)
    assert error(fa.FedDualAvg(), given, **ONE) < 1e-8
    assert error(fa.FedMid(server_prox="none"), given, **ONE) > 1e-3
    assert error(fa.FedMid(), given, **ONE) > 1e-3


def test_identical_clients_reach_the_optimum_of_a_lasso_with_any_number_of_steps():
    given, several = lasso(124, LAM, identical=True), ONE | {"stop": fa.Steps(4)}
    assert error(fa.FedDualAvg(), given, **several) < 1e-8
    assert error(fa.FedMid(server_prox="none"), given, **several) < 1e-8


def test_the_server_s_prox_of_fedmid_counts_g_twice():
    """With one step of identical clients the limit is that of f + 2 g."""
    given = lasso(124, LAM, identical=True)
    aim = optimum(given, 2 * LAM)
    assert distance(fa.FedMid(), given, aim, 500, near=1e-8, **ONE) < 1e-8


def test_the_drift_of_feddualavg_vanishes_with_the_rate():
    given, errors = lasso(124, LAM, identical=False), []
    for lr in (0.04, 0.02):
        options = {"solver": fa.GradientDescent(lr), "stop": fa.Steps(4)}
        errors.append(error(fa.FedDualAvg(), given, **options))
    assert 1e-3 < errors[1] < 0.65 * errors[0]


@pytest.mark.parametrize("method", [fa.FedMid(), fa.FedDualAvg()])
def test_a_rule_that_measures_gradients_is_rejected(method):
    given = federation(125, regularizer=fa.L1(0.1))
    with pytest.raises(
        fa.errors.CompatibilityError,
        match=naming(f"algorithm {type(method).__name__} GradientTolerance"),
    ):
        run(method, given, 1, solver=fa.SGD(0.1), stop=fa.stopping.GradientTolerance(1e-3))
