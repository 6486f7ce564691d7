"""Formulas of the papers as printed, to compare with what the package derives."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Printed(NamedTuple):
    alpha_bar: float
    eta_bar: float
    rho: float
    D: float
    C_hat: float


def async_eta_bar(n: int, tau: int, L: float, alpha: float) -> float:
    """FedDR (8), with 12c where the paper prints 4c: rho of (9) vanishes here, not there."""
    c = max(0, 2 * tau**2 - n) / n**2
    root = math.sqrt(16 - 8 * alpha - (7 + 12 * c + 4 * c**2) * alpha**2)
    # The conjugate form of (root - alpha) / (2 [2 + (1 + c) alpha]) keeps digits near alpha_bar.
    return 4 * (2 - (2 + c) * alpha) / (root + alpha) / 2 / L


def async_constants(
    n: int, tau: int, T: int, p_hat: float, L: float, alpha: float, eta: float
) -> Printed:
    """FedDR (8) to (10)."""
    x, excess = eta * L, max(0, 2 * tau**2 - n)
    descent = n**2 * (2 * (1 - alpha) - (2 + alpha) * x**2 - alpha * x)
    rho = (descent - alpha * (1 + x**2) * excess) / (alpha * eta * n**3)
    stale = 8 * alpha**2 * (1 + x**2) * (tau**2 + 2 * T * n * p_hat)
    waiting = 8 * n**2 * (1 + x**2 + T * alpha**2 * p_hat)
    D = (stale + waiting) / (p_hat * alpha**2 * n**2)
    C_hat = 2 * (1 + x) ** 2 * D / (n * eta**2 * rho)
    return Printed(2 / (2 + excess / n**2), async_eta_bar(n, tau, L, alpha), rho, D, C_hat)


def payoffs(clients, reward: float, efforts: np.ndarray) -> np.ndarray:
    """P_i of the incentive game."""
    return reward * efforts * (clients.weights @ efforts) - clients.costs * efforts**2


def potential(clients, reward: float, efforts: np.ndarray) -> float:
    """Phi, which no best response lowers."""
    own = reward * clients.weights**2 / 2 - clients.costs * clients.weights
    return float(reward / 2 * (clients.weights @ efforts) ** 2 + own @ efforts**2)


def best_responses(clients, reward: float) -> Iterator[np.ndarray]:
    """The efforts after each sweep of best responses, from the least efforts."""
    efforts = clients.least.copy()
    while True:
        for i, (weight, cost) in enumerate(zip(clients.weights, clients.costs, strict=True)):
            curvature = 2 * (cost - reward * weight)
            others = clients.weights @ efforts - weight * efforts[i]
            wanted = reward * others / curvature if curvature > 0 else math.inf
            efforts[i] = np.clip(wanted, clients.least[i], clients.most[i])
        yield efforts.copy()
