"""FedADMM of Wang, Marella and Anderson (2022): the condition and the constants of Theorem 2.

Their eta is the penalty of the augmented Lagrangian, rho elsewhere in this package; FedDR's step is
its inverse (Theorem 1 there), and Theorem 2 is FedDR's Theorem 3.1 at alpha = 1.
"""

from __future__ import annotations

import math
from typing import Annotated

from annotated_types import Ge, Lt

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Count, NotNegative, Positive, Share, checked_arguments
from fedadmm.theory.feddr import FedDRConstants


@checked_arguments
def wang_eta_min(L: Positive, gamma4: Annotated[float, Ge(0), Lt(0.25)] = 0.0) -> float:
    """The smallest penalty of Theorem 2, itself excluded.

        4L (1 + 2 gamma4) / (sqrt(9 - 16 gamma4 (1 + 4 gamma4)) - 1)

    Positive for gamma4 < 1/4 only; 2L without slack (exact local solves).
    """
    root = math.sqrt(9.0 - 16.0 * gamma4 * (1.0 + 4.0 * gamma4))
    return 4.0 * L * (1.0 + 2.0 * gamma4) / (root - 1.0)


@checked_arguments
def wang_constants(
    L: float,
    eta: Positive,
    p_hat: Share = 1.0,
    *,
    gamma1: NotNegative = 0.0,
    gamma2: NotNegative = 0.0,
    gamma4: float = 0.0,
) -> FedDRConstants:
    """The constants of Theorem 2 as printed, with h = 1/eta and x = hL.

        N    = 2 - (x + 1) - 2x² - 4 gamma4 (1 + x²)
        beta = p_hat N / (2h (1 + gamma1)(1 + x²))
        rho2 = 2 (1 + x)²/(gamma4 h) + (1 + x²)/h + N/(2h (1 + x²) gamma1)
        rho1 = rho2 + (1 + x²)/h
        C1   = 2 (1 + x)² (1 + gamma2)/(h² beta)
        C2   = rho1 C1,     C3 = rho2 C1 + (1 + x)² (1 + gamma2)/(h² gamma2)

    N, beta and C1 are those of `feddr_constants` at alpha = 1. rho1 and rho2 differ: the ones
    derived there carry (1 + x)² on the term with gamma1, so that the printed ones are the larger
    (safer) for gamma1 of about 1/3 and more, and can be too small below. gamma3 appears nowhere.

    Args:
        L: Lipschitz constant of the gradients.
        eta: penalty, above `wang_eta_min(L, gamma4)`.
        p_hat: the smallest probability of taking part.
        gamma1: slack; 0 suits exact solves only.
        gamma2: slack; 0 suits exact solves only.
        gamma4: slack; 0 suits exact solves only.
    """
    eta_min = wang_eta_min(L, gamma4)
    h = 1.0 / eta
    x = h * L
    descent = 2.0 - (x + 1.0) - 2.0 * x**2 - 4.0 * gamma4 * (1.0 + x**2)
    if eta <= eta_min or descent <= 0.0:
        raise ParameterError(
            f"wang_constants: eta is {eta!r}, but Theorem 2 with gamma4 = {gamma4:g} "
            f"needs eta > {eta_min:.4g}"
        )
    beta = p_hat * descent / (2.0 * h * (1.0 + gamma1) * (1.0 + x**2))
    c1 = 2.0 * (1.0 + x) ** 2 * (1.0 + gamma2) / (h**2 * beta)
    if min(gamma1, gamma2, gamma4) == 0.0:
        return FedDRConstants(beta, math.inf, math.inf, c1, math.inf, math.inf)
    rho2 = 2.0 * (1.0 + x) ** 2 / (gamma4 * h) + (1.0 + x**2) / h
    rho2 += descent / (2.0 * h * (1.0 + x**2) * gamma1)
    rho1 = rho2 + (1.0 + x**2) / h
    c3 = rho2 * c1 + (1.0 + x) ** 2 * (1.0 + gamma2) / (h**2 * gamma2)
    return FedDRConstants(beta, rho1, rho2, c1, rho1 * c1, c3)


@checked_arguments
def wang_bound(
    L: float,
    eta: float,
    p_hat: float,
    rounds: Count,
    gap: NotNegative,
    *,
    error_sum: NotNegative = 0.0,
    gamma1: float = 0.0,
    gamma2: float = 0.0,
    gamma4: float = 0.0,
) -> float:
    """Theorem 2 with Corollary 1, K = rounds: [C1 gap + (C2 + C3) D] / (K + 1), D = error_sum.

    It bounds the mean of E||grad f(xbar^k)||² over k = 0 ... K for g = 0. Algorithm 2 starts with
    x_i = x0 and z_i = 0, that is with eps_{i,0} = ||x0 - prox(x0)|| > 0 even for exact solves, so
    that error_sum = 0 is not a bound for it under heterogeneity: `feddr_bound` with alpha = 1,
    step 1/eta and its start_gradient is.

    Args:
        L: Lipschitz constant of the gradients.
        eta: penalty.
        p_hat: the smallest probability of taking part.
        rounds: K.
        gap: F(x0) - F*.
        error_sum: (1/n) sum_i sum_{k=0}^{K+1} eps_{i,k}².
        gamma1: slack; above 0 when error_sum is.
        gamma2: slack; above 0 when error_sum is.
        gamma4: slack; above 0 when error_sum is.
    """
    constants = wang_constants(L, eta, p_hat, gamma1=gamma1, gamma2=gamma2, gamma4=gamma4)
    if error_sum == 0.0:
        return constants.C1 * gap / (rounds + 1)
    if math.isinf(constants.C2):
        raise ParameterError(
            f"wang_bound: error_sum is {error_sum!r}, but inexact solves need "
            f"gamma1, gamma2 and gamma4 above 0"
        )
    return (constants.C1 * gap + (constants.C2 + constants.C3) * error_sum) / (rounds + 1)
