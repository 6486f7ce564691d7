"""Estimated constants against eigenvalues and calculations by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core.objectives import losses
from fedadmm.data import models
from fedadmm.theory import estimate_constants
from fedadmm.theory.constants import hessian_product, largest_curvature
from support.federations import federation
from support.resumable import problem


def perceptron(loss=losses.cross_entropy) -> fa.ModelObjective:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = models.mlp(3, 4, 2).double()
        inputs = torch.randn(9, 3, dtype=torch.float64)
    return fa.ModelObjective(fa.FlatModule(module), loss, inputs, torch.arange(9) % 2)


def dense_hessian(objective: fa.ModelObjective, params: torch.Tensor) -> torch.Tensor:
    """Column by column from central differences of the loss itself, to the second order."""
    size, h = len(params), 1e-4
    eye = torch.eye(size, dtype=params.dtype) * h
    f = objective.value
    rows = [
        [
            f(params + eye[i] + eye[j])
            - f(params + eye[i] - eye[j])
            - f(params - eye[i] + eye[j])
            + f(params - eye[i] - eye[j])
            for j in range(size)
        ]
        for i in range(size)
    ]
    return torch.tensor(rows, dtype=params.dtype) / (4 * h * h)


def test_products_with_the_hessian_of_a_model():
    objective = perceptron()
    params = objective.flat.vector.clone()
    dense = dense_hessian(objective, params)
    product = hessian_product(objective, params, None)
    draws = torch.Generator().manual_seed(2)
    for _ in range(3):
        vector = torch.randn(len(params), generator=draws, dtype=torch.float64)
        torch.testing.assert_close(product(vector), dense @ vector, rtol=0, atol=1e-5)
    largest = float(torch.linalg.eigvalsh(dense).abs().max())
    found = largest_curvature(product, params, 3, iterations=200, tolerance=1e-9)
    assert found == pytest.approx(largest, rel=1e-3)


def test_products_over_some_rows():
    objective = perceptron()
    rows = torch.tensor([0, 3, 4])
    part = fa.ModelObjective(
        objective.flat, objective.loss, objective.inputs[rows], objective.targets[rows]
    )
    params = objective.flat.vector.clone()
    vector = torch.ones_like(params)
    whole = hessian_product(part, params, None)(vector)
    torch.testing.assert_close(hessian_product(objective, params, rows)(vector), whole)


@pytest.mark.parametrize("concave", [False, True])
def test_the_largest_curvature_of_a_quadratic(concave):
    given = federation(71)
    A = -given.A[0] if concave else given.A[0]
    objective = fa.Quadratic(torch.from_numpy(A), torch.from_numpy(given.b[0]))
    product = hessian_product(objective, given.initial, None)
    found = largest_curvature(product, given.initial, 1, iterations=500, tolerance=1e-10)
    assert found == pytest.approx(np.abs(np.linalg.eigvalsh(A)).max(), rel=1e-4)


def test_smoothness_gradients_and_gap_by_hand():
    given = federation(72)
    found = estimate_constants(given.problem, given.initial, clients=5)
    assert found.clients == [0, 1, 2, 3, 4]
    gradients = np.array([given.gradient(i, given.start) for i in range(5)])
    squares, mean = (gradients**2).sum(1).mean(), gradients.mean(0)
    assert found.start_gradient == pytest.approx(squares)
    assert found.dissimilarity >= math.sqrt(squares / (mean @ mean) / 5) * (1 - 1e-9)
    tops = [np.linalg.eigvalsh(A)[-1] for A in given.A]
    assert found.client_smoothness == pytest.approx(tops, rel=0.1)
    assert max(found.client_smoothness) == found.smoothness
    assert found.smoothness_spread == pytest.approx(np.std(found.client_smoothness, ddof=1))
    assert found.convexity == pytest.approx(min(np.linalg.eigvalsh(A)[0] for A in given.A))
    values = [
        given.start @ A @ given.start / 2 - b @ given.start
        for A, b in zip(given.A, given.b, strict=True)
    ]
    assert found.gap == pytest.approx(max(0.0, np.mean(values)))


@pytest.mark.parametrize("looked_at", [5, 3])
def test_the_constants_of_table_1_by_hand(looked_at):
    """f_i = a_i ||x - c_i||²/2: one step of length 1/L leads to c_i, so that the points are known.

    (9) is about the sums over all n clients; from a part of them n times their mean is used.
    """
    draws = np.random.default_rng(7)
    a, c, start = draws.uniform(0.5, 2.0, 5), draws.normal(size=(5, 3)), 4 * draws.normal(size=3)
    clients = [
        fa.Quadratic(a[i] * torch.eye(3, dtype=torch.float64), torch.from_numpy(a[i] * c[i]))
        for i in range(5)
    ]
    found = estimate_constants(fa.Problem(clients), torch.from_numpy(start), clients=looked_at)
    assert len(found.clients) == looked_at
    B, G = [], []
    for point in (start, *c[found.clients]):
        gradients = np.array([a[i] * (point - c[i]) for i in found.clients])
        squares = np.sum(gradients**2, 1)
        sums = 5 * squares.mean(), np.sum((5 * gradients.mean(0)) ** 2)
        B.append(math.sqrt(sums[0] / sums[1]))
        G.append(math.sqrt(squares.max()))
    assert B[0] < max(B)
    assert found.dissimilarity == pytest.approx(max(B), rel=1e-6)
    assert found.gradient_bound == pytest.approx(max(G), rel=1e-6)
    if looked_at == 5:  # as it is printed
        everyone = np.array([a[i] * (start - c[i]) for i in range(5)])
        printed = np.sum(everyone**2) / np.sum(everyone.sum(0) ** 2)
        assert B[0] ** 2 == pytest.approx(printed)


def modelled(module, loss, targets) -> fa.ModelObjective:
    return fa.ModelObjective(module, loss, torch.ones(5, 3), targets)


LABELS = torch.arange(5) % 2
CONVEXITIES = {
    "least squares": (
        lambda: fa.LeastSquares(torch.ones(3, 2), torch.ones(3), 0.25),
        0.25,
    ),
    "logistic": (lambda: modelled(models.logistic(3, 4), losses.cross_entropy, LABELS), 0.0),
    "a loss of its own": (
        lambda: modelled(nn.Linear(3, 1), nn.functional.l1_loss, torch.ones(5, 1)),
        None,
    ),
    "perceptron": (lambda: modelled(models.mlp(3, 4, 2), losses.cross_entropy, LABELS), None),
    "concave": (lambda: fa.Quadratic(-torch.eye(2), torch.zeros(2)), None),
}


@pytest.mark.parametrize(("objective", "convexity"), CONVEXITIES.values(), ids=CONVEXITIES)
def test_what_is_known_to_be_convex(objective, convexity):
    made = objective()
    found = estimate_constants(fa.Problem([made]), torch.ones(made.num_parameters))
    assert found.convexity == convexity


def test_flat_objectives_have_no_curvature() -> None:
    flat = fa.Problem([fa.Quadratic(torch.zeros(2, 2), torch.zeros(2))])
    assert estimate_constants(flat, torch.zeros(2)).smoothness == 0.0


def test_progress_is_reported_for_every_client_and_point() -> None:
    reported: list[tuple[int, int]] = []
    chosen = problem()
    estimate_constants(
        chosen, chosen.start(0), clients=3, on_progress=lambda step, *far: reported.append(far)
    )
    assert reported == [(done, 7) for done in range(7)]  # three clients, and four points
