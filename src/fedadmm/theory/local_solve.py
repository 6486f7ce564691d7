"""What a learning rate does to a local problem, and how inexact FedADMM-InSa's solves may be.

A local problem is (L + rho)-smooth.  Its strong convexity is convexity + rho, where `convexity` is
that of the loss: -L for a loss that is not convex, so that rho > L is needed then.
"""

from __future__ import annotations

import math
from typing import Annotated

from annotated_types import Gt, Le

from fedadmm.core.parts import NotNegative, Positive, checked_arguments
from fedadmm.core.validation import check


@checked_arguments
def learning_rate_range(L: Positive, rho: NotNegative) -> tuple[float, float]:
    """Where gradient steps on a local problem are stable: (0, 2/(L + rho))."""
    return 0.0, 2.0 / (L + rho)


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


@checked_arguments
def insa_sigma_bound(beta: Positive, c: Positive) -> float:
    """The upper limit of sigma_i, itself excluded: sqrt(2) / (sqrt(2) + sqrt(beta/c)).

    The criterion is ||e_i(u_i^{k+1})|| <= sigma_i ||e_i(u_i^k)|| with e_i the gradient of the
    augmented Lagrangian of client i (Song, Wang and Zuazua 2024, slide "FedADMM-In: inexactness
    criterion"). Convergence is
    stated for full participation and losses that are c-strongly convex.

    Args:
        beta: penalty of the client.
        c: strong convexity constant of the client's loss.
    """
    return math.sqrt(2.0) / (math.sqrt(2.0) + math.sqrt(beta / c))
