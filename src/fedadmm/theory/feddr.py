"""Theorem 3.1 on FedDR (Tran-Dinh, Pham, Phan and Nguyen, 2021) and Wang's Theorem 2 on FedADMM.

The step-size conditions (33) and the constants (35) are in a supplement of the paper; Wang, Marella
and Anderson (2022, Theorem 2) print them for alpha = 1. The general form is derived here from one
descent inequality. With x = eta L, d_i = (y_i - x_i)/eta and the Lyapunov function

    V = g(xbar) + (1/n) sum_i [ f_i(x_i) + <d_i, xbar - x_i> + ||xbar - x_i||²/(2 eta) ]

an exact step of client i changes its term by at most -N/(2 alpha eta) ||x_i⁺ - x_i||², where
N = 2 - alpha (1 + x) - 2x² = (1 + x)(2 - 2x - alpha), and
alpha² ||xbar - x_i||² <= 2 (1 + x²) ||x_i⁺ - x_i||². So the steps are admissible exactly when
eta L < 1 - alpha/2. Without slack, eta = 1/(3L), alpha = 1 and p_i = 1/n give C1 = 160 L n / 3 as
in Corollary 3.1.

The derivation assumes xtilde = mean of the xhat_i from the start, as with both choices of `init`.

Wang's eta is the penalty of the augmented Lagrangian, rho elsewhere in this package: Theorem 2 is
Theorem 3.1 at alpha = 1 with the step 1/eta. Its printed rho1 and rho2 lack (1 + x)² on the term
with gamma1 and are too small for a small gamma1; the corrected constants are used instead.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

from annotated_types import Gt, Lt

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Count, NotNegative, Positive, Share, checked_arguments
from fedadmm.core.validation import check
from fedadmm.theory.bounds import SLACKS


class FedDRConstants(NamedTuple):
    """Constants of Theorem 3.1; without slack, the factors of local errors are infinite."""

    beta: float
    rho1: float
    rho2: float
    C1: float
    C2: float
    C3: float


@checked_arguments
def feddr_eta_max(L: Positive, alpha: Annotated[float, Gt(0), Lt(2)] = 1.0) -> float:
    """Return the exclusive upper limit of eta for a given alpha: (1 - alpha/2) / L, from (33).

    Its inverse, 2L for alpha = 1, is the smallest penalty of Wang's Theorem 2.
    """
    return (1.0 - alpha / 2.0) / L


def feddr_alpha_max(L: float, eta: float) -> float:
    """Return the exclusive upper limit of alpha for a given eta < 1/L: 2 (1 - eta L)."""
    check("feddr_alpha_max", "eta", eta, Annotated[float, Gt(0), Lt(1.0 / L)])
    return 2.0 * (1.0 - eta * L)


@checked_arguments
def feddr_constants(
    L: Positive, eta: Positive, alpha: float = 1.0, p_hat: Share = 1.0, *, slack: NotNegative = 0.0
) -> FedDRConstants:
    """Return beta, rho1, rho2 (35) and C1, C2, C3 (5) of Theorem 3.1, for any 0 < alpha < 2.

        N    = 2 - alpha (1 + x) - 2x² - 4 gamma4 (1 + x²),                       x = eta L
        beta = alpha p_hat N / (2 eta (1 + gamma1)(1 + x²))
        rho1 = (1 + x)²/(alpha eta) [ 2 + 1/gamma4 + N/(2 gamma1 (1 + x²)) ]
        rho2 = rho1 + alpha (1 + x)²/(8 gamma4 eta)
        C1   = 2 (1 + x)² (1 + gamma2)/(eta² beta)
        C2   = rho1 C1 + (1 + x)² (1 + gamma2)/(eta² gamma2),     C3 = rho2 C1

    N, beta and C1 are the paper's. rho1 and rho2 are derived here for every alpha, and the last
    term of C2 multiplies eps_{i,k} instead of eps_{i,k+1}, because it comes from the gradient
    mapping at xbar^k, which depends on the errors of round k. gamma3 of the paper is not used.

    Args:
        L: Lipschitz constant of the gradients.
        eta: step of the proximal operators.
        alpha: relaxation, 0 < alpha < 2.
        p_hat: the smallest probability with which a client is sampled (Assumption 3.1).
        slack: s > 0 for inexact solves, 0 for exact ones. gamma1 = gamma2 = s, and gamma4 is
            s/(1 + s) times the value for which N = 0.

    Raises:
        ParameterError: eta is too large for alpha.
    """
    eta_max, x = feddr_eta_max(L, alpha), eta * L
    exact = 2.0 - alpha * (1.0 + x) - 2.0 * x**2
    if eta >= eta_max or exact <= 0.0:
        raise ParameterError(
            f"feddr_constants: eta: got {eta!r}, expected eta < {eta_max:.4g}, as Theorem 3.1 "
            f"requires for alpha = {alpha:g}."
        )
    wide, gamma4 = 1.0 + slack, exact / (4.0 * (1.0 + x**2)) * slack / (1.0 + slack)
    descent = exact / wide
    beta = alpha * p_hat * descent / (2.0 * eta * wide * (1.0 + x**2))
    c1 = 2.0 * (1.0 + x) ** 2 * wide / (eta**2 * beta)
    if slack == 0.0:
        return FedDRConstants(beta, math.inf, math.inf, c1, math.inf, math.inf)
    rho1 = 2.0 + 1.0 / gamma4 + descent / (2.0 * slack * (1.0 + x**2))
    rho1 *= (1.0 + x) ** 2 / (alpha * eta)
    rho2 = rho1 + alpha * (1.0 + x) ** 2 / (8.0 * gamma4 * eta)
    mapping = (1.0 + x) ** 2 * wide / (eta**2 * slack)
    return FedDRConstants(beta, rho1, rho2, c1, rho1 * c1 + mapping, rho2 * c1)


@checked_arguments
def feddr_bound(
    L: float,
    eta: float,
    alpha: float,
    p_hat: float,
    rounds: Count,
    gap: NotNegative,
    *,
    error_sum: NotNegative = 0.0,
    start_gradient: NotNegative = 0.0,
    start_mapping: NotNegative = 0.0,
) -> float:
    """Return the bound of Theorem 3.1 (5) on the mean of E||G_eta(xbar^k)||² over k = 0 ... K.

        [ C1 gap + (C2 + C3) error_sum
          + (rho1 C1 + Q/p_hat) eta² G0/(1 + x)² + ||G_eta(x0)||² ] / (K + 1),   Q = C2 - rho1 C1

    K rounds produce K + 1 server models, xbar^0 ... xbar^K. The slack is the one of a fixed grid
    that gives the smallest bound, or 0 if all solves are exact.

    The last two terms are missing from the paper. With `init="start"` (x_i = y_i = x0), a client
    that has not solved yet has the error grad f_i(x0) in place of eps_{i,0}, for an expected 1/p_i
    rounds. Without this term (5) is wrong: from the minimiser of F it would imply that the model
    never moves. With `init="prox"` leave start_gradient at 0 and add `feddr_prox_start_excess` to
    the gap. If xbar^0 = x0 is not prox_{eta g} of the server's mean, which is also x0, the proof's
    bound on ||G_eta(xbar^k)||² by the distances ||xbar^k - x_i^k||² does not hold at k = 0, where
    all distances are zero; ||G_eta(x0)||² covers that iterate.

    Args:
        L: Lipschitz constant of the gradients.
        eta: step of the proximal operators.
        alpha: relaxation.
        p_hat: the smallest probability with which a client is sampled.
        rounds: K.
        gap: F(x0) - F*.
        error_sum: (1/n) sum_i sum_{k=1}^{K+1} eps_{i,k}², eps the distance to the exact prox; from
            k = 0 with `init="prox"`.
        start_gradient: G0 = (1/n) sum ||grad f_i(x0)||² for `init="start"`.
        start_mapping: ||G_eta(x0)||² for `init="start"` where prox_{eta g}(x0) differs from x0.
    """
    exact = feddr_constants(L, eta, alpha, p_hat)
    if error_sum == 0.0 and start_gradient == 0.0:
        return (exact.C1 * gap + start_mapping) / (rounds + 1)

    def total(slack: float) -> float:
        constants = feddr_constants(L, eta, alpha, p_hat, slack=slack)
        carried = constants.rho1 * constants.C1
        start = (carried + (constants.C2 - carried) / p_hat) * (eta / (1.0 + eta * L)) ** 2
        errors = (constants.C2 + constants.C3) * error_sum
        return constants.C1 * gap + errors + start * start_gradient

    return (min(map(total, SLACKS)) + start_mapping) / (rounds + 1)


@checked_arguments
def feddr_prox_start_excess(
    L: Positive, eta: float, start_gradient: NotNegative, *, epsilon: NotNegative = 0.0
) -> float:
    """Return the term to add to the gap of Theorem 3.1 with `init="prox"`.

    With x = eta L and e = epsilon it is

        ( eta sqrt(G0)/(1 - x) + e )²/eta + (1 + x) e²/(2 eta)

    The paper bounds V^0 by F(x0). But the x_i^0 = prox_{eta f_i}(x0) differ from each other: as
    xbar^0 minimises V^0, which is at most its value with x0 in that place,
    V^0 <= g(x0) + (1/n) sum [f_i(x_i^0) + (3/(2 eta)) ||x0 - x_i^0||²]. A solve at distance e from
    the prox has f_i(x_i^0) + ||x0 - x_i^0||²/(2 eta) <= f_i(x0) + (1 + x) e²/(2 eta), and
    ||x0 - x_i^0|| <= eta ||grad f_i(x0)||/(1 - x) + e. This term is not in the paper.

    Args:
        L: Lipschitz constant of the gradients.
        eta: step of the proximal operators.
        start_gradient: G0 = (1/n) sum ||grad f_i(x0)||².
        epsilon: the largest eps_{i,0} of the initial solves; 0 for exact ones.
    """
    check("feddr_prox_start_excess", "eta", eta, Annotated[float, Gt(0), Lt(1.0 / L)])
    x = eta * L
    moved = eta * math.sqrt(start_gradient) / (1.0 - x) + epsilon
    return moved**2 / eta + (1.0 + x) * epsilon**2 / (2.0 * eta)


@checked_arguments
def feddr_best_steps(L: Positive) -> tuple[float, float]:
    """Return the eta and alpha that minimise C1, and thus the bound for exact solves.

    C1 = (4L/p_hat) (1 + x)(1 + x²) / (alpha x (2 - 2x - alpha)) is smallest at alpha = 1 - x and
    3x³ + 3x² + 3x = 1: eta = 0.2531/L, alpha = 0.7469, C1 = 37.77 L/p_hat, where Corollary 3.1 has
    53.33 L/p_hat.
    """
    x = 0.25
    for _ in range(20):  # Newton's method on an increasing convex cubic
        x -= (3 * x**3 + 3 * x**2 + 3 * x - 1.0) / (9 * x**2 + 6 * x + 3.0)
    return x / L, 1.0 - x
