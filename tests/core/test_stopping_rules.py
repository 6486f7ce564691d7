"""Each stopping rule stops at the first epoch where its criterion holds, computed by hand.

Gradient descent on f(w) = w'Aw/2 - b'w with A = diag(1, 3): its iterates are known in closed
form, so the first epoch where a criterion holds can be found without the solver.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core.contracts import LocalProblem
from fedadmm.core.local_work import SolveContext
from fedadmm.core.rng import derive
from support.federations import federation

LR, WEIGHT = 0.1, 0.5
A, B = np.diag([1.0, 3.0]), np.array([1.0, -2.0])
START, CENTRE, LINEAR = np.array([4.0, 5.0]), np.array([0.5, -1.0]), np.array([0.2, 0.3])
HESSIAN = A + WEIGHT * np.eye(2)
OPTIMUM = np.linalg.solve(HESSIAN, B - LINEAR + WEIGHT * CENTRE)


def iterate(epoch: int) -> np.ndarray:
    """w_k = w* + (I - lr H)^k (w_0 - w*)."""
    return OPTIMUM + np.linalg.matrix_power(np.eye(2) - LR * HESSIAN, epoch) @ (START - OPTIMUM)


def gradient_norm(point: np.ndarray) -> float:
    return float(np.linalg.norm(HESSIAN @ (point - OPTIMUM)))


def first_epoch(holds) -> int:
    return next(epoch for epoch in range(1000) if holds(iterate(epoch)))


def solve(rule, start=START, **context):
    objective = fa.Quadratic(torch.from_numpy(A), torch.from_numpy(B))
    problem = LocalProblem(
        *map(torch.from_numpy, (start, LINEAR)), WEIGHT, torch.from_numpy(CENTRE)
    )
    return fa.GradientDescent(LR).solve(objective, problem, rule, 0, SolveContext(**context))


def check(rule, expected: int, **context) -> None:
    assert expected > 3  # neither trivially at once nor by the cap
    result, info = solve(rule, **context)
    assert info.steps == expected
    assert info.status == "accuracy reached"
    np.testing.assert_allclose(result.params, iterate(expected), atol=1e-12)
    assert info.accuracy == pytest.approx(gradient_norm(iterate(expected)), abs=1e-12)


@pytest.mark.parametrize("epsilon", [1e-1, 1e-4])
def test_gradient_tolerance_is_on_the_squared_norm(epsilon):
    expected = first_epoch(lambda w: gradient_norm(w) ** 2 <= epsilon)
    assert expected != first_epoch(lambda w: gradient_norm(w) <= epsilon)
    check(fa.stopping.GradientTolerance(epsilon), expected)


@pytest.mark.parametrize("round_index", [0, 7])
@pytest.mark.parametrize("weak_convexity", [0.0, 0.2])
def test_prox_accuracy_tightens_with_the_rounds(round_index, weak_convexity):
    M = 0.5
    allowed = math.sqrt(M / (2 * (round_index + 2) ** 2))  # x^(k+1), made in round k
    rule = fa.stopping.ProxAccuracy(M, weak_convexity)
    expected = first_epoch(lambda w: gradient_norm(w) / (WEIGHT - weak_convexity) <= allowed)
    check(rule, expected, round_index=round_index)
    # and the certificate is true: the distance to the solution is within what is allowed
    result, _ = solve(rule, round_index=round_index)
    assert np.linalg.norm(result.params.numpy() - OPTIMUM) <= allowed


def test_the_accuracies_of_all_solves_stay_within_the_budget():
    """Remark 3.1: x^0 of the initial round has eps_0, x^(k+1) of round k has eps_(k+1)."""
    rule = fa.stopping.ProxAccuracy(0.5)
    assert rule.epsilon(-1) == 0.5
    assert rule.epsilon(0) == 0.25
    squares = sum(rule.epsilon(k) ** 2 for k in range(-1, 10_000))
    assert squares == pytest.approx(0.5 * math.pi**2 / 12, rel=1e-3)  # below M = 0.5


@pytest.mark.parametrize("theta", [0.5, 0.01])
def test_relative_accuracy(theta):
    expected = first_epoch(lambda w: gradient_norm(w) / WEIGHT <= theta * np.linalg.norm(w - START))
    check(fa.stopping.RelativeAccuracy(theta), expected)


OWN = np.array([2.0, -3.0])


@pytest.mark.parametrize("theta", [0.3, 0.02])
@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("weak_convexity", [0.0, 0.2])
def test_the_readings_of_relative_accuracy(theta, squared, weak_convexity):
    power = 2 if squared else 1

    def holds(distance, w):
        return distance**power <= theta * np.linalg.norm(w - OWN) ** power

    expected = first_epoch(lambda w: holds(gradient_norm(w) / (WEIGHT - weak_convexity), w))
    rule = fa.stopping.RelativeAccuracy(theta, weak_convexity, squared=squared)
    check(rule, expected, own=torch.from_numpy(OWN))
    # and the certificate is true of the distance to the solution itself
    result, _ = solve(rule, own=torch.from_numpy(OWN))
    assert holds(np.linalg.norm(result.params.numpy() - OPTIMUM), result.params.numpy())


@pytest.mark.parametrize("sigma", [0.3, 0.01])
def test_insa_criterion_with_a_given_sigma(sigma):
    expected = first_epoch(lambda w: gradient_norm(w) <= sigma * gradient_norm(START))
    check(fa.stopping.InSaCriterion(sigma, max_epochs=100), expected)


def test_insa_criterion_with_the_bound_of_the_theorem():
    sigma = 0.9 * math.sqrt(2) / (math.sqrt(2) + math.sqrt(WEIGHT / 0.02))
    expected = first_epoch(lambda w: gradient_norm(w) <= sigma * gradient_norm(START))
    check(fa.stopping.InSaCriterion(c=0.02, safety=0.9, max_epochs=100), expected)


def test_insa_criterion_against_the_global_vector():
    theta, sigma = np.array([1.0, 1.0]), 0.2
    expected = first_epoch(lambda w: gradient_norm(w) <= sigma * gradient_norm(theta))
    own = first_epoch(lambda w: gradient_norm(w) <= sigma * gradient_norm(START))
    assert expected != own
    rule = fa.stopping.InSaCriterion(sigma, reference="global", max_epochs=100)
    check(rule, expected, theta=torch.from_numpy(theta))


def test_insa_criterion_refers_to_the_local_model_for_any_initial_point():
    own, sigma = np.array([1.5, -0.5]), 0.2
    expected = first_epoch(lambda w: gradient_norm(w) <= sigma * gradient_norm(own))
    assert expected != first_epoch(lambda w: gradient_norm(w) <= sigma * gradient_norm(START))
    check(fa.stopping.InSaCriterion(sigma, max_epochs=100), expected, own=torch.from_numpy(own))


@pytest.mark.parametrize("reference", ["own", "global"])
@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_insa_criterion_of_clients_that_start_at_theta(reference, engine):
    """Every client's accuracy is at most sigma times ||e|| at w_i, or at theta, and no earlier."""
    given, beta, sigma, lr = federation(3), 0.4, 0.3, 0.05
    seen = []
    fa.simulate(
        fa.FedADMMIn(beta),
        given.problem,
        4,
        start="global",
        sampler=fa.UniformSampling(3),
        solver=fa.GradientDescent(lr),
        stop=fa.stopping.InSaCriterion(sigma, reference=reference, max_epochs=500),
        initial=given.initial,
        engine=engine,
        callbacks=[lambda report: seen.append(report.infos)],
    )
    n, dimension = given.b.shape
    w, y = np.tile(given.start, (n, 1)), np.zeros((n, dimension))
    for infos in seen:
        theta = (beta * w + y).mean(axis=0) / beta
        for info in infos:
            i = info.client
            hessian = given.A[i] + beta * np.eye(dimension)
            shift = given.b[i] - y[i] + beta * theta

            def e(point, hessian=hessian, shift=shift):
                return np.linalg.norm(hessian @ point - shift)

            allowed, point, steps = sigma * e(w[i] if reference == "own" else theta), theta, 0
            while e(point) > allowed:
                point, steps = point - lr * (hessian @ point - shift), steps + 1
            assert info.solve.steps == steps
            y[i] += beta * (point - theta)
            w[i] = point


RULES = {
    "gradient": fa.stopping.GradientTolerance(1e-20, max_epochs=4),
    "prox": fa.stopping.ProxAccuracy(1e-20, max_epochs=4),
    "relative": fa.stopping.RelativeAccuracy(1e-9, max_epochs=4),
    "insa": fa.stopping.InSaCriterion(1e-9, max_epochs=4),
}


@pytest.mark.parametrize("name", RULES)
def test_a_cap_is_reported(name):
    _, info = solve(RULES[name])
    assert info.steps == 4
    assert info.status == "accuracy not reached within the cap of 4 epochs"
    assert info.accuracy == pytest.approx(gradient_norm(iterate(4)))


def test_accuracy_that_is_there_from_the_start_costs_no_step():
    result, info = solve(fa.stopping.GradientTolerance(1e-12), start=OPTIMUM)
    assert (info.steps, info.status) == (0, "accuracy reached")
    np.testing.assert_array_equal(result.params, OPTIMUM)


def test_accuracy_reached_in_the_last_epoch_of_the_cap_counts():
    epsilon = 1e-3
    expected = first_epoch(lambda w: gradient_norm(w) ** 2 <= epsilon)
    _, info = solve(fa.stopping.GradientTolerance(epsilon, max_epochs=expected))
    assert info.status == "accuracy reached"


def test_the_test_is_made_between_epochs_not_within():
    """With 5 batches an epoch the number of steps is a multiple of 5."""
    draws = torch.Generator().manual_seed(1)
    objective = fa.LeastSquares(
        torch.randn(20, 2, generator=draws, dtype=torch.float64),
        torch.randn(20, generator=draws, dtype=torch.float64),
    )
    problem = LocalProblem(torch.full((2,), 5.0, dtype=torch.float64))
    _, info = fa.SGD(0.1, 4).solve(objective, problem, fa.stopping.GradientTolerance(0.3), 0)
    assert info.status == "accuracy reached"
    assert info.steps > 0
    assert info.steps % 5 == 0
    assert info.epochs == info.steps / 5


@pytest.mark.parametrize("name", ["gradient", "insa"])
def test_a_cap_counts_epochs_of_all_batches(name):
    """5 batches an epoch and a cap of 4 epochs are 20 steps."""
    draws = torch.Generator().manual_seed(1)
    objective = fa.LeastSquares(
        torch.randn(20, 2, generator=draws, dtype=torch.float64),
        torch.randn(20, generator=draws, dtype=torch.float64),
    )
    problem = LocalProblem(torch.full((2,), 5.0, dtype=torch.float64))
    _, info = fa.SGD(0.1, 4).solve(objective, problem, RULES[name], 0)
    assert (info.steps, info.epochs) == (20, 4.0)
    assert info.status == "accuracy not reached within the cap of 4 epochs"


@pytest.mark.parametrize(
    ("rule", "steps", "status"),
    [
        (fa.Epochs(3), 15, "3 epochs done"),
        (fa.Steps(7), 7, "7 steps done"),
    ],
)
def test_budgets(rule, steps, status):
    objective = fa.LeastSquares(torch.randn(18, 2, generator=torch.Generator()), torch.zeros(18))
    _, info = fa.SGD(0.1, 4).solve(objective, LocalProblem(torch.ones(2)), rule, 0)
    assert (info.steps, info.epochs, info.status) == (steps, steps / 5, status)
    assert math.isnan(info.accuracy)
    # All rows alike: every step multiplies w by the same factor, so that w counts the steps made.
    alike, start = (
        fa.LeastSquares(torch.ones(18, 1), torch.zeros(18)),
        LocalProblem(torch.ones(1)),
    )
    factor, made = (fa.SGD(0.1, 4).solve(alike, start, r, 0)[0].params for r in (fa.Steps(1), rule))
    assert float(made) == pytest.approx(float(factor) ** steps, rel=1e-5)


def test_uniform_epochs_draws_every_number_equally_often():
    rule, draws = fa.UniformEpochs(4), 2000
    counts = np.bincount([rule.budget(1, derive(0, "x", i), 0) for i in range(draws)], minlength=5)
    assert counts[0] == 0
    # each count is binomial(2000, 1/4): five standard deviations are about 97
    assert np.abs(counts[1:] - draws / 4).max() < 97
    assert rule.budget(6, 3, 0) == 6 * rule.budget(1, 3, 0)
    assert rule.sentence(False) == "the drawn number of epochs (1 to 4) done"


def test_every_client_of_a_round_draws_its_own_epochs():
    given = federation(1, clients=30)
    infos = []
    fa.simulate(
        fa.FedAvg(),
        given.problem,
        1,
        solver=fa.GradientDescent(0.1),
        stop=fa.UniformEpochs(5),
        initial=given.initial,
        callbacks=[lambda report: infos.extend(report.infos)],
    )
    assert {info.solve.steps for info in infos} == {1, 2, 3, 4, 5}


def test_rules_answer_for_a_whole_stack():
    """One answer a client, shape (K, 1)."""
    from fedadmm.core.stopping import Progress

    norms = torch.tensor([[1e-3], [1.0]], dtype=torch.float64)
    ones = torch.ones(2, 1, dtype=torch.float64)
    progress = Progress(norms, ones, ones, torch.tensor([[0.5], [0.5]]), 0, (0, 1))
    for rule in (
        fa.stopping.GradientTolerance(1e-2),
        fa.stopping.ProxAccuracy(0.5),
        fa.stopping.RelativeAccuracy(0.1),
        fa.stopping.InSaCriterion(0.1),
    ):
        assert rule.reached(progress).tolist() == [[True], [False]]
    assert fa.Epochs(1).reached(progress).tolist() == [[False], [False]]
