"""asyncFedDR of Tran-Dinh, Pham, Phan and Nguyen (2021): Theorem 4.1, corrected.

Theorem 4.1 does not hold as printed: with cyclic sampling (n = 100, T = 99, p_hat = 1, no delay)
and alpha = 0.1, the measure on identical quadratics is several times the printed bound. A client's
distance to the server model enters in each of the T + 1 steps of its window, but only once in D.
`async_certificate` computes a bound from the following derivation.

With x = eta L, w_k = ||x_i⁺ - x_i||² of the step k and V as in `fedadmm.theory.feddr`,

    sum_k (rho/2) w_k <= V^0 - F*           descent; the server's steps bound the effect of delays
    sum_k sum_i ||xbar^k - x_i^k||² <= D sum_k w_k
    ||G_eta(xbar)||² <= (1 + x)²/eta² (1/n) sum_i ||xbar - x_i||²

where ||xhat_i⁺ - xhat_i|| <= (1 + x) ||x_i⁺ - x_i|| bounds the server's steps (the printed rho has
1 + x² where (1 + x)² is needed unless the f_i are convex).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Count, Natural, NotNegative, Positive, Share, checked_arguments
from fedadmm.theory.bounds import SLACKS


class AsyncConstants(NamedTuple):
    """Constants of the corrected bound, named as in equations (8) to (10) of the paper."""

    alpha_bar: float
    eta_bar: float
    rho: float
    D: float
    C_hat: float
    B: float = math.inf
    """Factor of the squared gradients at the initial point, a term missing from the theorem."""


def _check(owner: str, step: str, value: float, limit: float, why: str) -> None:
    if not 0.0 < value < limit:
        raise ParameterError(
            f"{owner}: {step}: got {value!r}, expected 0 < {step} < {step}_bar = {limit:.4g} for "
            f"{why}."
        )


@checked_arguments
def async_alpha_bar(n: Count, tau: Natural) -> float:
    """Return the upper limit of alpha (8): 1 if 2 tau² <= n, else 2/(2 + (2 tau² - n)/n²)."""
    return 2.0 / (2.0 + max(0, 2 * tau**2 - n) / n**2)


@checked_arguments
def async_certificate(
    n: Count,
    tau: Natural,
    T: Natural,
    p_hat: Share,
    L: Positive,
    alpha: float,
    eta: float,
    *,
    slack: NotNegative = 0.0,
) -> AsyncConstants:
    """Return the constants of the corrected bound on the mean of E||G_eta(xbar^k)||².

    The mean over k = 0 ... K is at most (C_hat gap + B G0)/(K + 1). With s = slack,
    m = max(0, 2 tau² - n) and x = eta L:

        A     = 2 - alpha (1 + x) - 2 (1 + s) x² - alpha (1 + s)(1 + x²)
        rho   = (n² A - alpha (1 + s)(1 + x)² m) / (alpha eta n³)
        E     = 4 (T + 1)/(p_hat alpha²) + 4 (T + 1) tau²/(p_hat n²) + 4 T²/n
        D     = (1 + s)(1 + x)² E + 4 T²
        C_hat = 2 (1 + s)(1 + x)² D / (n eta² rho)
        B     = (1 + 1/s) [ C_hat eta (1/alpha + 1/4 + m/(2n²))
                            + (1 + s)(1 + x)² E + (T + 1)/p_hat ]

    T >= 0 is that of Assumption 4.1: among any T + 1 consecutive steps k ... k + T there is one at
    which client i is active with probability at least p_hat (T = 0 under uniform sampling).

    Args:
        n: number of clients.
        tau: the largest delay, in server steps.
        T: see above.
        p_hat: see above.
        L: Lipschitz constant of the gradients.
        alpha: relaxation.
        eta: step of the proximal operators.
        slack: s > 0 to cover `init="start"` (G0 = (1/n) sum ||grad f_i(x0)||²); 0 gives B = inf.
    """
    owner = "async_certificate"
    excess = max(0, 2 * tau**2 - n)
    wide, c = 1.0 + slack, excess / n**2
    alpha_bar = 2.0 / (1.0 + wide * (1.0 + c))
    why = f"n = {n}, tau = {tau}, slack = {slack:g}"
    _check(owner, "alpha", alpha, alpha_bar, why)
    constant = 2.0 - alpha * (1.0 + wide * (1.0 + c))
    linear, quadratic = alpha * (1.0 + 2.0 * wide * c), wide * (2.0 + alpha * (1.0 + c))
    # The root of constant - linear x - quadratic x², in the form without cancellation.
    root = math.sqrt(linear**2 + 4.0 * quadratic * constant)
    eta_bar = 2.0 * constant / (linear + root) / L
    _check(owner, "eta", eta, eta_bar, f"alpha = {alpha:g}, {why}")
    x = eta * L
    moves = wide * (1.0 + x) ** 2
    descent = 2.0 - alpha * (1.0 + x) - 2.0 * wide * x**2 - alpha * wide * (1.0 + x**2)
    rho = (n**2 * descent - alpha * moves * excess) / (alpha * eta * n**3)
    window = (T + 1) / p_hat
    spread = 4.0 * window * (1.0 / alpha**2 + tau**2 / n**2) + 4.0 * T**2 / n
    D = moves * spread + 4.0 * T**2
    C_hat = 2.0 * moves * D / (n * eta**2 * rho)
    if slack == 0.0:
        return AsyncConstants(alpha_bar, eta_bar, rho, D, C_hat)
    first_steps = C_hat * eta * (1.0 / alpha + 0.25 + c / 2.0)
    B = (1.0 + 1.0 / slack) * (first_steps + moves * spread + window)
    return AsyncConstants(alpha_bar, eta_bar, rho, D, C_hat, B)


@checked_arguments
def async_feddr_bound(
    n: int,
    tau: int,
    T: int,
    p_hat: float,
    L: float,
    alpha: float,
    eta: float,
    rounds: Count,
    gap: NotNegative,
    *,
    start_gradient: NotNegative = 0.0,
) -> float:
    """Return the corrected bound on the mean of E||G_eta(xbar^k)||² over k = 0 ... K, K = rounds.

        (C_hat gap + B G0) / (K + 1)          with the constants of `async_certificate`

    A round is one server step, and local solves must be exact. The slack is the one of a fixed grid
    that gives the smallest bound. With `init="prox"` leave start_gradient at 0 and add
    `feddr_prox_start_excess` to the gap.

    Args:
        n: number of clients.
        tau: the largest delay, in server steps.
        T: as in `async_certificate`.
        p_hat: as in `async_certificate`.
        L: Lipschitz constant of the gradients.
        alpha: relaxation.
        eta: step of the proximal operators.
        rounds: K.
        gap: F(x0) - F*.
        start_gradient: G0 = (1/n) sum ||grad f_i(x0)||² for `init="start"`.
    """
    exact = async_certificate(n, tau, T, p_hat, L, alpha, eta)
    if start_gradient == 0.0:
        return exact.C_hat * gap / (rounds + 1)
    # rho decreases linearly in the slack and stays at least half of its value without slack.
    x, excess = eta * L, max(0, 2 * tau**2 - n)
    price = n**2 * (2.0 * x**2 + alpha * (1.0 + x**2)) + alpha * (1.0 + x) ** 2 * excess
    slack_max = exact.rho * alpha * eta * n**3 / price

    def total(scale: float) -> float:
        slack = min(scale, slack_max * scale / (1.0 + scale))
        certificate = async_certificate(n, tau, T, p_hat, L, alpha, eta, slack=slack)
        return certificate.C_hat * gap + certificate.B * start_gradient

    return min(total(scale) for scale in SLACKS) / (rounds + 1)
