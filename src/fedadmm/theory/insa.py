"""FedADMM-InSa of Song, Wang and Zuazua (2024): how inexact a local solve may be."""

from __future__ import annotations

import math

from fedadmm.core.errors import check_positive, check_range


def insa_sigma_bound(beta: float, c: float) -> float:
    """The upper limit of sigma_i, itself excluded: sqrt(2) / (sqrt(2) + sqrt(beta/c)).

    The criterion is ||e_i(u_i^{k+1})|| <= sigma_i ||e_i(u_i^k)|| with e_i the gradient of the
    augmented Lagrangian of client i (slide "FedADMM-In: inexactness criterion"). Convergence is
    stated for full participation and losses that are c-strongly convex.

    Args:
        beta: penalty of the client.
        c: strong convexity constant of the client's loss.
    """
    check_positive("insa_sigma_bound", "beta", beta)
    check_positive("insa_sigma_bound", "c", c)
    return math.sqrt(2.0) / (math.sqrt(2.0) + math.sqrt(beta / c))


def insa_beta_bound(sigma: float, c: float) -> float:
    """The penalty below which sigma is allowed, 2c (1/sigma - 1)²: `insa_sigma_bound` inverted."""
    check_range("insa_beta_bound", "sigma", sigma, 0.0, 1.0, open_low=True, open_high=True)
    check_positive("insa_beta_bound", "c", c)
    return 2.0 * c * (1.0 / sigma - 1.0) ** 2
