"""Certificates with a regularizer: the infimum of F is known, so g != 0 is certified as well."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.data import problems
from fedadmm.run.engines import VirtualTime
from fedadmm.theory import feddr_bound
from support.certified import CLASSES, METHODS, SAMPLERS, accurate, assert_holds, certified, curves
from support.federations import federation, snapshots, stacked
from support.rejections import naming
from support.thinning import thinned

REGULARIZERS = {
    "l1": fa.L1(0.3),
    "l2": fa.regularizers.SquaredL2(0.5),
    "box": fa.regularizers.Box(-0.4, 0.6),
}
COMPOSITE = [name for name in METHODS if not name.startswith("gong")]


@pytest.mark.parametrize(
    ("name", "method", "regularizer", "sampler"),
    thinned(5, CLASSES, COMPOSITE, REGULARIZERS, SAMPLERS),
)
def test_measured_stays_below_the_bound(name, method, regularizer, sampler):
    """On all four classes; three of them are not convex."""
    problem = problems.load(name, **CLASSES[name], regularizer=REGULARIZERS[regularizer])
    L = problem.facts.smoothness
    made, weight, theorem = METHODS[method](L)
    options = accurate(0.1, L, weight * L)
    options |= {"sampler": SAMPLERS[sampler], "seed": list(SAMPLERS).index(sampler)}
    assert_holds(certified(made, problem, 8, theorem=theorem, **options))


@pytest.mark.parametrize("regularizer", REGULARIZERS)
@pytest.mark.parametrize("method", COMPOSITE)
def test_exact_solves_stay_below_the_bound_and_reach_the_optimum(method, regularizer):
    problem = problems.load(
        "quadratics", **CLASSES["quadratics"], regularizer=REGULARIZERS[regularizer]
    )
    made, _, theorem = METHODS[method](1.0)
    options = {"solver": fa.ExactSolver(), "sampler": fa.UniformSampling(2), "seed": 1}
    assert_holds(certified(made, problem, 40, theorem=theorem, **options))
    kept = dataclasses.replace(problem, clients=list(problem.clients))
    far = fa.simulate(made, kept, 400, solver=fa.ExactSolver(), evaluate=False)
    torch.testing.assert_close(far.params, problem.facts.optimum, atol=1e-8, rtol=0)


@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_asynchronous_runs_stay_below_the_bound(regularizer):
    problem = problems.load(
        "quadratics", clients=12, dimension=4, regularizer=REGULARIZERS[regularizer]
    )
    engine = VirtualTime(ratio=1.5, concurrency=3)
    method = fa.AsyncFedDR(0.2, 0.4, "prox")
    for seed in range(2):
        options = {"solver": fa.ExactSolver(), "engine": engine, "seed": seed}
        assert_holds(certified(method, problem, 60, **options))


def test_the_first_model_is_no_prox_and_is_counted_by_itself():
    """||G||² <= (1 + eta L)²/eta² mean ||xbar - x_i||² is a step of the proof that needs a prox.

    It holds from the first server step on; at the start all x_i = xbar = x0 and G is not zero.
    """
    lam = 0.5
    given = federation(51, regularizer=fa.L1(lam))
    L = max(float(np.linalg.eigvalsh(A)[-1]) for A in given.A)
    eta = 0.4 / L

    def mapping(x: np.ndarray) -> float:
        inner = x - eta * np.mean([given.gradient(i, x) for i in range(given.clients)], axis=0)
        moved = np.sign(inner) * np.maximum(np.abs(inner) - eta * lam, 0)
        return float(np.sum((x - moved) ** 2)) / eta**2

    for shot in snapshots(fa.FedDR(eta), given, 30):
        distances = np.sum((stacked([c.x for c in shot.clients]) - shot.theta.numpy()) ** 2, 1)
        limit = (1 + eta * L) ** 2 / eta**2 * distances.mean()
        assert mapping(shot.theta.numpy()) <= limit * (1 + 1e-9)
    assert mapping(given.start) > 0.1  # where the distances are zero
    problem = fa.Problem(
        given.problem.clients, given.problem.regularizer, facts=fa.Facts(L, -100.0)
    )
    options = {"solver": fa.ExactSolver(), "initial": given.initial}
    started = certified(fa.FedDR(eta), problem, 3, **options)
    start = given.start
    values = [start @ given.A[i] @ start / 2 - given.b[i] @ start for i in range(given.clients)]
    gap = np.mean(values) + lam * np.abs(start).sum() + 100.0
    gradients = np.mean([np.sum(given.gradient(i, start) ** 2) for i in range(given.clients)])
    plain = [feddr_bound(L, eta, 1.0, 1.0, K, gap, start_gradient=gradients) for K in (1, 2, 3)]
    expected = [bound + mapping(start) / (K + 1) for K, bound in enumerate(plain, start=1)]
    assert curves(started)[1] == pytest.approx(expected, rel=1e-9)


def test_refused():
    box = problems.load(
        "quadratics", **CLASSES["quadratics"], regularizer=fa.regularizers.Box(-0.4, 0.6)
    )
    outside = torch.full((4,), 2.0, dtype=torch.float64)
    with pytest.raises(
        fa.errors.CompatibilityError,
        match=naming("certificate initial g"),
    ):
        certified(fa.FedDR(0.3), box, 1, solver=fa.ExactSolver(), initial=outside)
    lasso = problems.load("quadratics", **CLASSES["quadratics"], regularizer=fa.L1(0.1))
    with pytest.raises(
        fa.errors.CompatibilityError,
        match=naming("certificate init prox"),
    ):
        certified(fa.AsyncFedDR(0.2, 0.4), lasso, 1, solver=fa.ExactSolver())
    with pytest.raises(fa.errors.CompatibilityError, match=naming("certificate Gong regularizer")):
        certified(fa.FedADMM(4.0), lasso, 1, theorem="gong", solver=fa.ExactSolver())
