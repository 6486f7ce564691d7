"""Every solver against closed forms, scipy and torch's own optimiser."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import fedadmm as fa
from fedadmm.core.contracts import LocalNeeds, LocalProblem
from fedadmm.core.local_work import SolveContext
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.rng import permutation
from support.federations import federation
from support.models import perceptron, rows

D = 4
SOLVERS = {
    "SGD": (fa.SGD(0.15), 600),
    "SGD with momentum": (fa.SGD(0.1, momentum=0.5), 600),
    "gradient descent": (fa.GradientDescent(0.2), 600),
    "accelerated gradient": (fa.AcceleratedGradient(0.2), 400),
    "L-BFGS": (fa.LBFGS(), 60),
}


def local_problem(seed: int, weight: float, linear: bool = True) -> LocalProblem:
    draws = torch.Generator().manual_seed(seed)
    start, centre, tilt = torch.randn(3, D, generator=draws, dtype=torch.float64)
    return LocalProblem(start, tilt if linear else None, weight, centre if weight else None)


def logistic(seed: int) -> fa.LogisticRegression:
    draws = torch.Generator().manual_seed(seed)
    features = torch.randn(25, D, generator=draws, dtype=torch.float64)
    targets = (torch.rand(25, generator=draws, dtype=torch.float64) < 0.5).double()
    return fa.LogisticRegression(features, targets, 0.05)


def judge(objective: fa.LogisticRegression, problem: LocalProblem) -> np.ndarray:
    """The minimiser by scipy, from the loss written out again in numpy."""
    X, y = objective.features.numpy(), objective.targets.numpy()
    linear = np.zeros(D) if problem.linear is None else problem.linear.numpy()
    centre = np.zeros(D) if problem.centre is None else problem.centre.numpy()

    def loss(w: np.ndarray) -> float:
        signs = 2 * y - 1
        fit = np.logaddexp(0, -signs * (X @ w)).mean() + objective.ridge * w @ w / 2
        return float(fit + linear @ w + problem.weight / 2 * np.sum((w - centre) ** 2))

    found = minimize(loss, np.zeros(D), method="BFGS", options={"gtol": 1e-9})
    return minimize(loss, found.x, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-15}).x


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("weight", [0.0, 0.8])
@pytest.mark.parametrize("linear", [True, False])
def test_quadratic(name, weight, linear):
    given = federation(3)
    solver, steps = SOLVERS[name]
    problem = local_problem(1, weight, linear)
    result, info = solver.solve(given.problem.clients[0], problem, fa.Steps(steps), 0)
    centre = problem.centre.numpy() if weight else np.zeros(D)
    tilt = problem.linear.numpy() if linear else np.zeros(D)
    expected = np.linalg.solve(given.A[0] + weight * np.eye(D), given.b[0] - tilt + weight * centre)
    np.testing.assert_allclose(result.params, expected, atol=1e-8)
    assert (info.steps, info.status) == (steps, f"{steps} steps done")


@pytest.mark.parametrize("name", [*SOLVERS, "mini-batches, falling steps"])
def test_logistic_regression(name):
    objective, problem = logistic(4), local_problem(2, 0.5)
    if name in SOLVERS:
        solver, steps = SOLVERS[name]
        result, _ = solver.solve(objective, problem, fa.Steps(steps), 0)
        tolerance = 1e-6
    else:  # a round's step falls with the round: the last rounds average the noise out
        start = problem.start
        for t in range(60):
            solver = fa.SGD(lambda t: 0.5 / (1 + t), batch_size=5)
            context = SolveContext(round_index=t)
            result, _ = solver.solve(
                objective, problem._replace(start=start), fa.Epochs(3), t, context
            )
            start = result.params
        tolerance = 3e-2
    np.testing.assert_allclose(result.params, judge(objective, problem), atol=tolerance)


@pytest.mark.parametrize("weight", [0.0, 0.8])
def test_the_exact_solver(weight):
    given = federation(5)
    problem = local_problem(3, weight)
    needs = SolveContext(needs=LocalNeeds(start_gradient=True))
    result, info = fa.ExactSolver().solve(given.problem.clients[1], problem, fa.Epochs(1), 0, needs)
    centre = problem.centre.numpy() if weight else np.zeros(D)
    gradient = given.gradient(1, result.params.numpy()) + problem.linear.numpy()
    np.testing.assert_allclose(gradient + weight * (result.params.numpy() - centre), 0, atol=1e-12)
    np.testing.assert_allclose(
        result.start_gradient, given.gradient(1, problem.start.numpy()), atol=1e-12
    )
    assert info.status == "solved exactly"
    assert info.accuracy < 1e-12


def test_the_exact_solver_on_least_squares():
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(9, D, generator=draws, dtype=torch.float64)
    targets = torch.randn(9, generator=draws, dtype=torch.float64)
    problem = LocalProblem(torch.zeros(D, dtype=torch.float64))
    result, _ = fa.ExactSolver().solve(fa.LeastSquares(features, targets), problem, fa.Epochs(1), 0)
    expected = np.linalg.lstsq(features.numpy(), targets.numpy(), rcond=None)[0]
    np.testing.assert_allclose(result.params, expected, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("penalised", [True, False])
def test_the_fused_step_is_torchs_sgd_on_the_penalised_loss(momentum, penalised):
    """A hand-written loop over a module's own parameters, with autograd on the whole loss."""
    module = perceptron(7)
    loop_module = copy.deepcopy(module)
    flat = FlatModule(module)
    inputs, targets = rows(3, 23)
    objective = fa.ModelObjective(flat, nn.functional.cross_entropy, inputs, targets)
    draws = torch.Generator().manual_seed(9)
    linear, centre = 0.1 * torch.randn(2, flat.num_parameters, generator=draws, dtype=torch.float64)
    weight = 0.6 if penalised else 0.0
    start = flat.vector.clone()
    problem = LocalProblem(start, linear, weight, centre) if penalised else LocalProblem(start)
    key, lr, batch = 11, 0.2, 5
    result, info = fa.SGD(lr, batch, momentum).solve(objective, problem, fa.Epochs(3), key)

    optimizer = torch.optim.SGD(loop_module.parameters(), lr=lr, momentum=momentum)
    steps = 0
    for epoch in range(3):
        for chosen in torch.split(permutation(key, epoch, 23), batch):
            optimizer.zero_grad()
            w = nn.utils.parameters_to_vector(loop_module.parameters())
            loss = nn.functional.cross_entropy(loop_module(inputs[chosen]), targets[chosen])
            if penalised:
                loss = loss + linear @ w + weight / 2 * (w - centre).square().sum()
            loss.backward()
            optimizer.step()
            steps += 1
    expected = nn.utils.parameters_to_vector(loop_module.parameters()).detach()
    torch.testing.assert_close(result.params, expected, rtol=0, atol=1e-12)
    assert (info.steps, info.epochs) == (steps, 3.0)
    assert not torch.equal(result.params, start)


def test_mean_gradient_is_the_mean_over_the_steps_made():
    objective, problem = logistic(6), local_problem(4, 0.7)
    solver, needs = fa.SGD(0.1, batch_size=7), SolveContext(needs=LocalNeeds(mean_gradient=True))
    result, _ = solver.solve(objective, problem, fa.Steps(6), 3, needs)
    w, used = problem.start.clone(), []
    batches = [b for e in range(2) for b in torch.split(permutation(3, e, 25), 7)]
    for chosen in batches[:6]:
        used.append(objective.gradient(w, chosen))
        w = w - 0.1 * (used[-1] + problem.linear + 0.7 * (w - problem.centre))
    torch.testing.assert_close(result.mean_gradient, torch.stack(used).mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(result.params, w, rtol=0, atol=1e-12)


def test_mean_gradient_of_a_solve_that_ends_before_its_budget():
    """Without a penalty w = start - lr * (the sum of the gradients of the steps made)."""
    objective, start = logistic(6), local_problem(4, 0.0).start
    needs = SolveContext(needs=LocalNeeds(mean_gradient=True))
    rule = fa.stopping.GradientTolerance(1e-3, max_epochs=200)
    result, info = fa.GradientDescent(0.3).solve(objective, LocalProblem(start), rule, 0, needs)
    assert 3 < info.steps < 200
    mean = (start - result.params) / (0.3 * info.steps)
    torch.testing.assert_close(result.mean_gradient, mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [fa.SGD, fa.GradientDescent, fa.AcceleratedGradient])
def test_a_schedule_of_learning_rates_is_read_at_the_round(kind):
    objective, problem = logistic(6), local_problem(4, 0.7)
    schedule = fa.schedules.Piecewise({0: 0.05, 3: 0.2})
    for round_index, rate in ((2, 0.05), (3, 0.2)):
        context = SolveContext(round_index=round_index)
        scheduled, _ = kind(schedule).solve(objective, problem, fa.Steps(4), 0, context)
        constant, _ = kind(rate).solve(objective, problem, fa.Steps(4), 0)
        assert torch.equal(scheduled.params, constant.params)


def test_accelerated_gradient_is_nesterovs_recursion_with_restarts():
    """x+ = y - lr g(y), y+ = x+ + (t - 1)/t+ (x+ - x), t = 1 again where g(y) points along x+ - x.

    Beck and Teboulle's t with the gradient restart of O'Donoghue and Candes, step by step.
    """
    A, b = np.diag([1.0, 0.01]), np.array([1.0, 1.0])
    objective = fa.Quadratic(torch.from_numpy(A), torch.from_numpy(b))
    problem = LocalProblem(torch.tensor([5.0, -3.0], dtype=torch.float64))
    x = y = problem.start.numpy()
    t, restarts = 1.0, 0
    for step in range(1, 81):
        gradient = A @ y - b
        following = y - 0.9 * gradient
        if gradient @ (following - x) > 0:
            t, restarts = 1.0, restarts + 1
        later = (1 + np.sqrt(1 + 4 * t * t)) / 2
        x, y, t = following, following + (t - 1) / later * (following - x), later
        if step % 20 == 0:
            found, _ = fa.AcceleratedGradient(0.9).solve(objective, problem, fa.Steps(step), 0)
            np.testing.assert_allclose(found.params, x, atol=1e-12)
    assert restarts > 0


def test_a_solve_changes_neither_its_problem_nor_its_start():
    given = federation(7)
    for solver, _ in SOLVERS.values():
        problem = local_problem(5, 0.5)
        before = [part.clone() for part in (problem.start, problem.linear, problem.centre)]
        result, _ = solver.solve(given.problem.clients[0], problem, fa.Steps(3), 0)
        after = (problem.start, problem.linear, problem.centre)
        assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
        result.params.fill_(9.0)
        assert torch.equal(problem.start, before[0])


class Recording(fa.Objective):
    """A quadratic with rows, which remembers the rows of every gradient."""

    num_parameters, num_samples = 2, 23

    def __init__(self) -> None:
        self.rows: list[torch.Tensor | None] = []

    def value(self, params):
        return params.square().sum() / 2

    def gradient(self, params, rows=None):
        self.rows.append(rows)
        return params.clone()

    def to(self, dtype, device="cpu"):
        return self


def _visited(key: int, batch_size: int | None, epochs: int) -> list[torch.Tensor | None]:
    objective = Recording()
    problem = LocalProblem(torch.ones(2, dtype=torch.float64))
    fa.SGD(0.1, batch_size).solve(objective, problem, fa.Epochs(epochs), key)
    return objective.rows


@pytest.mark.parametrize("batch_size", [1, 5, 22])
def test_batches_cover_every_sample_once_an_epoch(batch_size):
    per_epoch = -(-23 // batch_size)
    visited = _visited(4, batch_size, 3)
    assert len(visited) == 3 * per_epoch
    epochs = [torch.cat(visited[e * per_epoch : (e + 1) * per_epoch]) for e in range(3)]
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(23))
    assert not torch.equal(epochs[0], epochs[1])


def test_batches_depend_on_the_key_only():
    first, again, other = _visited(4, 5, 2), _visited(4, 5, 2), _visited(5, 5, 2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("batch_size", [None, 23, 100])
def test_a_batch_of_all_samples_is_the_full_gradient(batch_size):
    assert _visited(4, batch_size, 2) == [None, None]
