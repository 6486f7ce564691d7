"""Direct numpy programs of some methods, written from the papers and sharing no code with src."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from support.federations import Array, Federation

Solve = Callable[[int, Array, Array, float, Array], Array]
"""(client, start, linear, weight, centre) -> an (in)exact minimiser of the local problem."""


def exact(given: Federation) -> Solve:
    def solve(i: int, start: Array, linear: Array, weight: float, centre: Array) -> Array:
        matrix = given.A[i] + weight * np.eye(len(centre))
        return np.linalg.solve(matrix, given.b[i] - linear + weight * centre)

    return solve


def gradient_steps(given: Federation, steps: int, lr: float) -> Solve:
    def solve(i: int, start: Array, linear: Array, weight: float, centre: Array) -> Array:
        w = start.copy()
        for _ in range(steps):
            w = w - lr * (given.A[i] @ w - given.b[i] + linear + weight * (w - centre))
        return w

    return solve


def soft_threshold(v: Array, threshold: float) -> Array:
    return np.sign(v) * np.maximum(np.abs(v) - threshold, 0.0)


def begin(start: str, theta: Array, own: Array, seen: bool) -> Array:
    """Initial point of a local solve."""
    if start == "own":
        return own
    if start == "global" or not seen:
        return theta
    return own


def fedadmm(
    given: Federation,
    cohorts: Sequence[Sequence[int]],
    rho: Callable[[int], float],
    solve: Solve,
    step: Callable[[int], float] | None = None,
    start: str = "global",
    members: str = "all",
    increment: str = "exact",
    prox: Callable[[Array, float], Array] = lambda v, t: v,
) -> Array:
    """FedADMM whose server knows every (w_i, y_i, rho_i), so that a mean is really taken as one.

    `step` None is tracking; then the augmented Lagrangian is minimised over theta anew in every
    round, unless `increment` says which sum is moved instead.  Returns theta after every round.
    """
    n, d = given.b.shape
    w, y = np.tile(given.start, (n, 1)), np.zeros((n, d))
    own = np.full(n, rho(0))
    seen: set[int] = set()
    theta, folded = given.start.copy(), given.start.copy()
    trajectory = []
    for t, cohort in enumerate(cohorts):
        r = rho(t)
        change = np.zeros(d)
        for i in cohort:
            moved = solve(i, begin(start, theta, w[i], i in seen), y[i], r, theta)
            dual = y[i] + r * (moved - theta)
            before = w[i] + y[i] / r
            delta = 2 * (moved - theta) if increment == "released" else moved + dual / r - before
            change = change + given.a[i] * delta
            w[i], y[i], own[i] = moved, dual, r
        seen |= set(cohort)
        if cohort and step is None and increment == "exact":
            ids = sorted(seen) if members == "seen" else list(range(n))
            weight = given.a[ids] * own[ids]
            numerator = weight @ w[ids] + given.a[ids] @ y[ids]
            theta = prox(numerator / weight.sum(), given.a[ids].sum() / weight.sum())
        elif cohort:
            share = given.a[list(cohort)].sum()
            folded = folded + (1.0 if step is None else step(t) / share) * change
            theta = prox(folded, 1 / r)
        trajectory.append(theta.copy())
    return np.array(trajectory)


def fedpd(given: Federation, eta: float, silent: Sequence[bool], solve: Solve) -> Array:
    """FedPD with a stored theta_i at every client, as Algorithm 1 of the note prints it."""
    n, d = given.b.shape
    w, y = np.tile(given.start, (n, 1)), np.zeros((n, d))
    own, theta = np.tile(given.start, (n, 1)), given.start.copy()
    trajectory = []
    for skip in silent:
        for i in range(n):
            w[i] = solve(i, w[i], y[i], 1 / eta, own[i])
            y[i] = y[i] + (w[i] - own[i]) / eta
        if skip:
            own = w + eta * y
        else:
            theta = given.a @ (w + eta * y)
            own = np.tile(theta, (n, 1))
        trajectory.append(theta.copy())
    return np.array(trajectory)


def feddr(
    given: Federation,
    cohorts: Sequence[Sequence[int]],
    eta: float,
    alpha: float,
    init: str = "start",
    prox: Callable[[Array, float], Array] = lambda v, t: v,
) -> Array:
    """FedDR that keeps every xhat_i on the server and takes their mean anew in every round."""
    n = given.clients
    v = np.tile(given.start, (n, 1))
    x = v.copy()
    if init == "prox":
        x = np.array([given.prox(i, given.start, eta) for i in range(n)])
    xhat = 2 * x - v
    xbar = given.start.copy() if init == "start" else prox(given.a @ xhat, eta)
    trajectory = []
    for cohort in cohorts:
        for i in cohort:
            v[i] = v[i] + alpha * (xbar - x[i])
            x[i] = given.prox(i, v[i], eta)
            xhat[i] = 2 * x[i] - v[i]
        if cohort:
            xbar = prox(given.a @ xhat, eta)
        trajectory.append(xbar.copy())
    return np.array(trajectory)


def peaceman_rachford(given: Federation, eta: float, rounds: int) -> Array:
    """FedSplit as Pathak and Wainwright print it: reflect, solve, reflect, average."""
    z = np.tile(given.start, (given.clients, 1))
    x = given.start.copy()
    trajectory = []
    for _ in range(rounds):
        half = np.array([given.prox(i, 2 * x - z[i], eta) for i in range(given.clients)])
        z = z + 2 * (half - x)
        x = given.a @ z
        trajectory.append(x.copy())
    return np.array(trajectory)


def composite_optimum(given: Federation, prox: Callable[[Array, float], Array]) -> Array:
    """The minimiser of sum_i a_i f_i + g by proximal gradient, run until it stands still."""
    A, b = np.tensordot(given.a, given.A, 1), given.a @ given.b
    step = 1 / np.linalg.eigvalsh(A)[-1]
    x = given.start.copy()
    for _ in range(5000):
        moved = prox(x - step * (A @ x - b), step)
        if np.array_equal(moved, x):
            break
        x = moved
    return x
