"""Inexactness criterion of FedADMM-In (Song, Wang and Zuazua, 2024)."""

from __future__ import annotations

import math

from fedadmm.core.parts import Positive, checked_arguments


@checked_arguments
def insa_sigma_bound(beta: Positive, c: Positive) -> float:
    """Return the exclusive upper limit of sigma_i, sqrt(2) / (sqrt(2) + sqrt(beta/c)).

    The criterion is ||e_i(u_i^{k+1})|| <= sigma_i ||e_i(u_i^k)|| with e_i the gradient of the
    augmented Lagrangian of client i (Song, Wang and Zuazua 2024, slide "FedADMM-In: inexactness
    criterion"). Convergence is stated for full participation and c-strongly convex losses.

    Args:
        beta: penalty of the client.
        c: strong convexity constant of the client's loss.
    """
    return math.sqrt(2.0) / (math.sqrt(2.0) + math.sqrt(beta / c))
