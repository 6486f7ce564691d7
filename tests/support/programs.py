"""What other people's programs do, in numpy, written from their behaviour and not from their code.

Papers' programs and libraries differ from the printed algorithms in where a client starts, what it
uploads and how the server weighs it.  Each function here is one such behaviour; the names of its
arguments say what is known to differ.  Known mistakes are arguments as well, so that the mended
program is the same function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

import fedadmm as fa
from support.federations import Array, Federation

Gradient = Callable[[int, Array], Array]
Cohorts = Sequence[Sequence[int]]


class Logistic(NamedTuple):
    """Logistic regression with clients of unequal sizes and another truth for each of them."""

    features: list[Array]
    targets: list[Array]
    ridge: float
    start: Array

    @property
    def clients(self) -> int:
        return len(self.targets)

    @property
    def sizes(self) -> Array:
        return np.array([float(len(y)) for y in self.targets])

    def problem(self, weights: Sequence[float] | None = None) -> fa.Problem:
        objectives = [
            fa.LogisticRegression(torch.from_numpy(x), torch.from_numpy(y), self.ridge)
            for x, y in zip(self.features, self.targets, strict=True)
        ]
        return fa.Problem(objectives, weights=weights, initial=torch.from_numpy(self.start))

    def gradient(self, i: int, w: Array) -> Array:
        x, y = self.features[i], self.targets[i]
        return x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y) + self.ridge * w


def logistic(seed: int, clients: int = 4, dimension: int = 3) -> Logistic:
    draws = np.random.default_rng(seed)
    features, targets = [], []
    for i in range(clients):
        x = draws.normal(size=(8 + 5 * i, dimension)) * draws.uniform(0.5, 2.0, dimension)
        truth = draws.normal(scale=2.0, size=dimension)
        features.append(x)
        targets.append((x @ truth + draws.logistic(size=len(x)) > 0).astype(float))
    return Logistic(features, targets, 0.1, draws.normal(size=dimension))


def descend(
    direction: Callable[[Array], Array], start: Array, steps: int, lr: float, momentum: float = 0.0
) -> Array:
    """Gradient steps, with momentum as an optimiser that is made anew in every round has it."""
    w, velocity = start.copy(), np.zeros_like(start)
    for _ in range(steps):
        velocity = momentum * velocity + direction(w)
        w = w - lr * velocity
    return w


def slope(
    gradient: Gradient,
    i: int,
    linear: Array | float,
    weight: float = 0.0,
    centre: Array | float = 0.0,
) -> Callable[[Array], Array]:
    """The gradient of f_i(w) + <linear, w> + (weight/2) ||w - centre||^2."""
    return lambda w: gradient(i, w) + linear + weight * (w - centre)


class Work(NamedTuple):
    """The local work of a client: so many full-batch steps."""

    steps: int
    lr: float
    momentum: float = 0.0

    def __call__(self, direction: Callable[[Array], Array], start: Array) -> Array:
        return descend(direction, start, *self)


def released_fedadmm(
    gradient: Gradient,
    start: Array,
    cohorts: Cohorts,
    shares: Array,
    rho: float,
    work: Work,
    change: int,
) -> Array:
    """Gong's program, and FL-bench's FedADMM: train from theta, send 2 (w - theta), step 1 or 0.5.

    What looks like an increment of w + y/rho is one of theta + y/rho, because the model that the
    client calls its old one is the theta that it has just loaded.
    """
    theta, y = start.copy(), np.zeros((len(shares), len(start)))
    trajectory = []
    for t, cohort in enumerate(cohorts):
        update = np.zeros_like(theta)
        for i in cohort:
            w = work(slope(gradient, i, y[i], rho, theta), theta)
            before, y[i] = y[i].copy(), y[i] + rho * (w - theta)
            update = update + shares[i] * ((w - theta) + (y[i] - before) / rho)
        theta = theta + (1.0 if t < change else 0.5) * update / shares[list(cohort)].sum()
        trajectory.append(theta)
    return np.array(trajectory)


def wang(
    gradient: Gradient, start: Array, cohorts: Cohorts, n: int, eta: float, work: Work
) -> Array:
    """Wang's program: a client's first local solve starts at xbar, and so does its slot.

    The server keeps one slot per client and averages the slots.  Those of clients that were not
    seen yet refer to the global model's parameters, so that they hold the current xbar.
    """
    xbar, slots = start.copy(), np.tile(start, (n, 1))
    x: dict[int, Array] = {}
    lam = np.zeros((n, len(start)))
    trajectory = []
    for cohort in cohorts:
        for i in cohort:
            x[i] = work(slope(gradient, i, lam[i], 1 / eta, xbar), x.get(i, xbar))
            lam[i] = lam[i] + (x[i] - xbar) / eta
            slots[i] = x[i] + eta * lam[i]
        slots[[i for i in range(n) if i not in x]] = xbar
        xbar = slots.mean(0)
        trajectory.append(xbar)
    return np.array(trajectory)


def feddr(
    given: Federation,
    arrivals: Sequence[tuple[Sequence[int], Sequence[int]]],
    eta: float,
    alpha: float,
    slots_at_zero: bool,
    prox: Callable[[Array, float], Array] = lambda v, t: v,
) -> Array:
    """FedDR's and asyncFedDR's programs: v_i = 0 whatever x^0 is, while x_i = x^0.

    The server averages what it holds of every client, which is x^0 at first in asyncFedDR's program
    and zero in FedDR's.  An arrival is the clients that reply and how old their models are.
    """
    v, x = np.zeros_like(given.b), np.tile(given.start, (given.clients, 1))
    slots = np.zeros_like(v) if slots_at_zero else x.copy()
    models = [given.start.copy()]
    for step, (cohort, delays) in enumerate(arrivals):
        for i, delay in zip(cohort, delays, strict=True):
            v[i] = v[i] + alpha * (models[step - delay] - x[i])
            x[i] = given.prox(i, v[i], eta)
            slots[i] = 2 * x[i] - v[i]
        models.append(prox(given.a @ slots, eta))
    return np.array(models[1:])


def insa(
    gradient: Gradient,
    start: Array,
    cohorts: Cohorts,
    n: int,
    beta: float,
    lr: float,
    mu: float,
    tau: float,
    delta: float,
    c: float,
    epochs: int,
) -> tuple[Array, Array, list[int]]:
    """InSa's program: start at z, compare with e(z) before each epoch, mix z with its last value.

    Everybody's (u_i, lambda_i) is averaged in every round with the penalty that the client has now.
    Returns z after every round, the last penalties, and how many epochs each solve took.
    """
    z, u, lam = start.copy(), np.tile(start, (n, 1)), np.zeros((n, len(start)))
    betas, taken, trajectory = np.full(n, beta), [], []
    for cohort in cohorts:
        following = betas.copy()
        for i in cohort:
            e = slope(gradient, i, -lam[i], betas[i], z)
            sigma = 0.999 * math.sqrt(2) / (math.sqrt(2) + math.sqrt(betas[i] / c))
            w, epoch = z.copy(), 0
            while np.linalg.norm(e(w)) > sigma * np.linalg.norm(e(z)) and epoch < epochs:
                w, epoch = w - lr * e(w), epoch + 1
            taken.append(epoch)
            p, d = betas[i] * np.linalg.norm(w - u[i]), np.linalg.norm(w - z)
            following[i] = betas[i] * (tau if d > mu * p else 1 / tau if p > mu * d else 1.0)
            lam[i], u[i] = lam[i] - betas[i] * (w - z), w
        fresh = (betas @ u - lam.sum(0)) / betas.sum()
        z, betas = (fresh + delta * z) / (1 + delta), following
        trajectory.append(z)
    return np.array(trajectory), betas, taken


def scaffold(
    gradient: Gradient,
    start: Array,
    cohorts: Cohorts,
    n: int,
    work: Work,
    step: float = 1.0,
    stores: bool = True,
    corrects: bool = True,
) -> Array:
    """SCAFFOLD as Acar's program and PFLlib have it: Delta c = (theta - w)/(K lr) - c.

    Two mistakes: c_i that nobody `stores` (FL-bench), and gradients that nobody `corrects` because
    the corrected ones are never written back (FedLab).
    """
    theta, c, own = start.copy(), np.zeros_like(start), np.zeros((n, len(start)))
    trajectory = []
    for cohort in cohorts:
        moves, changes = np.zeros_like(theta), np.zeros_like(theta)
        for i in cohort:
            w = work(slope(gradient, i, c - own[i] if corrects else 0.0), theta)
            change = (theta - w) / (work.steps * work.lr) - c
            moves, changes = moves + (w - theta), changes + change
            if stores:
                own[i] = own[i] + change
        theta = theta + step * moves / len(cohort)
        c = c + changes / n
        trajectory.append(theta)
    return np.array(trajectory)


LocalSolve = Callable[[int, Array, Array, float], Array]
"""(client, theta, the client's sum of moves, alpha_i) -> its next model."""


def feddyn(
    solve: LocalSolve,
    start: Array,
    cohorts: Cohorts,
    alphas: Array,
) -> Array:
    """FedDyn as Acar's program has it: plain means, and sums of w - theta in place of duals."""
    theta, history = start.copy(), np.zeros((len(alphas), len(start)))
    trajectory = []
    for cohort in cohorts:
        models = np.array([solve(i, theta, history[i], alphas[i]) for i in cohort])
        history[list(cohort)] += models - theta
        theta = models.mean(0) + history.mean(0)
        trajectory.append(theta)
    return np.array(trajectory)


def held(
    gradient: Gradient,
    work: Work,
    penalty: Callable[[Array, Array], Array] = lambda w, theta: w - theta,
    detached: bool = False,
) -> LocalSolve:
    """FedDyn's local solve by gradient steps.

    Two mistakes: another `penalty` than the gradient of ||w - theta||^2 / 2 (PFLlib, FL-bench), and
    terms that are `detached` from w, so that they have a value and no gradient (FedLab).
    """

    def solve(i: int, theta: Array, history: Array, alpha: float) -> Array:
        def pulled(w: Array) -> Array:
            terms = alpha * (penalty(w, theta) + history)
            return gradient(i, w) + (0.0 if detached else terms)

        return work(pulled, theta)

    return solve
