"""FedADMM of Gong, Li and Freris (2022): the constants and the bound of Theorem 1.

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
    """The constants of Theorem 1, equation (8)."""

    c1: float
    c2: float
    c3: float


@checked_arguments
def gong_rho_min(L: Positive) -> float:
    """The smallest rho of Theorem 1, itself excluded: (1 + sqrt(5)) L, where c1 becomes 0."""
    return (1.0 + math.sqrt(5.0)) * L


@checked_arguments
def gong_constants(L: Positive, rho: Positive, p_min: Share) -> GongConstants:
    """c1, c2 and c3 of Theorem 1 (8).

        c1 = p_min ((rho - 2L)/2 - 2L²/rho)
        c2 = 3 (L² + rho²) + 2 (1 + 2L²/rho²)
        c3 = 3 + 16/rho² + (c2/c1) (rho + 16L)/(2 L rho)

    Args:
        L: Lipschitz constant of every gradient of f_i (Assumption 1).
        rho: proximal coefficient, above `gong_rho_min(L)`.
        p_min: the smallest probability with which a client takes part in a round.
    """
    rho_min = gong_rho_min(L)
    if rho <= rho_min:
        raise ParameterError(
            f"gong_constants: rho is {rho!r}, but Theorem 1 needs "
            f"rho > (1+sqrt(5)) L = {rho_min:.4g}"
        )
    c1 = p_min * ((rho - 2.0 * L) / 2.0 - 2.0 * L**2 / rho)
    if c1 <= 0.0:  # rho exceeds rho_min by less than rounding can tell
        raise ParameterError(
            f"gong_constants: rho is {rho!r}, but Theorem 1 needs more than rounding above "
            f"(1+sqrt(5)) L = {rho_min:.4g}: c1 is {c1:.3g}"
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
    """The right-hand side of Theorem 1 (8): a bound on (1/(nT)) sum_{t<T} E[V^t], T = rounds.

        (c2/c1) (gap + eps/(2L)) / T + c3 eps                                     (as printed)
      + [ (c2/c1) (4/rho + 1/(2(rho - L))) + 8/(p_min rho²) ] G0 / T              (the start)

    The printed line is Theorem 1 with eps = `epsilon_max`. It is wrong for the printed start
    w_i = theta, y_i = 0: Lemmas 1 and 3 use ||grad f_i(w_i) + y_i||² <= eps_i, which no client
    fulfils before its first solve. (Started at the minimiser of F, gap is 0 and the printed bound
    says V = 0, yet V^0 = sum ||grad f_i(x0)||² > 0.) The second line, derived here, repairs it:
    a client's first dual step adds at most 4||grad f_i(x0)||²/rho to the Lagrangian, the
    consensus distance of a client that has not been seen costs 8||grad f_i(x0)||²/rho² for an
    expected 1/p_min rounds, and its part of the Lagrangian lies at most
    ||grad f_i(x0)||²/(2(rho - L)) below f_i.

    Args:
        L: Lipschitz constant of the gradients.
        rho: proximal coefficient.
        p_min: the smallest probability of taking part.
        rounds: T, the rounds averaged over.
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
    """The rho that makes c2/c1, and with it the bound for exact solves, smallest.

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
    """The orders of Table I: rounds to an epsilon-stationary point, without the hidden constants.

    Args:
        epsilon: the accuracy.
        m: the clients.
        S: those that take part in a round.
        B: the dissimilarity of the cited theorems, which compare means: sqrt(m) times that of (9).
        G: the bound on the clients' gradients (10).

    FedProx is infinite unless S > B^2 and FedPD unless all clients take part: the conditions of
    the table's footnotes.
    """
    return {
        "FedAvg": (m - S) / (m * S) / epsilon**2 + G / epsilon**1.5 + B**2 / epsilon,
        "FedProx": B**2 / epsilon if S > B**2 else math.inf,
        "SCAFFOLD": 1 / epsilon**2 + (m / S) ** (2 / 3) / epsilon,
        "FedPD": 1 / epsilon if m <= S else math.inf,
        "FedADMM": m / S / epsilon,
    }
