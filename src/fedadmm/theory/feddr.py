"""FedDR of Tran-Dinh, Pham, Phan and Nguyen (2021), Theorem 3.1, and Wang's Theorem 2 on FedADMM.

The paper puts its step-size conditions (33) and the constants (35) into a supplement and only
Wang, Marella and Anderson (2022, Theorem 2) print them, for alpha = 1. The general form is derived
here from one descent inequality. With x = eta L, d_i = (y_i - x_i)/eta and the Lyapunov function

    V = g(xbar) + (1/n) sum_i [ f_i(x_i) + <d_i, xbar - x_i> + ||xbar - x_i||²/(2 eta) ]

an exact step of client i changes its term by at most -N/(2 alpha eta) ||x_i⁺ - x_i||², where
N = 2 - alpha (1 + x) - 2x² = (1 + x)(2 - 2x - alpha), and
alpha² ||xbar - x_i||² <= 2 (1 + x²) ||x_i⁺ - x_i||². So the steps are admissible exactly when
eta L < 1 - alpha/2. For alpha = 1 everything agrees with Wang's Theorem 2, and eta = 1/(3L),
p_i = 1/n give C1 = 160 L n / 3 as in Corollary 3.1.

The server must hold xtilde = mean of the xhat_i from the start, as with both choices of `init`.

Wang's eta is the penalty of the augmented Lagrangian, rho elsewhere in this package; FedDR's step
is its inverse, and Theorem 2 is FedDR's Theorem 3.1 at alpha = 1.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt, Lt

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Count, NotNegative, Positive, Share, checked_arguments
from fedadmm.core.validation import check

SLACK_SCALES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)


def positive_root(constant: float, linear: float, quadratic: float) -> float:
    """The x > 0 with constant - linear x - quadratic x² = 0, for positive coefficients."""
    root = math.sqrt(linear**2 + 4.0 * quadratic * constant)
    # The conjugate form of (root - linear) / (2 quadratic): no digits cancel for a small constant.
    return 2.0 * constant / (linear + root)


class FedDRConstants(NamedTuple):
    """The constants of Theorem 3.1; those that multiply local errors are infinite without slack."""

    beta: float
    rho1: float
    rho2: float
    C1: float
    C2: float
    C3: float


@checked_arguments
def feddr_eta_max(
    L: Positive, alpha: float = 1.0, gamma4: Annotated[float, Ge(0), Lt(0.5)] = 0.0
) -> float:
    """The largest eta, itself excluded, that keeps beta of (35) positive: the condition (33).

    It solves 2 - alpha (1 + x) - 2x² - 4 gamma4 (1 + x²) = 0 for x = eta L; without slack
    (exact local solves) that is eta = (2 - alpha) / (2L).
    """
    high = 2.0 - 4.0 * gamma4
    if not 0.0 < alpha < high:
        raise ParameterError(
            f"feddr_eta_max: alpha is {alpha!r}, but Theorem 3.1 needs "
            f"0 < alpha < 2 - 4 gamma4 = {high:g}"
        )
    return positive_root(high - alpha, alpha, 2.0 + 4.0 * gamma4) / L


@checked_arguments
def feddr_alpha_max(
    L: Positive, eta: Positive, gamma4: Annotated[float, Ge(0), Lt(0.5)] = 0.0
) -> float:
    """The largest alpha, itself excluded, for a given eta: the condition (33) read the other way.

    alpha < (2 - 2x² - 4 gamma4 (1 + x²)) / (1 + x) with x = eta L; without slack 2 (1 - eta L).
    """
    x = eta * L
    alpha = (2.0 - 2.0 * x**2 - 4.0 * gamma4 * (1.0 + x**2)) / (1.0 + x)
    if alpha <= 0.0:
        limit = math.sqrt((1.0 - 2.0 * gamma4) / (1.0 + 2.0 * gamma4)) / L
        raise ParameterError(
            f"feddr_alpha_max: eta is {eta!r}, but Theorem 3.1 allows no alpha unless "
            f"eta < {limit:.4g}"
        )
    return alpha


@checked_arguments
def feddr_constants(
    L: Positive,
    eta: Positive,
    alpha: float = 1.0,
    p_hat: Share = 1.0,
    *,
    gamma1: NotNegative = 0.0,
    gamma2: NotNegative = 0.0,
    gamma4: float = 0.0,
) -> FedDRConstants:
    """beta, rho1, rho2 (35) and C1, C2, C3 (5) of Theorem 3.1, for any 0 < alpha < 2.

        N    = 2 - alpha (1 + x) - 2x² - 4 gamma4 (1 + x²),                       x = eta L
        beta = alpha p_hat N / (2 eta (1 + gamma1)(1 + x²))
        rho1 = (1 + x)²/(alpha eta) [ 2 + 1/gamma4 + N/(2 gamma1 (1 + x²)) ]
        rho2 = rho1 + alpha (1 + x)²/(8 gamma4 eta)
        C1   = 2 (1 + x)² (1 + gamma2)/(eta² beta)
        C2   = rho1 C1 + (1 + x)² (1 + gamma2)/(eta² gamma2),     C3 = rho2 C1

    N, beta and C1 are the paper's. rho1 and rho2 are derived here for every alpha (the paper's
    are in its supplement; for those printed by Wang at alpha = 1 see `wang_constants`), and the
    last term of C2 multiplies eps_{i,k} instead of eps_{i,k+1}: it comes from the gradient
    mapping at xbar^k, which sees the present errors. gamma3 of the paper appears nowhere.

    Args:
        L: Lipschitz constant of the gradients.
        eta: step of the proximal operators.
        alpha: relaxation, 0 < alpha < 2.
        p_hat: the smallest probability of taking part (Assumption 3.1).
        gamma1: slack of the step against local errors; 0 suits exact solves only.
        gamma2: slack of the gradient mapping against local errors; 0 suits exact solves only.
        gamma4: slack of the descent against local errors; 0 suits exact solves only.
    """
    eta_max = feddr_eta_max(L, alpha, gamma4)
    x = eta * L
    descent = 2.0 - alpha * (1.0 + x) - 2.0 * x**2 - 4.0 * gamma4 * (1.0 + x**2)
    if eta >= eta_max or descent <= 0.0:
        raise ParameterError(
            f"feddr_constants: eta is {eta!r}, but Theorem 3.1 with alpha = {alpha:g} and "
            f"gamma4 = {gamma4:g} needs eta < {eta_max:.4g}"
        )
    beta = alpha * p_hat * descent / (2.0 * eta * (1.0 + gamma1) * (1.0 + x**2))
    c1 = 2.0 * (1.0 + x) ** 2 * (1.0 + gamma2) / (eta**2 * beta)
    if min(gamma1, gamma2, gamma4) == 0.0:
        return FedDRConstants(beta, math.inf, math.inf, c1, math.inf, math.inf)
    rho1 = 2.0 + 1.0 / gamma4 + descent / (2.0 * gamma1 * (1.0 + x**2))
    rho1 *= (1.0 + x) ** 2 / (alpha * eta)
    rho2 = rho1 + alpha * (1.0 + x) ** 2 / (8.0 * gamma4 * eta)
    mapping = (1.0 + x) ** 2 * (1.0 + gamma2) / (eta**2 * gamma2)
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
    """Theorem 3.1 (5): a bound on the mean of E||G_eta(xbar^k)||² over k = 0 ... K, K = rounds.

        [ C1 gap + (C2 + C3) error_sum
          + (rho1 C1 + Q/p_hat) eta² G0/(1 + x)² + ||G_eta(x0)||² ] / (K + 1),   Q = C2 - rho1 C1

    After K rounds the server has had K + 1 models, xbar^0 ... xbar^K. The slacks gamma are chosen
    from a fixed ladder so that the bound is smallest; without any error they are 0.

    The last two terms are not printed. With `init="start"` (x_i = y_i = x0) a client that has not
    solved yet carries the error grad f_i(x0) in place of eps_{i,0}, for an expected 1/p_i rounds.
    Without it (5) is wrong: started at the minimiser of F it says that the model never moves. With
    `init="prox"` leave start_gradient at 0 and add `feddr_prox_start_excess` to the gap. And where
    xbar^0 = x0 is not prox_{eta g} of the server's mean, which is x0 too, the proof's bound on
    ||G_eta(xbar^k)||² by the distances ||xbar^k - x_i^k||², all zero then, begins with k = 1 only.

    Args:
        L: Lipschitz constant of the gradients.
        eta: step of the proximal operators.
        alpha: relaxation.
        p_hat: the smallest probability of taking part.
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
    x = eta * L
    gamma4_max = (2.0 - alpha * (1.0 + x) - 2.0 * x**2) / (4.0 * (1.0 + x**2))

    def total(scale: float) -> float:
        constants = feddr_constants(
            L,
            eta,
            alpha,
            p_hat,
            gamma1=scale,
            gamma2=scale,
            gamma4=gamma4_max * scale / (1 + scale),
        )
        carried = constants.rho1 * constants.C1
        start = (carried + (constants.C2 - carried) / p_hat) * (eta / (1.0 + x)) ** 2
        errors = (constants.C2 + constants.C3) * error_sum
        return constants.C1 * gap + errors + start * start_gradient

    return (min(total(scale) for scale in SLACK_SCALES) + start_mapping) / (rounds + 1)


@checked_arguments
def feddr_prox_start_excess(
    L: Positive, eta: float, start_gradient: NotNegative, *, epsilon: NotNegative = 0.0
) -> float:
    """What `init="prox"` adds to the gap of Theorem 3.1, with x = eta L and e = epsilon.

        ( eta sqrt(G0)/(1 - x) + e )²/eta + (1 + x) e²/(2 eta)

    The paper bounds V^0 by F(x0). But the x_i^0 = prox_{eta f_i}(x0) differ from each other: as
    xbar^0 minimises V^0, which is at most its value with x0 in that place,
    V^0 <= g(x0) + (1/n) sum [f_i(x_i^0) + (3/(2 eta)) ||x0 - x_i^0||²]. A solve that misses the
    prox by e has f_i(x_i^0) + ||x0 - x_i^0||²/(2 eta) <= f_i(x0) + (1 + x) e²/(2 eta), and
    ||x0 - x_i^0|| <= eta ||grad f_i(x0)||/(1 - x) + e. Derived here.

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
def feddr_corollary_bound(L: Positive, n: Count, rounds: Count, gap: NotNegative) -> float:
    """Corollary 3.1 (6), K = rounds: 160 L n / (3 (K + 1)) [F(x0) - F*].

    Exact local solves, alpha = 1, eta = 1/(3L), one client a round (p_i = 1/n). It is Theorem 3.1
    without slack: beta = 3L/(5n), C1 = 160 L n / 3. The remarks on the start in `feddr_bound` hold
    here too.
    """
    return 160.0 * L * n / (3.0 * (rounds + 1)) * gap


@checked_arguments
def feddr_best_steps(L: Positive) -> tuple[float, float]:
    """The eta and alpha that make C1, and with it the bound for exact solves, smallest.

    C1 = (4L/p_hat) (1 + x)(1 + x²) / (alpha x (2 - 2x - alpha)) is smallest at alpha = 1 - x and
    3x³ + 3x² + 3x = 1: eta = 0.2531/L, alpha = 0.7469, C1 = 37.77 L/p_hat, where Corollary 3.1 has
    53.33 L/p_hat.
    """
    x = 0.25
    for _ in range(20):  # Newton's method on an increasing convex cubic
        x -= (3 * x**3 + 3 * x**2 + 3 * x - 1.0) / (9 * x**2 + 6 * x + 3.0)
    return x / L, 1.0 - x


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

    Args: those of `feddr_constants`, but eta is the penalty, above `wang_eta_min(L, gamma4)`.
    """
    eta_min = wang_eta_min(L, gamma4)
    if eta <= eta_min:
        raise ParameterError(
            f"wang_constants: eta is {eta!r}, but Theorem 2 with gamma4 = {gamma4:g} "
            f"needs eta > {eta_min:.4g}"
        )
    h, x = 1.0 / eta, L / eta
    derived = feddr_constants(L, h, 1.0, p_hat, gamma1=gamma1, gamma2=gamma2, gamma4=gamma4)
    if math.isinf(derived.C2):
        return derived
    rho2 = 2.0 * (1.0 + x) ** 2 / (gamma4 * h) + (1.0 + x**2) / h
    rho2 += derived.beta * (1.0 + gamma1) / (p_hat * gamma1)
    rho1 = rho2 + (1.0 + x**2) / h
    mapping = (1.0 + x) ** 2 * (1.0 + gamma2) / (h**2 * gamma2)
    c2, c3 = rho1 * derived.C1, rho2 * derived.C1 + mapping
    return derived._replace(rho1=rho1, rho2=rho2, C2=c2, C3=c3)


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

    Args: those of `feddr_bound`, but eta is the penalty; error_sum, (1/n) sum_i
    sum_{k=0}^{K+1} eps_{i,k}², needs slacks gamma above 0.
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
