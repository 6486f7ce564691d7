"""Functions for the bounds of all theorems: minimisation, rounds to an accuracy, noise floor."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Annotated

from annotated_types import Gt, Le

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import NotNegative, Positive, checked_arguments
from fedadmm.core.validation import check

SLACKS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""Grid of slack values; a bound under local errors is the smallest over the grid."""
_MOST_ROUNDS = 10**15


def minimiser(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the minimiser of a unimodal function on [low, high]."""
    from scipy.optimize import minimize_scalar

    options = {"xatol": 1e-7 * high}
    found = minimize_scalar(function, bounds=(low, high), method="bounded", options=options)
    return float(found.x)


@checked_arguments
def rounds_needed(bound: Callable[..., float], accuracy: Positive, **quantities: float) -> int:
    """Return the smallest number of rounds for which a theorem's bound is at most `accuracy`.

    Args:
        bound: `gong_bound`, `feddr_bound` or `async_feddr_bound`.
        accuracy: target for the mean of the squared measure (eps² of FedDR's Definition 2.2).
        **quantities: the arguments of the bound other than `rounds`.

    Raises:
        ParameterError: The bound exceeds the accuracy for every number of rounds.
    """

    def enough(rounds: int) -> bool:  # monotone in rounds
        return bound(rounds=rounds, **quantities) <= accuracy

    high = 1
    while not enough(high):
        if high >= _MOST_ROUNDS:
            floor = bound(rounds=high, **quantities)
            raise ParameterError(
                f"rounds_needed: accuracy: got {accuracy!r}, expected at least {floor:.4g}, the "
                f"limit of {bound.__name__} for many rounds."
            )
        high = min(2 * high, _MOST_ROUNDS)
    return bisect_left(range(high), True, lo=high // 2 + 1, key=enough)


@checked_arguments
def noise_floor(
    L: float, rho: float, convexity: float, learning_rate: float, noise: NotNegative
) -> float:
    """Return an upper bound on the limit of E||grad L_i||² under local SGD with a constant step.

        learning_rate (L + rho)² noise / (convexity + rho)

    On an M-smooth and mu-strongly convex problem, SGD with a learning rate lr <= 1/M and gradient
    variance v brings E[f - f*] down to lr M v/(2 mu), and ||grad||² <= 2M (f - f*).

    Args:
        L: Lipschitz constant of the loss's gradient.
        rho: penalty.
        convexity: strong convexity of the loss, -L if it is not convex.
        learning_rate: at most 1/(L + rho).
        noise: E||batch gradient - gradient||².
    """
    smooth, strong = L + rho, convexity + rho
    check("noise_floor", "convexity + rho", strong, Positive)
    check("noise_floor", "learning_rate", learning_rate, Annotated[float, Gt(0), Le(1.0 / smooth)])
    return learning_rate * smooth**2 * noise / strong
