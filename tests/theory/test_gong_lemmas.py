"""Lemmas 1, 2 and 3 of Gong et al. as inequalities in every round of FedADMM, and where they fail.

All three use grad f_i(w_i) + y_i = e_i with ||e_i||² <= eps_i, which a client fulfils only after
its first solve: it starts with w_i = theta^0 and y_i = 0, that is with e_i = grad f_i(theta^0).
Printed, they hold for clients that have been seen; with ||grad f_i(theta^0)|| added as in
`gong_bound` they hold for everybody.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import fedadmm as fa
from support.federations import Array, Federation, snapshots

ROUNDS = 40
LEVELS = {"exact": 0.0, "fine": 1e-4, "coarse": 1.0}
SAMPLERS = {"one": fa.UniformSampling(1), "some": fa.UniformSampling(3), "all": None}
FACTORS = {"just above the condition": 1.01, "twice the condition": 2.0}


def indefinite(seed: int) -> Federation:
    """Six quadratics in three dimensions, eigenvalues in [-1, 1], whose mean is convex; L = 1."""
    draws = np.random.default_rng(seed)
    axes = np.linalg.qr(draws.normal(size=(6, 3, 3)))[0]
    spread = draws.uniform(0.6, 1.0, (6, 3))
    spread[0, 0], spread[1, 2], spread[2, 1] = 1.0, -1.0, -0.5
    A = np.einsum("kij,kj,klj->kil", axes, spread, axes)
    A = (A + A.transpose(0, 2, 1)) / 2
    b = draws.normal(scale=2.0, size=(6, 3))
    clients = [fa.Quadratic(torch.from_numpy(A[i]), torch.from_numpy(b[i])) for i in range(6)]
    given = Federation(A, b, np.full(6, 1 / 6), 3 * draws.normal(size=3), fa.Problem(clients))
    assert np.linalg.eigvalsh(A.mean(0))[0] > 0
    return given


class Moment(NamedTuple):
    """The state between two rounds."""

    theta: Array
    w: Array
    y: Array


def lagrangian(given: Federation, rho: float, at: Moment) -> float:
    """The sum of (3) over all clients."""
    apart = at.w - at.theta
    values = [at.w[i] @ given.A[i] @ at.w[i] / 2 - given.b[i] @ at.w[i] for i in range(6)]
    return float(sum(values) + np.sum(at.y * apart) + rho / 2 * np.sum(apart**2))


def moments(
    given: Federation, rho: float, epsilon: float, sampler: Any, seed: int
) -> tuple[list[Moment], list[list[int]]]:
    """The states before, between and after all rounds, and who took part."""
    options: dict[str, Any] = {"seed": seed}
    if sampler is not None:
        options["sampler"] = sampler
    if epsilon > 0:
        rate = 1 / (1.0 + rho)
        options |= {
            "solver": fa.GradientDescent(rate),
            "stop": fa.stopping.GradientTolerance(epsilon),
        }
    shots = snapshots(fa.FedADMM(rho), given, ROUNDS, **options)
    start = np.tile(given.start, (6, 1))
    found = [Moment(given.start, start, np.zeros_like(start))]
    for shot in shots:
        w, y = (np.array([getattr(c, name).numpy() for c in shot.clients]) for name in ("w", "y"))
        found.append(Moment(shot.theta.numpy(), w, y))
    return found, [shot.record["cohort"]["clients"] for shot in shots]


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("who", SAMPLERS)
@pytest.mark.parametrize("level", LEVELS)
def test_the_three_lemmas_in_every_round(level, who, factor):
    L, epsilon, slack = 1.0, LEVELS[level], 1e-10
    rho = FACTORS[factor] * (1 + 5**0.5) * L
    for seed in range(2):
        given = indefinite(seed)
        if seed == 1:  # where the unseen clients' part of Lemma 3 matters
            given = given._replace(start=given.optimum)
        states, cohorts = moments(given, rho, epsilon, SAMPLERS[who], seed)
        best = 6 * float(given.optimum @ (-(given.a @ given.b)) / 2)  # min of the sum, f*
        first = np.array([np.sum(given.gradient(i, given.start) ** 2) for i in range(6)])
        seen: set[int] = set()
        for now, then, active in zip(states, states[1:], cohorts, strict=False):
            new = [i for i in active if i not in seen]
            steps = np.sum((then.w - now.w) ** 2, 1)
            for i in active:  # Lemma 1, (14)
                allowed = 8 * epsilon + 2 * L**2 * steps[i] + 4 * first[i] * (i in new)
                assert np.sum((then.y[i] - now.y[i]) ** 2) <= allowed + slack
            for i in seen:  # Lemma 1, (13): the step that an absent client would make
                prox = given.prox(i, now.theta - now.y[i] / rho, 1 / rho)
                virtual = now.y[i] + rho * (prox - now.theta)
                allowed = 8 * epsilon + 2 * L**2 * np.sum((prox - now.w[i]) ** 2)
                assert np.sum((virtual - now.y[i]) ** 2) <= allowed + slack
            change = lagrangian(given, rho, then) - lagrangian(given, rho, now)
            descent = (2 * L - rho) / 2 + 2 * L**2 / rho
            allowed = sum(
                descent * steps[i] + epsilon / (2 * L) + 8 * epsilon / rho for i in active
            )
            allowed += sum(4 * first[i] / rho for i in new)
            allowed -= 6 * rho / 2 * np.sum((then.theta - now.theta) ** 2)
            assert change <= allowed + slack  # Lemma 2, (16)
            seen |= set(active)
            unseen = [i for i in range(6) if i not in seen]
            floor = best - 6 * epsilon / (2 * L) - sum(first[i] / (2 * (rho - L)) for i in unseen)
            assert lagrangian(given, rho, then) >= floor - slack  # Lemma 3
        assert seen == set(range(6))


def opposed(rho: float, both: bool) -> tuple[Federation, list[Moment]]:
    """f = (x - 1)²/2 and (x + 1)²/2 from theta^0 = 0, the minimiser: L = 1, f* = 1 in all."""
    one = np.ones((2, 1, 1))
    b = np.array([[1.0], [-1.0]])
    clients = [fa.Quadratic(torch.from_numpy(one[i]), torch.from_numpy(b[i]), 0.5) for i in (0, 1)]
    given = Federation(one, b, np.full(2, 0.5), np.zeros(1), fa.Problem(clients))
    sampler = fa.FullParticipation() if both else fa.TraceSampling([[0], [1]])
    (shot,) = snapshots(fa.FedADMM(rho), given, 1, sampler=sampler)
    w, y = (np.array([getattr(c, name).numpy() for c in shot.clients]) for name in ("w", "y"))
    zero = np.zeros((2, 1))
    return given, [Moment(np.zeros(1), zero, zero), Moment(shot.theta.numpy(), w, y)]


def test_lemmas_1_and_2_fail_as_printed_at_a_clients_first_solve():
    """Exact solves: w = 1/(1 + rho), y = rho w, where Lemma 1 allows sqrt(2) L w with rho > 3.2 L.

    The two moves cancel in theta, and L changes by (rho - 1) w²/2 for each: it rises.
    """
    rho = 4.0
    _, (now, then) = opposed(rho, both=True)
    w = 1 / (1 + rho)
    np.testing.assert_allclose(then.w, [[w], [-w]], atol=1e-14)
    assert np.sum((then.y[0] - now.y[0]) ** 2) == pytest.approx((rho * w) ** 2)
    assert (rho * w) ** 2 > 2 * w**2
    terms = [
        (x - s) ** 2 / 2 + y * x + rho / 2 * x**2
        for x, y, s in ((w, rho * w, 1.0), (-w, -rho * w, -1.0))
    ]
    change = sum(terms) - 1.0
    assert change == pytest.approx((rho - 1) * w**2)
    assert np.abs(then.theta) < 1e-14
    printed = 2 * ((2 - rho) / 2 + 2 / rho) * w**2
    assert change > 0 > printed


def test_lemma_3_fails_as_printed_while_a_client_is_unseen():
    """One of the two has solved: theta = w, and L = 1 - w/2 lies below f* = 1."""
    rho = 4.0
    _, (_, then) = opposed(rho, both=False)
    w = 1 / (1 + rho)
    assert float(then.theta[0]) == pytest.approx(w)
    value = (then.w[0, 0] - 1) ** 2 / 2 + 1 / 2 + rho / 2 * w**2
    assert value == pytest.approx(1 - w / 2)
    assert value < 1.0
    assert value >= 1.0 - 1.0 / (2 * (rho - 1))  # with the start's gradient, as in gong_bound
