"""What a learning rate does to a local problem, which is (L + rho)-smooth.

Its strong convexity is convexity + rho, where `convexity` is that of the loss: -L for a loss that
is not convex, so that rho > L is needed then.
"""

from __future__ import annotations

import math

from fedadmm.core.errors import check_not_negative, check_positive, check_range


def learning_rate_range(L: float, rho: float) -> tuple[float, float]:
    """Where gradient steps on a local problem are stable: (0, 2/(L + rho))."""
    check_positive("learning_rate_range", "L", L)
    check_not_negative("learning_rate_range", "rho", rho)
    return 0.0, 2.0 / (L + rho)


def noise_floor(
    L: float, rho: float, convexity: float, learning_rate: float, noise: float
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
    check_positive("noise_floor", "convexity + rho", strong)
    check_range("noise_floor", "learning_rate", learning_rate, 0.0, 1.0 / smooth, open_low=True)
    check_not_negative("noise_floor", "noise", noise)
    return learning_rate * smooth**2 * noise / strong


def steps_to_reduce(L: float, rho: float, convexity: float, factor: float) -> int:
    """Gradient steps of length 1/(L + rho) after which the local gradient is `factor` of its start.

    The distance to the solution shrinks by 1 - 1/kappa a step, kappa = (L + rho)/(convexity + rho),
    and gradient norms lie within kappa of distances: the first k with
    kappa (1 - 1/kappa)^k <= factor.

    Args:
        L: Lipschitz constant of the loss's gradient.
        rho: penalty.
        convexity: strong convexity of the loss, -L if it is not convex.
        factor: sigma of FedADMM-In, below 1.
    """
    smooth, strong = L + rho, convexity + rho
    check_positive("steps_to_reduce", "convexity + rho", strong)
    check_range("steps_to_reduce", "factor", factor, 0.0, 1.0, open_low=True, open_high=True)
    kappa = smooth / strong
    if kappa <= 1.0:
        return 1
    return max(1, math.ceil(math.log(factor / kappa) / math.log1p(-1.0 / kappa)))
