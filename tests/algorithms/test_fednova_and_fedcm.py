"""FedNova and FedCM against their papers' recursions, with work that differs between clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedadmm as fa
from support.federations import (
    ROUNDS,
    SAMPLERS,
    WEIGHTS,
    Array,
    Federation,
    assert_same,
    federation,
    run,
    snapshots,
)
from support.rejections import naming

STEPS = (1, 5, 2, 7, 3)
RATES = (0.1, 0.05, 0.08, 0.02, 0.06)


def work(momentum: float = 0.0, rates: Any = 0.07) -> dict[str, Any]:
    solver = fa.SGD(rates, batch_size=None, momentum=momentum)
    return {"solver": solver, "stop": fa.Steps(STEPS)}


def moved(
    given: Federation, i: int, start: Array, extra: Array, lr: float, momentum: float
) -> tuple[Array, float]:
    """Client i's steps along its gradient plus `extra`, and how much each gradient counted."""
    w, velocity = start.copy(), np.zeros_like(start)
    counted: list[float] = []
    for _ in range(STEPS[i]):
        velocity = momentum * velocity + lr * (given.gradient(i, w) + extra)
        w = w - velocity
        counted.append(0.0)
        # every later velocity holds every earlier gradient, faded once more
        counted = [c + lr * momentum ** (len(counted) - 1 - k) for k, c in enumerate(counted)]
    return w, sum(counted)


def cohorts_of(sampler: Any) -> list[list[int]]:
    return [list(sampler.sample(3, t, 5)) for t in range(ROUNDS)]


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("rates", [0.07, RATES])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_fednova_normalises_moves_by_the_work_in_them(momentum, rates, sampler):
    given, chosen = federation(101, weights=WEIGHTS), SAMPLERS[sampler]
    result = run(fa.FedNova(), given, sampler=chosen, seed=3, **work(momentum, rates))
    theta, trajectory = given.start.copy(), []
    for cohort in cohorts_of(chosen):
        if cohort:
            p = given.a[cohort] / given.a[cohort].sum()
            effective, direction = 0.0, np.zeros_like(theta)
            for share, i in zip(p, cohort, strict=True):
                lr = rates[i] if isinstance(rates, tuple) else rates
                w, total = moved(given, i, theta, np.zeros_like(theta), lr, momentum)
                effective += share * total
                direction = direction + share * (theta - w) / total
            theta = theta - effective * direction
        trajectory.append(theta.copy())
    assert_same(result.trajectory, np.array(trajectory))


def test_with_equal_work_fednova_is_fedavg():
    given = federation(102, weights=WEIGHTS)
    options = {"solver": fa.SGD(0.1, batch_size=None, momentum=0.3), "stop": fa.Steps(3)}
    options["sampler"] = fa.UniformSampling(2)
    assert_same(
        run(fa.FedNova(), given, **options).trajectory,
        run(fa.FedAvg(), given, **options).trajectory,
    )


def test_unequal_work_misleads_fedavg_and_not_fednova():
    """As the rate vanishes FedAvg's limit weighs f_i by a_i times its steps, FedNova's by a_i."""
    given = federation(103, weights=WEIGHTS)
    given = given._replace(start=given.optimum)
    weights = given.a * np.array(STEPS)
    misled = np.linalg.solve(np.tensordot(weights, given.A, 1), weights @ given.b)
    distances = []
    for lr in (0.02, 0.01):
        options = work(rates=lr) | {"rounds": int(60 / lr) // 5}
        average = run(fa.FedAvg(), given, **options).params.numpy()
        nova = run(fa.FedNova(), given, **options).params.numpy()
        distances.append((np.linalg.norm(average - misled), np.linalg.norm(nova - given.optimum)))
    assert np.linalg.norm(misled - given.optimum) > 0.2
    for coarse, fine in zip(*distances, strict=True):
        assert fine < 0.6 * coarse  # both distances are of the order of the rate
        assert fine < 0.1


def test_a_client_that_makes_no_step_counts_as_one_that_stays():
    """At its own optimum a client's rule is met before the first step."""
    quadratic = fa.Quadratic(torch.eye(2).double(), torch.zeros(2).double())
    other = fa.Quadratic(torch.eye(2).double(), torch.ones(2).double())
    options = {
        "solver": fa.GradientDescent(0.5),
        "stop": fa.stopping.GradientTolerance(1e-9, max_epochs=2),
    }
    start = torch.zeros(2, dtype=torch.float64)
    for method in (fa.FedNova(), fa.FedCM(0.5)):
        result = fa.simulate(
            method, fa.Problem([quadratic, other]), 1, initial=start, evaluate=False, **options
        )
        assert result.code == "completed"
        moved_to = 0.75 * torch.ones(2, dtype=torch.float64)  # two steps halfway to 1
        half = 0.5 * moved_to  # its mean with the client that stays
        expected = 0.5 * half if isinstance(method, fa.FedNova) else half
        torch.testing.assert_close(result.params, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_fedcm_steps_along_the_last_direction_too(momentum, sampler):
    """Algorithm 2 of the paper at rate lr / alpha; unequal work weighs the directions."""
    given, chosen, alpha, lr = federation(104, weights=WEIGHTS), SAMPLERS[sampler], 0.4, 0.07
    method = fa.FedCM(alpha, 0.9)
    taken = snapshots(method, given, sampler=chosen, seed=3, **work(momentum))
    theta, delta, rows = given.start.copy(), np.zeros_like(given.start), []
    for cohort in cohorts_of(chosen):
        if cohort:
            moves, reach = np.zeros_like(theta), 0.0
            for i in cohort:
                # w - (lr/alpha) (alpha grad + (1 - alpha) delta)
                w, total = moved(given, i, theta, (1 - alpha) / alpha * delta, lr, momentum)
                moves = moves + given.a[i] * (w - theta)
                reach += given.a[i] * total / alpha
            theta = theta + 0.9 * moves / given.a[cohort].sum()
            delta = -moves / reach
        rows.append((theta.copy(), delta.copy()))
    expected = np.array(rows)
    assert_same([snapshot.theta for snapshot in taken], expected[:, 0])
    assert_same([snapshot.server.direction for snapshot in taken], expected[:, 1])


def test_fedcm_with_equal_steps_is_the_printed_formula():
    """Delta = -(mean move) / (rate K); local steps are x - rate (alpha g + (1 - alpha) Delta)."""
    given, alpha, rate, K = federation(105), 0.3, 0.2, 4
    options = {"solver": fa.GradientDescent(alpha * rate), "stop": fa.Steps(K)}
    result = run(fa.FedCM(alpha), given, **options)
    theta, delta, trajectory = given.start.copy(), np.zeros_like(given.start), []
    for _ in range(ROUNDS):
        models = []
        for i in range(5):
            x = theta.copy()
            for _ in range(K):
                x = x - rate * (alpha * given.gradient(i, x) + (1 - alpha) * delta)
            models.append(x)
        delta = -(np.mean(models, axis=0) - theta) / (rate * K)
        theta = theta - rate * K * delta
        trajectory.append(theta.copy())
    assert_same(result.trajectory, np.array(trajectory))


def test_fedcm_without_momentum_is_fedavg():
    given = federation(106, weights=WEIGHTS)
    options = work(0.3) | {"sampler": fa.UniformSampling(2)}
    assert_same(
        run(fa.FedCM(1.0), given, **options).trajectory,
        run(fa.FedAvg(), given, **options).trajectory,
    )


@pytest.mark.parametrize("solver", [fa.ExactSolver(), fa.AcceleratedGradient(0.1), fa.LBFGS()])
@pytest.mark.parametrize("method", [fa.FedNova(), fa.FedCM(), fa.FedMid(), fa.Scaffnew()])
def test_solvers_without_plain_steps_are_rejected(method, solver):
    kind = type(solver).__name__
    with pytest.raises(
        fa.errors.CompatibilityError, match=naming(f"solver {kind} {type(method).__name__}")
    ):
        run(method, federation(107), 1, solver=solver)
