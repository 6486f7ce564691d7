"""The bounds against runs on scalar quadratics, where every prox is a line of arithmetic.

f_i(x) = (a_i/2)(x - b_i)² with |a_i| <= L, some of them concave; g = 0. The runs are written from
the algorithms' definitions and share no code with the package.
"""

import random
from collections.abc import Iterable
from typing import NamedTuple

import pytest

from fedadmm.theory import (
    async_feddr_bound,
    feddr_bound,
    feddr_prox_start_excess,
    gong_bound,
)
from support.printed import async_constants


class Quadratics(NamedTuple):
    curvatures: list[float]
    centres: list[float]

    @property
    def smoothness(self) -> float:
        return max(abs(a) for a in self.curvatures)

    @property
    def minimiser(self) -> float:
        total = sum(a * b for a, b in zip(self.curvatures, self.centres, strict=True))
        return total / sum(self.curvatures)

    def value(self, x: float) -> float:
        terms = zip(self.curvatures, self.centres, strict=True)
        return sum(a / 2 * (x - b) ** 2 for a, b in terms) / len(self.curvatures)

    def gap(self, x: float) -> float:
        return max(0.0, self.value(x) - self.value(self.minimiser))

    def gradient(self, x: float) -> float:
        return sum(self.curvatures) / len(self.curvatures) * (x - self.minimiser)

    def client_gradients(self, x: float) -> float:
        """(1/n) sum ||grad f_i(x)||²"""
        terms = zip(self.curvatures, self.centres, strict=True)
        return sum((a * (x - b)) ** 2 for a, b in terms) / len(self.curvatures)


def heterogeneous(n: int, seed: int) -> Quadratics:
    """A third of the clients concave, the mean convex."""
    rng = random.Random(seed)
    curvatures = [
        rng.uniform(-1.0, -0.2) if i % 3 == 0 else rng.uniform(0.7, 1.0) for i in range(n)
    ]
    curvatures[1 % n] = 1.0
    return Quadratics(curvatures, [rng.uniform(-5.0, 5.0) for _ in range(n)])


def feddr_models(
    problem: Quadratics,
    start: float,
    eta: float,
    alpha: float,
    schedule: Iterable[tuple[list[int], int]],
    *,
    init: str = "start",
    errors: Iterable[float] | None = None,
) -> list[float]:
    """The server models of FedDR; every entry of the schedule is (active clients, delay)."""
    n = len(problem.curvatures)
    error = iter(errors) if errors is not None else None

    def prox(i: int, v: float) -> float:
        a, b = problem.curvatures[i], problem.centres[i]
        return (v + eta * a * b) / (1 + eta * a)

    y = [start] * n
    x = [prox(i, start) for i in range(n)] if init == "prox" else [start] * n
    models = [sum(2 * x[i] - y[i] for i in range(n)) / n]
    for active, delay in schedule:
        seen = models[max(0, len(models) - 1 - delay)]
        size = next(error) if error is not None else 0.0
        for i in active:
            y[i] += alpha * (seen - x[i])
            x[i] = prox(i, y[i]) + size
        models.append(sum(2 * x[i] - y[i] for i in range(n)) / n)
    return models


def mean_square_gradient(problem: Quadratics, models: list[float]) -> float:
    return sum(problem.gradient(x) ** 2 for x in models) / len(models)


def uniform_clients(n: int, size: int, rounds: int, seed: int) -> list[tuple[list[int], int]]:
    rng = random.Random(seed)
    return [(rng.sample(range(n), size), 0) for _ in range(rounds)]


@pytest.mark.parametrize(("alpha", "part"), [(1.0, 0.6), (0.5, 0.9), (1.6, 0.9), (0.1, 0.3)])
@pytest.mark.parametrize("size", [1, 3, 12])
@pytest.mark.parametrize("init", ["start", "prox"])
def test_feddr_stays_below_its_bound(alpha: float, part: float, size: int, init: str) -> None:
    n, rounds, runs = 12, 60, 20
    problem = heterogeneous(n, 1)
    L = problem.smoothness
    eta = part * (1 - alpha / 2) / L
    for start in (problem.minimiser, 10.0):
        G0 = problem.client_gradients(start)
        gap, start_gradient = problem.gap(start), G0
        if init == "prox":
            gap, start_gradient = gap + feddr_prox_start_excess(L, eta, G0), 0.0
        measured = [
            mean_square_gradient(
                problem,
                feddr_models(
                    problem, start, eta, alpha, uniform_clients(n, size, rounds, seed), init=init
                ),
            )
            for seed in range(runs)
        ]
        limit = feddr_bound(L, eta, alpha, size / n, rounds, gap, start_gradient=start_gradient)
        assert sum(measured) / runs <= limit


@pytest.mark.parametrize("level", [0.01, 0.5])
def test_feddr_with_errors_stays_below_its_bound(level: float) -> None:
    n, rounds = 12, 80
    problem = heterogeneous(n, 2)
    start = problem.minimiser
    L, eta, alpha = problem.smoothness, 0.3, 1.0
    errors = [level / (k + 1) for k in range(rounds + 1)]
    schedule = uniform_clients(n, 4, rounds, 7)
    models = feddr_models(problem, start, eta, alpha, schedule, errors=errors)
    limit = feddr_bound(
        L,
        eta,
        alpha,
        4 / n,
        rounds,
        problem.gap(start),
        error_sum=sum(error**2 for error in errors),
        start_gradient=problem.client_gradients(start),
    )
    assert mean_square_gradient(problem, models) <= limit


def test_printed_feddr_bound_fails_at_the_minimiser() -> None:
    # gap = 0: Corollary 3.1 says that no model ever leaves the minimiser, whatever the start.
    n = 12
    problem = heterogeneous(n, 1)
    L, start = problem.smoothness, problem.minimiser
    for init in ("start", "prox"):
        schedule = uniform_clients(n, 1, 50, 3)
        models = feddr_models(problem, start, 1 / (3 * L), 1.0, schedule, init=init)
        printed = feddr_bound(L, 1 / (3 * L), 1.0, 1 / n, 50, problem.gap(start))
        assert printed < 1e-9 < mean_square_gradient(problem, models)


def fedadmm_measures(
    problem: Quadratics, start: float, rho: float, schedule: list[list[int]], epsilon: float
) -> list[float]:
    """V^t/n before every round; local solves miss by ||grad L_i||² = epsilon."""
    n = len(problem.curvatures)
    w, y, theta = [start] * n, [0.0] * n, start
    measures = []
    for active in schedule:
        total = 0.0
        for i in range(n):
            gradient = problem.curvatures[i] * (w[i] - problem.centres[i]) + y[i]
            total += (gradient + rho * (w[i] - theta)) ** 2 + (w[i] - theta) ** 2
        consensus = sum(y[i] + rho * (w[i] - theta) for i in range(n))
        measures.append((total + consensus**2) / n)
        for i in active:
            a, b = problem.curvatures[i], problem.centres[i]
            w[i] = (a * b - y[i] + rho * theta + epsilon**0.5) / (a + rho)
            y[i] += rho * (w[i] - theta)
        theta = sum(w[i] + y[i] / rho for i in range(n)) / n
    return measures


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("size", [1, 4, 12])
@pytest.mark.parametrize("times", [1.05, 2.0, 10.0])
def test_fedadmm_stays_below_gongs_bound(epsilon: float, size: int, times: float) -> None:
    n, rounds, runs = 12, 40, 10
    problem = heterogeneous(n, 3)
    L = problem.smoothness
    rho = (1 + 5**0.5) * L * times
    for start in (problem.minimiser, 10.0):
        total = 0.0
        for seed in range(runs):
            schedule = [active for active, _ in uniform_clients(n, size, rounds, seed)]
            measures = fedadmm_measures(problem, start, rho, schedule, epsilon)
            total += sum(measures) / rounds
        limit = gong_bound(
            L,
            rho,
            size / n,
            rounds,
            problem.gap(start),
            epsilon_max=epsilon,
            start_gradient=problem.client_gradients(start),
        )
        assert total / runs <= limit


def test_printed_gong_bound_fails_at_the_minimiser() -> None:
    problem = heterogeneous(12, 3)
    start, rho = problem.minimiser, 4.0 * problem.smoothness
    measures = fedadmm_measures(problem, start, rho, [list(range(12))] * 20, 0.0)
    printed = gong_bound(problem.smoothness, rho, 1.0, 20, problem.gap(start))
    assert printed < 1e-9 < sum(measures) / 20


@pytest.mark.parametrize("tau", [0, 2, 6])
@pytest.mark.parametrize("init", ["start", "prox"])
def test_async_feddr_stays_below_its_bound(tau: int, init: str) -> None:
    n, steps, runs, alpha, eta = 12, 150, 20, 0.4, 0.2
    problem = heterogeneous(n, 4)
    L = problem.smoothness
    for start in (problem.minimiser, 10.0):
        measured = 0.0
        for seed in range(runs):
            rng = random.Random(seed)
            schedule = [([rng.randrange(n)], rng.randint(0, tau)) for _ in range(steps)]
            models = feddr_models(problem, start, eta, alpha, schedule, init=init)
            measured += mean_square_gradient(problem, models) / runs
        gap, G0 = problem.gap(start), problem.client_gradients(start)
        if init == "prox":
            gap, G0 = gap + feddr_prox_start_excess(L, eta, G0), 0.0
        assert measured <= async_feddr_bound(
            n, tau, 0, 1 / n, L, alpha, eta, steps, gap, start_gradient=G0
        )


def test_printed_async_bound_fails_when_clients_take_turns() -> None:
    # 100 clients in turn, no delay: T = 99 and p_hat = 1. Equal losses, so no start to repair: one
    # sweep is a gradient step of length alpha eta, and sum ||G||² comes near n gap/(alpha eta).
    n, alpha, eta, steps, start = 100, 0.1, 0.1, 20_000, 1.0
    problem = Quadratics([1.0] * n, [0.0] * n)
    x, y = start / (1 + eta), start  # init="prox", the same for all
    xhat, total, sums = [2 * x - y] * n, (2 * x - y) * n, 0.0
    xs, ys = [x] * n, [y] * n
    for k in range(steps + 1):
        model = total / n
        sums += problem.curvatures[0] * model**2
        i = k % n
        ys[i] += alpha * (model - xs[i])
        xs[i] = ys[i] / (1 + eta)
        total += 2 * xs[i] - ys[i] - xhat[i]
        xhat[i] = 2 * xs[i] - ys[i]
    measured = sums / (steps + 1)
    setting = (n, 0, n - 1, 1.0, 1.0, alpha, eta)
    printed = async_constants(*setting).C_hat * problem.gap(start) / (steps + 1)
    certified = async_feddr_bound(*setting, steps, problem.gap(start))
    assert measured > 2 * printed
    assert measured < certified
