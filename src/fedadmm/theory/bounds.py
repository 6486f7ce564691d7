"""What the theorems share: a ladder of slacks, a search, and the rounds for an accuracy."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Annotated

from annotated_types import Gt, Le

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import NotNegative, Positive, checked_arguments
from fedadmm.core.validation import check

SLACKS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""A bound under local errors takes the best of these."""
_MOST_ROUNDS = 10**15


def minimiser(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one minimum on [low, high] is smallest."""
    from scipy.optimize import minimize_scalar

    options = {"xatol": 1e-7 * high}
    found = minimize_scalar(function, bounds=(low, high), method="bounded", options=options)
    return float(found.x)


@checked_arguments
def rounds_needed(bound: Callable[..., float], accuracy: Positive, **quantities: float) -> int:
    """The smallest number of rounds after which a theorem's bound is at most `accuracy`.

    Args:
        bound: `gong_bound`, `feddr_bound` or `async_feddr_bound`.
        accuracy: the wanted mean of the squared measure (eps² of FedDR's Definition 2.2).
        **quantities: what the bound takes besides `rounds`.
    """

    def enough(rounds: int) -> bool:  # once true, true for more rounds
        return bound(rounds=rounds, **quantities) <= accuracy

    high = 1
    while not enough(high):
        if high >= _MOST_ROUNDS:
            floor = bound(rounds=high, **quantities)
            raise ParameterError(
                f"rounds_needed: accuracy is {accuracy!r}, but {bound.__name__} stays above "
                f"{floor:.4g} for any number of rounds"
            )
        high = min(2 * high, _MOST_ROUNDS)
    return bisect_left(range(high), True, lo=high // 2 + 1, key=enough)


@checked_arguments
def noise_floor(
    L: float, rho: float, convexity: float, learning_rate: float, noise: NotNegative
) -> float:
    """Where E||grad L_i||² of local SGD levels off at the latest.

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
