"""Objectives: values by hand, gradients by finite differences and autograd, evaluation mode."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime
from torch import nn

import fedadmm as fa
from fedadmm.core.objectives import model as model_objective
from support.models import perceptron, rows

DRAWS = torch.Generator().manual_seed(3)
FEATURES = torch.randn(9, 3, generator=DRAWS, dtype=torch.float64)
TARGETS = torch.randn(9, generator=DRAWS, dtype=torch.float64)
LABELS = (TARGETS > 0).double()
POINT = torch.randn(3, generator=DRAWS, dtype=torch.float64)
SQUARE = FEATURES.T @ FEATURES


def network(**options: object) -> fa.ModelObjective:
    return fa.ModelObjective(perceptron(), nn.functional.cross_entropy, *rows(0, 13), **options)


def test_values_by_hand():
    x, X, y, s = POINT.numpy(), FEATURES.numpy(), TARGETS.numpy(), 2 * LABELS.numpy() - 1
    ridge = 0.3 * (x @ x) / 2
    assert float(fa.Quadratic(SQUARE, TARGETS[:3], 2.0).value(POINT)) == pytest.approx(
        x @ SQUARE.numpy() @ x / 2 - y[:3] @ x + 2.0
    )
    assert float(fa.LeastSquares(FEATURES, TARGETS, 0.3).value(POINT)) == pytest.approx(
        np.mean((X @ x - y) ** 2) / 2 + ridge
    )
    assert float(fa.LogisticRegression(FEATURES, LABELS, 0.3).value(POINT)) == pytest.approx(
        np.mean(np.log(1 + np.exp(-s * (X @ x)))) + ridge
    )


OBJECTIVES = {
    "quadratic": lambda: fa.Quadratic(SQUARE, TARGETS[:3]),
    "least squares": lambda: fa.LeastSquares(FEATURES, TARGETS, 0.3),
    "logistic": lambda: fa.LogisticRegression(FEATURES, LABELS, 0.3),
    "network": network,
}


def point_of(objective):
    draws = torch.Generator().manual_seed(8)
    return torch.randn(objective.num_parameters, generator=draws, dtype=torch.float64)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_are_those_of_the_values(name):
    objective = OBJECTIVES[name]()
    point = point_of(objective)

    def value(x: np.ndarray) -> float:
        return float(objective.value(torch.from_numpy(x)))

    expected = approx_fprime(point.numpy(), value, 1e-7)
    np.testing.assert_allclose(objective.gradient(point), expected, atol=1e-5)
    np.testing.assert_allclose(objective.evaluation_gradient(point), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["least squares", "logistic", "network"])
def test_the_mean_of_batch_gradients_is_the_full_gradient(name):
    objective = OBJECTIVES[name]()
    point, count = point_of(objective), objective.num_samples
    single = [objective.gradient(point, torch.tensor([i])).clone() for i in range(count)]
    torch.testing.assert_close(
        torch.stack(single).mean(0), objective.gradient(point).clone(), rtol=0, atol=1e-12
    )


def test_hessian_and_offset_describe_the_least_squares():
    objective = fa.LeastSquares(FEATURES, TARGETS, 0.3)
    torch.testing.assert_close(
        objective.hessian() @ POINT - objective.offset(), objective.gradient(POINT)
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_conversion(name):
    objective = OBJECTIVES[name]()
    point = point_of(objective)
    exact = float(objective.value(point))
    single = objective.to(torch.float32)
    assert single.value(point.float()).dtype == torch.float32
    assert single.gradient(point.float()).dtype == torch.float32
    assert float(single.value(point.float())) == pytest.approx(exact, rel=1e-4)


def test_conversion_to_the_same_precision_copies_nothing():
    for name in ("quadratic", "least squares", "logistic"):
        objective = OBJECTIVES[name]()
        assert objective.to(torch.float64) is objective


def test_a_network_is_its_module():
    module = perceptron()
    inputs, targets = rows(0, 13)
    vector = nn.utils.parameters_to_vector(module.parameters()).detach()
    loss = nn.functional.cross_entropy(module(inputs), targets)
    loss.backward()
    loss = loss.detach()
    expected = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    objective = network()
    assert objective.num_parameters == 4 * 5 + 5 + 5 * 3 + 3
    assert float(objective.value(vector)) == pytest.approx(float(loss), abs=1e-14)
    torch.testing.assert_close(objective.gradient(vector), expected, rtol=0, atol=1e-12)


def test_samples_are_prepared_batch_by_batch():
    """uint8 rows stay uint8 in memory, whatever the precision."""
    stored = torch.randint(0, 256, (13, 4), generator=torch.Generator(), dtype=torch.uint8)
    targets = rows(0, 13)[1]
    prepared = fa.ModelObjective(
        perceptron(), nn.functional.cross_entropy, stored, targets, lambda x: x.double() / 255
    )
    plain = fa.ModelObjective(
        perceptron(), nn.functional.cross_entropy, stored.double() / 255, targets
    )
    point = point_of(plain)
    assert torch.equal(prepared.value(point), plain.value(point))
    assert torch.equal(prepared.gradient(point).clone(), plain.gradient(point))
    single = prepared.to(torch.float32)
    assert single.inputs.dtype == torch.uint8
    assert single.gradient(point.float()).dtype == torch.float32


def test_evaluation_in_parts_is_evaluation_at_once(monkeypatch):
    objective = network()
    point = point_of(objective)
    value, gradient = objective.value(point), objective.evaluation_gradient(point).clone()
    monkeypatch.setattr(model_objective, "EVALUATION_SAMPLES", 4)
    torch.testing.assert_close(objective.value(point), value, rtol=0, atol=1e-14)
    torch.testing.assert_close(objective.evaluation_gradient(point), gradient, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("shape", "most"), [((5000, 3), 2048), ((700, 1, 28, 28), 256), ((0, 9), 1)]
)
def test_every_sample_is_in_one_part_and_large_samples_are_in_small_parts(shape, most):
    parts = [range(shape[0])[part] for part in model_objective.evaluation_parts(torch.zeros(shape))]
    assert [row for part in parts for row in part] == list(range(shape[0]))
    assert max(map(len, parts), default=0) <= most


def test_evaluation_uses_neither_dropout_nor_batch_statistics():
    module = perceptron(0, nn.BatchNorm1d(5), nn.Dropout(0.5))
    objective = fa.ModelObjective(module, nn.functional.cross_entropy, *rows(0, 13))
    point = point_of(objective)
    buffers = objective.flat.buffers().clone()
    state = torch.get_rng_state()
    first = objective.evaluation_gradient(point).clone()
    assert torch.equal(first, objective.evaluation_gradient(point))
    assert torch.equal(objective.flat.buffers(), buffers)
    assert torch.equal(torch.get_rng_state(), state)
    with torch.random.fork_rng(devices=[]):
        assert not torch.equal(first, objective.gradient(point))
    assert not torch.equal(objective.flat.buffers(), buffers)


@pytest.mark.parametrize(
    ("module", "random"),
    [
        (nn.Dropout(0.1), True),
        (nn.Dropout(0.0), False),
        (nn.Dropout1d(0.3), True),
        (nn.RReLU(), True),
        (nn.ReLU(), False),
        (nn.BatchNorm1d(5), False),
        (nn.MultiheadAttention(4, 1, dropout=0.2), True),
        (nn.MultiheadAttention(4, 1), False),
        (nn.LSTM(4, 4, num_layers=2, dropout=0.2), True),
    ],
)
def test_modules_that_draw_numbers_are_recognised(module, random):
    objective = fa.ModelObjective(perceptron(0, module), nn.functional.cross_entropy, *rows(0, 5))
    assert objective.is_random == random


def test_the_problem_adds_up_values_and_gradients():
    clients = [fa.LeastSquares(FEATURES + i, TARGETS, 0.1) for i in range(3)]
    problem = fa.Problem(clients, weights=[1, 2, 5])
    shares = [1 / 8, 2 / 8, 5 / 8]
    value = sum(a * c.value(POINT) for a, c in zip(shares, clients, strict=True))
    gradient = sum(a * c.gradient(POINT) for a, c in zip(shares, clients, strict=True))
    torch.testing.assert_close(problem.value(POINT), value)
    torch.testing.assert_close(problem.gradient(POINT), gradient)
    torch.testing.assert_close(problem.gradient_mapping(POINT, 0.7), gradient)
    assert sum(problem.weight(i) for i in range(3)) == pytest.approx(1.0)


def test_the_gradient_mapping_vanishes_exactly_at_the_constrained_optimum():
    """min (x - 3)^2/2 over [0, 1] is solved by x = 1, where the gradient itself is -2."""
    eye = torch.eye(1, dtype=torch.float64)
    problem = fa.Problem([fa.Quadratic(eye, 3 * eye[0])], fa.regularizers.Box(0.0, 1.0))
    assert float(problem.gradient(eye[0])) == -2.0
    assert float(problem.gradient_mapping(eye[0], 0.5)) == 0.0
    assert float(problem.gradient_mapping(eye[0] / 2, 0.5)) == pytest.approx(-1.0)


def test_lazy_clients_are_a_sequence():
    built: list[int] = []

    def build(index: int) -> fa.Quadratic:
        built.append(index)
        return fa.Quadratic(torch.eye(2) * (index + 1), torch.zeros(2))

    clients = fa.LazyClients(5, build)
    assert (len(clients), built) == (5, [])
    assert float(clients[-1].A[0, 0]) == 5.0
    assert [float(c.A[0, 0]) for c in clients[1:3]] == [2.0, 3.0]
    assert [float(c.A[0, 0]) for c in clients] == [1.0, 2.0, 3.0, 4.0, 5.0]
    with pytest.raises(IndexError):
        clients[5]
    converted = fa.Problem(clients).to(torch.float64).clients
    assert converted[2].A.dtype == torch.float64
    assert [c.A.dtype for c in converted[:2]] == [torch.float64] * 2
