"""Convergence theorems as functions: constants, admissible step sizes, bounds, best settings.

All arguments and results are plain floats. The docstring of each function cites the equation that
it computes; where a printed formula does not hold, it states the formula computed instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedadmm.theory.async_feddr import (
    AsyncConstants as AsyncConstants,
    async_alpha_bar as async_alpha_bar,
    async_certificate as async_certificate,
    async_feddr_bound as async_feddr_bound,
)
from fedadmm.theory.bounds import noise_floor as noise_floor, rounds_needed as rounds_needed
from fedadmm.theory.feddr import (
    FedDRConstants as FedDRConstants,
    feddr_alpha_max as feddr_alpha_max,
    feddr_best_steps as feddr_best_steps,
    feddr_bound as feddr_bound,
    feddr_constants as feddr_constants,
    feddr_eta_max as feddr_eta_max,
    feddr_prox_start_excess as feddr_prox_start_excess,
)
from fedadmm.theory.gong import (
    GongConstants as GongConstants,
    gong_best_rho as gong_best_rho,
    gong_bound as gong_bound,
    gong_constants as gong_constants,
    gong_rho_min as gong_rho_min,
    table_one as table_one,
)
from fedadmm.theory.insa import insa_sigma_bound as insa_sigma_bound

if TYPE_CHECKING:
    from fedadmm.theory.constants import (
        Constants as Constants,
        estimate_constants as estimate_constants,
    )


def __getattr__(name: str) -> Any:
    """Import names that need torch on first use, so that the formulas load quickly."""
    if name in ("Constants", "estimate_constants"):
        from fedadmm.theory import constants

        return getattr(constants, name)
    raise AttributeError(f"module 'fedadmm.theory' has no attribute {name!r}")
