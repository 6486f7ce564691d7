"""FedAvgM, FedAdagrad, FedAdam, FedYogi and FedExP against the papers' recursions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedadmm as fa
from support import reference
from support.federations import ROUNDS, SAMPLERS, WEIGHTS, Array, assert_same, federation, run

LR, K = 0.1, 3
WORK = {"solver": fa.GradientDescent(LR), "stop": fa.Steps(K)}


def mean_moves(given: Any, cohorts: Any, step: Any) -> Array:
    """FedAvg's clients and any server: `step` makes the next theta from theta and the mean move."""
    solve = reference.gradient_steps(given, K, LR)
    theta, zero, trajectory = given.start.copy(), np.zeros_like(given.start), []
    for cohort in cohorts:
        if cohort:
            weights = given.a[cohort] / given.a[cohort].sum()
            moves = np.array([solve(i, theta, zero, 0.0, zero) - theta for i in cohort])
            theta = step(theta, weights @ moves)
        trajectory.append(theta.copy())
    return np.array(trajectory)


def adaptive(kind: str, lr: float, beta1: float, tau: float, beta2: float) -> Any:
    """Algorithm 2 of Reddi et al., entry by entry."""
    state: dict[str, Array] = {}

    def step(theta: Array, delta: Array) -> Array:
        m = state.get("m", np.zeros_like(delta))
        v = state.get("v", np.full_like(delta, tau * tau))
        m = beta1 * m + (1 - beta1) * delta
        for j, d in enumerate(delta):
            if kind == "adagrad":
                v[j] += d**2
            elif kind == "adam":
                v[j] = beta2 * v[j] + (1 - beta2) * d**2
            elif v[j] > d**2:
                v[j] -= (1 - beta2) * d**2
            elif v[j] < d**2:
                v[j] += (1 - beta2) * d**2
        state["m"], state["v"] = m, v
        return theta + lr * m / (np.sqrt(v) + tau)

    return step


METHODS = {
    "adagrad": fa.FedAdagrad(lr=0.3, beta1=0.4, tau=0.05),
    "adam": fa.FedAdam(lr=0.2, beta1=0.7, tau=0.02, beta2=0.9),
    "yogi": fa.FedYogi(lr=0.2, beta1=0.7, tau=0.02, beta2=0.8),
}


def cohorts_of(sampler: Any, seed: int) -> list[list[int]]:
    return [list(sampler.sample(seed, t, 5)) for t in range(ROUNDS)]


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_adaptive_servers_follow_algorithm_2(kind, sampler):
    given, method = federation(61, weights=WEIGHTS), METHODS[kind]
    chosen = SAMPLERS[sampler]
    result = run(method, given, sampler=chosen, seed=3, **WORK)
    beta2 = getattr(method, "beta2", 0.0)
    step = adaptive(kind, method.lr, method.beta1, method.tau, beta2)
    assert_same(result.trajectory, mean_moves(given, cohorts_of(chosen, 3), step))


def by_torch(make: Any) -> Any:
    """A server whose step is one of a torch optimiser with -delta as the gradient."""
    kept: list[Any] = []

    def step(theta: Array, delta: Array) -> Array:
        if not kept:
            variable = torch.nn.Parameter(torch.from_numpy(theta.copy()))
            kept.extend((variable, make([variable])))
        variable, optimizer = kept
        variable.grad = torch.from_numpy(-delta)
        optimizer.step()
        return variable.detach().numpy().copy()

    return step


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("sampler", ["full", "uniform", "bernoulli"])
def test_fedavgm_is_sgd_with_momentum_on_the_mean_move(nesterov, sampler):
    given, chosen = federation(62, weights=WEIGHTS), SAMPLERS[sampler]
    result = run(fa.FedAvgM(0.8, 0.7, nesterov), given, sampler=chosen, seed=4, **WORK)
    step = by_torch(lambda p: torch.optim.SGD(p, 0.7, momentum=0.8, nesterov=nesterov))
    assert_same(result.trajectory, mean_moves(given, cohorts_of(chosen, 4), step))


def test_fedadagrad_without_momentum_is_adagrad_on_the_mean_move():
    given, tau = federation(63), 0.05
    result = run(fa.FedAdagrad(lr=0.3, beta1=0.0, tau=tau), given, seed=5, **WORK)
    step = by_torch(
        lambda p: torch.optim.Adagrad(p, 0.3, eps=tau, initial_accumulator_value=tau**2)
    )
    assert_same(result.trajectory, mean_moves(given, [list(range(5))] * ROUNDS, step))


@pytest.mark.parametrize("nesterov", [False, True])
def test_fedavgm_without_momentum_is_fedavg(nesterov):
    given = federation(64, weights=WEIGHTS)
    options = WORK | {"sampler": fa.UniformSampling(2)}
    plain = run(fa.FedAvg(), given, **options).trajectory
    assert_same(run(fa.FedAvgM(0.0, nesterov=nesterov), given, **options).trajectory, plain)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_fedexp_follows_algorithm_1(epsilon, sampler):
    """From each client's own move, of which the server sees only sums.

    Every round from where the last one ended, because long steps make rounding grow.
    """
    given, chosen = federation(62, weights=WEIGHTS), SAMPLERS[sampler]
    result = run(fa.FedExP(epsilon), given, sampler=chosen, seed=3, **WORK)
    solve, zero = reference.gradient_steps(given, K, LR), np.zeros_like(given.start)
    before = [given.start, *(theta.numpy() for theta in result.trajectory[:-1])]
    expected, steps = [], [1.0]
    for theta, cohort in zip(before, cohorts_of(chosen, 3), strict=True):
        if cohort:
            weights = given.a[cohort] / given.a[cohort].sum()
            moves = np.array([solve(i, theta, zero, 0.0, zero) - theta for i in cohort])
            mean = weights @ moves
            squares = sum(w * (move @ move) for w, move in zip(weights, moves, strict=True))
            steps.append(max(1.0, squares / (2 * (mean @ mean + epsilon))))
        expected.append(theta + steps[-1] * mean if cohort else theta)
    assert max(steps) > 1.0 or epsilon == 0.5
    assert_same(result.trajectory, np.array(expected))


def test_fedexp_with_one_participant_is_fedavg():
    """||delta||^2 / (2 (||delta||^2 + epsilon)) is below a half."""
    given, options = federation(63), {"sampler": fa.UniformSampling(1), "seed": 2, **WORK}
    moved = run(fa.FedExP(), given, **options)
    assert_same(moved.trajectory, run(fa.FedAvg(), given, **options).trajectory)
