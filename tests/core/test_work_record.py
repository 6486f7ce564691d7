"""What a solve cost is counted where the gradients are evaluated, and compared with its record."""

from __future__ import annotations

import itertools

import pytest
import torch

import fedadmm as fa
from fedadmm.core.contracts import LocalNeeds, LocalProblem
from fedadmm.core.local_work import SolveContext
from support.engines import PROBLEMS, run

ROWS = 18


class Counting(fa.LeastSquares):
    """Least squares that counts the rows its gradients look at."""

    rows_seen = 0

    def gradient(self, params, rows=None):
        self.rows_seen += ROWS if rows is None else len(rows)
        return super().gradient(params, rows)


SOLVERS = {
    "sgd": fa.SGD(0.05, batch_size=4),
    "sgd, one batch": fa.SGD(0.05, batch_size=40),
    "momentum": fa.SGD(0.02, batch_size=7, momentum=0.5),
    "all rows": fa.SGD(0.05, batch_size=None, momentum=0.5),
    "gradient descent": fa.GradientDescent(0.1),
    "accelerated": fa.AcceleratedGradient(0.1),
    "lbfgs": fa.LBFGS(),
}
RULES = {
    "epochs": fa.Epochs(3),
    "part of an epoch": fa.Steps(7),
    "tolerance": fa.stopping.GradientTolerance(0.05, max_epochs=6),
    "cap": fa.stopping.GradientTolerance(1e-20, max_epochs=2),
    "at once": fa.stopping.GradientTolerance(1e9),
    "own": fa.stopping.InSaCriterion(0.5),
    "global": fa.stopping.InSaCriterion(0.5, reference="global"),
}
NEEDS = [LocalNeeds(), LocalNeeds(start_gradient=True), LocalNeeds(mean_gradient=True)]


@pytest.mark.parametrize(
    ("solver", "rule", "needs"),
    [
        (solver, rule, needs)
        for solver, rule, needs in itertools.product(SOLVERS, RULES, NEEDS)
        if not (solver == "lbfgs" and needs.mean_gradient)
    ],
)
def test_passes_count_the_samples_of_all_gradients(solver, rule, needs):
    draws = torch.Generator().manual_seed(2)
    inputs = torch.randn(ROWS, 3, generator=draws, dtype=torch.float64)
    vectors = torch.randn(4, 3, generator=draws, dtype=torch.float64)
    objective = Counting(inputs, inputs.sum(1).sin())
    start, centre, theta, own = vectors
    problem = LocalProblem(start, weight=0.3, centre=centre)
    context = SolveContext(needs=needs, theta=theta, own=own)
    _, info = SOLVERS[solver].solve(objective, problem, RULES[rule], 0, context)
    assert info.passes == pytest.approx(objective.rows_seen / ROWS, abs=1e-12)
    if rule == "at once":
        assert info.steps == 0
        assert info.passes == 1 + needs.start_gradient + needs.mean_gradient


def test_a_reference_that_is_the_start_costs_nothing():
    draws = torch.Generator().manual_seed(3)
    inputs = torch.randn(ROWS, 3, generator=draws, dtype=torch.float64)
    start = torch.ones(3, dtype=torch.float64)
    for reference in ("own", "global"):
        objective = Counting(inputs, inputs.sum(1).sin())
        rule = fa.stopping.InSaCriterion(0.5, reference=reference)
        context = SolveContext(theta=start, own=start)
        problem = LocalProblem(start, weight=0.3, centre=start)
        _, info = fa.GradientDescent(0.1).solve(objective, problem, rule, 0, context)
        assert info.steps > 0
        assert info.passes == 2 * info.steps + 1  # a test before every epoch, and the last one


def test_an_exact_solve_forms_a_matrix_and_measures_once():
    quadratic = fa.Quadratic(torch.eye(2), torch.ones(2))
    for needs, passes in ((LocalNeeds(), 2.0), (LocalNeeds(start_gradient=True), 3.0)):
        context = SolveContext(needs=needs)
        _, info = fa.ExactSolver().solve(
            quadratic, LocalProblem(torch.zeros(2)), fa.Epochs(1), 0, context
        )
        assert info.passes == passes


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "workers"])
@pytest.mark.parametrize("start", ["own", "global"])
def test_the_round_tells_the_mean_of_its_participants(engine, start):
    """InSa asks before every epoch and once at the end, and at w_i when it starts elsewhere."""
    work = {"stop": fa.stopping.InSaCriterion(0.6), "start": start}
    result = run(engine, fa.FedADMMInSa(0.5), PROBLEMS["least squares"](), **work)
    for index, record in enumerate(result.history):
        elsewhere = start == "global" and index > 0  # at first everybody's model is theta
        tests = record["work"]["epochs"] + 1 + elsewhere
        assert record["work"]["passes"] == pytest.approx(
            record["work"]["epochs"] + tests, abs=1e-12
        )


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_one_gradient_is_one_pass(engine):
    result = run(engine, fa.FedSGD(0.1), PROBLEMS["logistic"]())
    assert {record["work"]["passes"] for record in result.history} == {1.0}
