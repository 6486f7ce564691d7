"""The dual value and the gap: against conjugates by hand, never negative, and zero in the limit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.run.diagnostics import duality
from fedadmm.study.config import resolve
from support.federations import WEIGHTS, Array, Federation, federation, run
from support.rejections import naming
from support.thinning import thinned

LOOK: Any = {"evaluate": False, "callbacks": [fa.Diagnostics(1, clients=0, duality=True)]}
METHODS = {
    "FedADMM": fa.FedADMM(3.0),
    "FedADMM-In": fa.FedADMMIn(3.0),
    "FedDR": fa.FedDR(1 / 3.0),
    "FedDR-II": fa.FedDRII(1 / 3.0),
}
# g with the projected gradient step that minimises F, written out again.
REGULARIZERS = {
    "none": (fa.regularizers.Zero(), lambda v, t: v, lambda x: 0.0),
    "l1": (
        fa.L1(0.4),
        lambda v, t: np.sign(v) * np.maximum(np.abs(v) - 0.4 * t, 0),
        lambda x: 0.4 * np.abs(x).sum(),
    ),
    "l2": (fa.regularizers.SquaredL2(0.7), lambda v, t: v / (1 + 0.7 * t), lambda x: 0.35 * x @ x),
    "box": (fa.regularizers.Box(-0.2, 0.3), lambda v, t: np.clip(v, -0.2, 0.3), lambda x: 0.0),
    "ball": (
        fa.regularizers.L2Ball(0.5),
        lambda v, t: v / max(1, np.linalg.norm(v) / 0.5),
        lambda x: 0.0,
    ),
}


def mean_value(given: Federation, x: Array) -> float:
    values = [x @ given.A[i] @ x / 2 - given.b[i] @ x for i in range(given.clients)]
    return float(given.a @ values)


def infimum(given: Federation, name: str) -> float:
    """F* by proximal gradient steps on the pooled quadratic."""
    _, prox, value = REGULARIZERS[name]
    A, b = np.tensordot(given.a, given.A, 1), given.a @ given.b
    x, step = np.zeros(len(b)), 1 / np.linalg.eigvalsh(A)[-1]
    for _ in range(3000):
        x = prox(x - step * (A @ x - b), step)
    return mean_value(given, x) + float(value(x))


@pytest.mark.parametrize(("method", "name"), thinned(3, METHODS, REGULARIZERS))
def test_the_gap_encloses_the_infimum_and_closes(method, name):
    given = federation(31, weights=WEIGHTS, regularizer=REGULARIZERS[name][0])
    options = {"sampler": fa.UniformSampling(3), "seed": 4, **LOOK}
    history = run(METHODS[method], given, 200, **options).history
    best = infimum(given, name)
    for record in history:
        assert record["callbacks"]["dual_value"] <= best + 1e-12
        assert (
            record["callbacks"]["duality_gap"] + record["callbacks"]["dual_value"] >= best - 1e-12
        )
    assert history[0]["callbacks"]["duality_gap"] > 1e-2
    assert abs(history[-1]["callbacks"]["duality_gap"]) < 1e-9


def conjugate(A: Array, b: Array, slope: Array) -> float:
    """f*(s) of x'Ax/2 - b'x."""
    return float((slope + b) @ np.linalg.solve(A, slope + b) / 2)


def test_the_dual_value_by_hand():
    """With an l1 norm g* is 0 where every entry of the mean dual is at most lam, and infinite else.

    The mean is moved to the point of that box which the prox finds, by the same vector for all.
    """
    lam, step = 0.4, 0.5
    given = federation(32, weights=WEIGHTS, regularizer=fa.L1(lam))
    draws = np.random.default_rng(1)
    theta, y = draws.normal(size=4), draws.normal(size=(5, 4))
    mean = given.a @ y
    inside = np.clip(theta / step + mean, -lam, lam)  # Moreau: the prox's other half
    assert not np.allclose(inside, mean)
    moved = y + inside - mean
    by_hand = -sum(
        given.a[i] * conjugate(given.A[i], given.b[i], -moved[i]) for i in range(given.clients)
    )
    found = duality(given.problem, torch.from_numpy(theta), list(torch.from_numpy(y)), step)
    assert found.dual == pytest.approx(by_hand, rel=1e-12)
    assert found.primal == pytest.approx(mean_value(given, theta) + lam * np.abs(theta).sum())


def test_the_printed_dual_lacks_a_factor():
    """(9) has g*(sum z_i): at the solution of a lasso that is infinite, g*(mean z_i) is not."""
    lam = 0.4
    given = federation(33, regularizer=fa.L1(lam))
    result = run(fa.FedADMM(3.0), given, 300)
    z = np.array([result.clients[i].y.numpy() for i in range(given.clients)])
    assert np.abs(z.mean(0)).max() <= lam + 1e-9
    assert np.abs(z.sum(0)).max() > lam * 1.5
    assert np.abs(result.params.numpy()).max() > 0.01  # not the trivial solution


def rows(count: int) -> fa.LeastSquares:
    draws = torch.Generator().manual_seed(count)
    features = torch.randn(count, 3, generator=draws, dtype=torch.float64)
    return fa.LeastSquares(features, torch.randn(count, generator=draws, dtype=torch.float64))


def test_losses_that_are_flat_in_some_directions():
    """Two rows of three features: along the third direction only the slope zero has a minimum."""
    thin, wide = rows(2), rows(8)
    theta = torch.ones(3, dtype=torch.float64)
    own = [-thin.gradient(theta)]
    problem = fa.Problem([thin])
    # Without g the mean dual is moved to zero, whose minimum is that of the rows themselves: 0.
    assert duality(problem, theta, own, 1.0).dual == pytest.approx(0.0, abs=1e-12)
    pair = fa.Problem([thin, wide])
    apart = [torch.ones(3, dtype=torch.float64), -torch.ones(3, dtype=torch.float64)]
    assert duality(pair, theta, apart, 1.0).dual == -math.inf
    assert duality(pair, theta, apart, 1.0).gap == math.inf


def test_a_concave_client_has_no_dual_value():
    clients = [
        fa.Quadratic(a * torch.eye(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
        for a in (3.0, -1.0)
    ]
    zero = torch.zeros(1, dtype=torch.float64)
    assert duality(fa.Problem(clients), zero, [zero, zero], 1.0).dual == -math.inf


def test_single_precision_is_enough_to_see_the_gap_close():
    given = federation(34, regularizer=fa.L1(0.2))
    single = {**LOOK, "initial": given.initial.float()}
    gaps = [
        r["callbacks"]["duality_gap"] for r in run(fa.FedADMM(3.0), given, 200, **single).history
    ]
    assert gaps[0] > 0.1
    assert abs(gaps[-1]) < 1e-4


def test_it_is_recorded_from_a_configuration():
    tree: dict[str, Any] = {
        "problem": {"name": "quadratics"},
        "algorithm": {"name": "fedadmm"},
        "callbacks": [{"name": "diagnostics", "every": 2, "clients": 0, "duality": True}],
    }
    assert resolve(tree).callbacks == (fa.Diagnostics(2, 0, True),)


def test_a_duality_gap_needs_all_clients_and_known_conjugates():
    given = federation(35)
    with pytest.raises(
        fa.errors.ParameterError,
        match=naming("Diagnostics duality True clients 5 0"),
    ):
        fa.Diagnostics(duality=True)
    rows = torch.ones(3, 4, dtype=torch.float64)
    logistic = fa.LogisticRegression(rows, torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64))
    problem = fa.Problem([logistic], initial=given.initial)
    with pytest.raises(
        fa.errors.CompatibilityError,
        match=naming("duality LogisticRegression Quadratic LeastSquares"),
    ):
        fa.simulate(fa.FedADMM(1.0), problem, 1, solver=fa.GradientDescent(0.1), **LOOK)
