"""Constants and bound of Theorem 1 on FedADMM by Gong, Li and Freris (2022).

The paper minimises sum_i f_i; here F = (1/n) sum_i f_i, so that L^0 - f* = n (F(x0) - F*) and the
number of clients cancels from both sides of equation (8).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Count, NotNegative, Positive, Share, checked_arguments
from fedadmm.theory.bounds import minimiser


class GongConstants(NamedTuple):
    """Constants of Theorem 1, equation (8)."""

    c1: float
    c2: float
    c3: float


@checked_arguments
def gong_rho_min(L: Positive) -> float:
    """Return the exclusive lower limit of rho in Theorem 1: (1 + sqrt(5)) L, for which c1 = 0."""
    return (1.0 + math.sqrt(5.0)) * L


@checked_arguments
def gong_constants(L: Positive, rho: Positive, p_min: Share) -> GongConstants:
    """Return c1, c2 and c3 of Theorem 1 (8).

        c1 = p_min ((rho - 2L)/2 - 2L²/rho)
        c2 = 3 (L² + rho²) + 2 (1 + 2L²/rho²)
        c3 = 3 + 16/rho² + (c2/c1) (rho + 16L)/(2 L rho)

    Args:
        L: Lipschitz constant of every gradient of f_i (Assumption 1).
        rho: proximal coefficient, above `gong_rho_min(L)`.
        p_min: the smallest probability with which a client is sampled in a round.

    Raises:
        ParameterError: rho is not above the limit.
    """
    rho_min = gong_rho_min(L)
    if rho <= rho_min:
        raise ParameterError(
            f"gong_constants: rho: got {rho!r}, expected rho > (1+sqrt(5)) L = {rho_min:.4g}, as "
            "Theorem 1 requires."
        )
    c1 = p_min * ((rho - 2.0 * L) / 2.0 - 2.0 * L**2 / rho)
    if c1 <= 0.0:  # rho exceeds rho_min by less than the rounding error of c1
        raise ParameterError(
            f"gong_constants: rho: got {rho!r}, expected more than a rounding error above "
            f"(1+sqrt(5)) L = {rho_min:.4g}, because c1 evaluates to {c1:.3g}."
        )
    c2 = 3.0 * (L**2 + rho**2) + 2.0 * (1.0 + 2.0 * L**2 / rho**2)
    c3 = 3.0 + 16.0 / rho**2 + c2 / c1 * (rho + 16.0 * L) / (2.0 * L * rho)
    return GongConstants(c1, c2, c3)


@checked_arguments
def gong_bound(
    L: float,
    rho: float,
    p_min: float,
    rounds: Count,
    gap: NotNegative,
    *,
    epsilon_max: NotNegative = 0.0,
    start_gradient: NotNegative = 0.0,
) -> float:
    """Return the right-hand side of Theorem 1 (8), a bound on (1/(nT)) sum_{t<T} E[V^t].

        (c2/c1) (gap + eps/(2L)) / T + c3 eps                                     (as printed)
      + [ (c2/c1) (4/rho + 1/(2(rho - L))) + 8/(p_min rho²) ] G0 / T              (the start)

    The first line is Theorem 1 with eps = `epsilon_max`. It does not hold for the start of the
    paper, w_i = theta and y_i = 0: Lemmas 1 and 3 use ||grad f_i(w_i) + y_i||² <= eps_i, which does
    not hold before a client's first solve. (At the minimiser of F, gap is 0 and the printed bound
    implies V = 0, yet V^0 = sum ||grad f_i(x0)||² > 0.) The second line corrects this: a client's
    first dual step adds at most 4||grad f_i(x0)||²/rho to the Lagrangian, the consensus distance of
    a client before its first solve adds 8||grad f_i(x0)||²/rho² for an expected 1/p_min rounds, and
    its term of the Lagrangian is at most ||grad f_i(x0)||²/(2(rho - L)) below f_i.

    Args:
        L: Lipschitz constant of the gradients.
        rho: proximal coefficient.
        p_min: the smallest probability with which a client is sampled.
        rounds: T, the number of rounds in the mean.
        gap: F(x0) - F* of the mean objective F.
        epsilon_max: the largest local accuracy, ||grad L_i||² <= epsilon_i (6).
        start_gradient: G0 = (1/n) sum ||grad f_i(x0)||²; 0 when the duals start at -grad f_i(x0).
    """
    c1, c2, c3 = gong_constants(L, rho, p_min)
    descent = gap + epsilon_max / (2.0 * L)
    descent += start_gradient * (4.0 / rho + 0.5 / (rho - L))
    unseen = 8.0 * start_gradient / (p_min * rho**2)
    return (c2 / c1 * descent + unseen) / rounds + c3 * epsilon_max


def gong_best_rho(L: float) -> float:
    """Return the rho that minimises c2/c1, and thus the bound for exact solves.

    c2 is convex and c1 concave in rho, so that their ratio has one minimum.
    """
    low = gong_rho_min(L)

    def ratio(rho: float) -> float:
        c1, c2, _ = gong_constants(L, rho, 1.0)
        return c2 / c1

    return minimiser(ratio, low * (1.0 + 1e-6), 20.0 * max(low, 1.0))


@checked_arguments
def table_one(
    epsilon: Positive, m: Count, S: Positive, B: NotNegative, G: NotNegative
) -> dict[str, float]:
    """Return the orders of Table I: rounds to an epsilon-stationary point, up to constant factors.

    Args:
        epsilon: the accuracy.
        m: number of clients.
        S: number of participants per round.
        B: the dissimilarity of the cited theorems, which compare means: sqrt(m) times that of (9).
        G: the bound on the clients' gradients (10).

    Returns:
        The order of each method by its name. By the conditions in the table's footnotes, FedProx is
        infinite unless S > B^2, and FedPD unless all clients participate.
    """
    return {
        "FedAvg": (m - S) / (m * S) / epsilon**2 + G / epsilon**1.5 + B**2 / epsilon,
        "FedProx": B**2 / epsilon if S > B**2 else math.inf,
        "SCAFFOLD": 1 / epsilon**2 + (m / S) ** (2 / 3) / epsilon,
        "FedPD": 1 / epsilon if m <= S else math.inf,
        "FedADMM": m / S / epsilon,
    }
