"""asyncFedDR of Tran-Dinh, Pham, Phan and Nguyen (2021): Theorem 4.1 and what can be certified.

Theorem 4.1 does not hold as printed: with clients taking turns (n = 100, T = 99, p_hat = 1, no
delay) and alpha = 0.1, identical quadratics exceed its bound several times. A client's distance to
the server model counts in each of the T + 1 steps of its window, and D counts it once.
`async_certificate` derives the bound anew, step by step:

With x = eta L, w_k = ||x_i⁺ - x_i||² of the step k and V as in `fedadmm.theory.feddr`,

    sum_k (rho/2) w_k <= V^0 - F*           descent, each stale model paid for by the server's moves
    sum_k sum_i ||xbar^k - x_i^k||² <= D sum_k w_k
    ||G_eta(xbar)||² <= (1 + x)²/eta² (1/n) sum_i ||xbar - x_i||²

where ||xhat_i⁺ - xhat_i|| <= (1 + x) ||x_i⁺ - x_i|| bounds the server's moves (the printed rho has
1 + x² where (1 + x)² is needed unless the f_i are convex).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Count, Natural, NotNegative, Positive, Share, checked_arguments
from fedadmm.theory.bounds import SLACKS


class AsyncConstants(NamedTuple):
    """The constants of the bound derived here, named as in (8) to (10)."""

    alpha_bar: float
    eta_bar: float
    rho: float
    D: float
    C_hat: float
    B: float = math.inf
    """It multiplies the start's gradients, which the printed theorem leaves out."""


def _check(owner: str, step: str, value: float, limit: float, why: str) -> None:
    if not 0.0 < value < limit:
        raise ParameterError(
            f"{owner}: {step} is {value!r}, but {why} need 0 < {step} < {step}_bar = {limit:.4g}"
        )


@checked_arguments
def async_alpha_bar(n: Count, tau: Natural) -> float:
    """The limit of alpha (8): 1 if 2 tau² <= n, else 2/(2 + c) with c = (2 tau² - n)/n²."""
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
    """The constants of a bound that holds: mean E||G_eta(xbar^k)||² <= (C_hat gap + B G0)/(K + 1).

    With s = slack, m = max(0, 2 tau² - n), x = eta L:

        A     = 2 - alpha (1 + x) - 2 (1 + s) x² - alpha (1 + s)(1 + x²)
        rho   = (n² A - alpha (1 + s)(1 + x)² m) / (alpha eta n³)
        E     = 4 (T + 1)/(p_hat alpha²) + 4 (T + 1) tau²/(p_hat n²) + 4 T²/n
        D     = (1 + s)(1 + x)² E + 4 T²
        C_hat = 2 (1 + s)(1 + x)² D / (n eta² rho)
        B     = (1 + 1/s) [ C_hat eta (1/alpha + 1/4 + m/(2n²))
                            + (1 + s)(1 + x)² E + (T + 1)/p_hat ]

    Here T >= 0 counts as in Assumption 4.1: among any T + 1 steps k ... k + T there is one at which
    client i is the active one with probability at least p_hat (uniformly drawn clients: T = 0).

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
    # Where constant - linear x - quadratic x² = 0, in the form without cancelling digits.
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
    """The certified bound on the mean of E||G_eta(xbar^k)||² over k = 0 ... K, K = rounds.

        (C_hat gap + B G0) / (K + 1)          with the constants of `async_certificate`

    A round is one server step. Exact local solves. The slack is chosen from a fixed ladder so that
    the bound is smallest. With `init="prox"` leave start_gradient at 0 and add
    `feddr_prox_start_excess` to the gap.

    Args: those of `async_certificate`; gap is F(x0) - F*, start_gradient is
    G0 = (1/n) sum ||grad f_i(x0)||² for `init="start"`.
    """
    exact = async_certificate(n, tau, T, p_hat, L, alpha, eta)
    if start_gradient == 0.0:
        return exact.C_hat * gap / (rounds + 1)
    # rho falls linearly with the slack; the ladder spends at most half of it.
    x, excess = eta * L, max(0, 2 * tau**2 - n)
    price = n**2 * (2.0 * x**2 + alpha * (1.0 + x**2)) + alpha * (1.0 + x) ** 2 * excess
    slack_max = exact.rho * alpha * eta * n**3 / price

    def total(scale: float) -> float:
        slack = min(scale, slack_max * scale / (1.0 + scale))
        certificate = async_certificate(n, tau, T, p_hat, L, alpha, eta, slack=slack)
        return certificate.C_hat * gap + certificate.B * start_gradient

    return min(total(scale) for scale in SLACKS) / (rounds + 1)
