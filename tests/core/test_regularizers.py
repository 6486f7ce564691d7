"""Values by hand and proximal operators against a numerical minimisation."""

from __future__ import annotations

import math

import numpy as np
import pyproximal
import pytest
import torch
from scipy.optimize import minimize

import fedadmm as fa
from support.federations import federation, run

SIZES = (2, 1, 3)
BOUNDS = {
    "Box": (-0.4, 0.9),
    "NonNegative": (0.0, None),
}
ROWS = {
    "Zero": fa.regularizers.Zero(),
    "L1": fa.L1(0.6),
    "L2": fa.regularizers.L2(0.6),
    "LInf": fa.regularizers.LInf(0.6),
    "SquaredL2": fa.regularizers.SquaredL2(0.6),
    "ElasticNet": fa.regularizers.ElasticNet(0.4, 0.7),
    "GroupLasso": fa.regularizers.GroupLasso(0.5, SIZES),
    "Box": fa.regularizers.Box(-0.4, 0.9),
    "NonNegative": fa.regularizers.NonNegative(),
    "L2Ball": fa.regularizers.L2Ball(1.3),
}
POINTS = np.random.default_rng(4).normal(scale=1.5, size=(4, 6))


def penalty(name: str, u: np.ndarray) -> float:
    """g written out again; indicators are left to the constraints of the minimiser."""
    parts = np.split(u, np.cumsum(SIZES)[:-1])
    return float(
        {
            "L1": 0.6 * np.abs(u).sum(),
            "L2": 0.6 * np.linalg.norm(u),
            "LInf": 0.6 * np.abs(u).max(),
            "SquaredL2": 0.3 * u @ u,
            "ElasticNet": 0.4 * np.abs(u).sum() + 0.35 * u @ u,
            "GroupLasso": 0.5 * sum(math.sqrt(len(part)) * np.linalg.norm(part) for part in parts),
        }.get(name, 0.0)
    )


@pytest.mark.parametrize("name", ROWS)
def test_value(name):
    for point in POINTS:
        value = float(ROWS[name].value(torch.from_numpy(point)))
        if math.isinf(value):
            assert name in ("Box", "NonNegative", "L2Ball")
        else:
            assert value == pytest.approx(penalty(name, point), abs=1e-12)


def test_indicators_are_infinite_outside_only():
    inside, outside = torch.tensor([0.5, 0.0]), torch.tensor([0.5, -0.1])
    for regularizer in (fa.regularizers.Box(0.0, 0.5), fa.regularizers.NonNegative()):
        assert float(regularizer.value(inside)) == 0.0
        assert float(regularizer.value(outside)) == math.inf
    ball = fa.regularizers.L2Ball(0.5)
    assert float(ball.value(inside)) == 0.0
    assert float(ball.value(outside)) == math.inf


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("step", [0.3, 2.0])
def test_prox_minimises(name, step):
    """argmin_u g(u) + ||u - v||^2 / (2 step): no point is better, neither scipy's nor a random one.

    The loss is 1/step strongly convex, so u* is its minimiser exactly when
    loss(u) >= loss(u*) + ||u - u*||^2 / (2 step) for every admissible u.
    """
    draws = np.random.default_rng(5)
    for v in POINTS:

        def loss(u: np.ndarray, v: np.ndarray = v) -> float:
            return penalty(name, u) + float(np.sum((u - v) ** 2)) / (2 * step)

        found = ROWS[name].prox(torch.from_numpy(v), step).numpy()
        options = {"bounds": [BOUNDS[name]] * 6} if name in BOUNDS else {}
        if name == "L2Ball":
            options = {"constraints": {"type": "ineq", "fun": lambda u: 1.3**2 - u @ u}}
        rivals = [
            minimize(loss, found + 0.05, method="SLSQP" if options else "Powell", **options).x
        ]
        rivals += [found + scale * draws.normal(size=6) for scale in (1e-3, 0.1, 1.0) * 5]
        for rival in rivals:
            if name == "L2Ball":
                rival = rival * min(1.0, 1.3 / np.linalg.norm(rival))
            elif name in BOUNDS:
                rival = np.clip(rival, *BOUNDS[name])
            gap = loss(rival) - loss(found)
            assert gap >= np.sum((rival - found) ** 2) / (2 * step) - 1e-12
        assert math.isfinite(float(ROWS[name].value(torch.from_numpy(found))))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_and_arguments_are_kept(name, dtype):
    point = torch.from_numpy(POINTS[0]).to(dtype)
    before = point.clone()
    moved = ROWS[name].prox(point, 0.5)
    assert moved.dtype == ROWS[name].value(point).dtype == dtype
    assert torch.equal(point, before)
    tolerance = 1e-6 if dtype == torch.float32 else 0
    exact = ROWS[name].prox(torch.from_numpy(POINTS[0]), 0.5)
    torch.testing.assert_close(moved.double(), exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("step", [0.01, 0.5, 40.0])
def test_moreaus_identity_for_norms(step):
    """v = prox_{step g}(v) + step * the projection of v/step onto the dual norm's ball of radius
    lam; that of l1 is in l-infinity, found here by bisection and not by sorting."""
    for point in POINTS:
        v = torch.from_numpy(point)
        short = point * min(1.0, 0.6 * step / np.linalg.norm(point))
        np.testing.assert_allclose(ROWS["L2"].prox(v, step), point - short, atol=1e-12)
        boxed = np.clip(point, -0.6 * step, 0.6 * step)
        np.testing.assert_allclose(ROWS["L1"].prox(v, step), point - boxed, atol=1e-12)
        low, high = 0.0, np.abs(point).max()
        for _ in range(200):
            level = (low + high) / 2
            inside = np.maximum(np.abs(point) - level, 0).sum() <= 0.6 * step
            low, high = (low, level) if inside else (level, high)
        balled = np.sign(point) * np.maximum(np.abs(point) - high, 0)
        np.testing.assert_allclose(ROWS["LInf"].prox(v, step), point - balled, atol=1e-12)


@pytest.mark.parametrize("name", ["L2", "LInf"])
def test_a_norm_leaves_zero_at_zero(name):
    assert not ROWS[name].prox(torch.zeros(3), 1.0).any()


def test_a_group_of_zeros_stays_zero_and_finite():
    for dtype in (torch.float32, torch.float64):
        for lam in (0.0, 0.5):
            moved = fa.regularizers.GroupLasso(lam, [2, 2]).prox(
                torch.tensor([0, 0, 3, 4], dtype=dtype), 1.0
            )
            assert not moved[:2].any()
            assert moved.isfinite().all()


def test_l1_sets_small_entries_to_exactly_zero():
    moved = fa.L1(1.0).prox(torch.tensor([0.5, -0.5, 2.0]), 0.6)
    assert moved.tolist() == [0.0, 0.0, pytest.approx(1.4)]


PYPROXIMAL = {
    "L1": (pyproximal.L1(sigma=0.6), fa.L1(0.6)),
    "L2": (pyproximal.L2(sigma=0.6), fa.regularizers.SquaredL2(0.6)),
    "Box": (pyproximal.Box(-0.4, 0.9), fa.regularizers.Box(-0.4, 0.9)),
    "EuclideanBall": (pyproximal.EuclideanBall(np.zeros(6), 1.3), fa.regularizers.L2Ball(1.3)),
}


@pytest.mark.parametrize("name", PYPROXIMAL)
def test_pyproximal_operators_agree_with_ours(name):
    operator, ours = PYPROXIMAL[name]
    theirs = fa.regularizers.PyProximal(operator)
    for point in POINTS:
        v = torch.from_numpy(point)
        torch.testing.assert_close(theirs.prox(v, 0.7), ours.prox(v, 0.7), rtol=0, atol=1e-6)
        inside = ours.prox(v, 0.7) * 0.999
        for where in (v, inside):
            assert float(theirs.value(where)) == pytest.approx(float(ours.value(where)))
        assert theirs.prox(v.float(), 0.7).dtype == torch.float32


class Boolean:
    """An indicator that answers with numpy's own truth value."""

    def __call__(self, x):
        return np.all(x >= 0)

    def prox(self, x, tau):
        return np.maximum(x, 0)


def test_truth_values_of_numpy_are_indicators_too():
    indicator = fa.regularizers.PyProximal(Boolean())
    assert float(indicator.value(torch.tensor([1.0]))) == 0.0
    assert float(indicator.value(torch.tensor([-1.0]))) == math.inf


def test_pyproximal_in_a_run():
    given = federation(3)
    runs = []
    for regularizer in (fa.L1(0.4), fa.regularizers.PyProximal(pyproximal.L1(sigma=0.4))):
        problem = fa.Problem(given.problem.clients, regularizer)
        runs.append(run(fa.FedADMM(1.2), given._replace(problem=problem), 10).params)
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=1e-10)
