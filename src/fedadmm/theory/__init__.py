"""The theorems as a tool: constants, admissible steps, bounds and recommended settings.

Plain floats throughout. Every function names the equation that it computes, and says so where a
printed formula does not hold and what is computed instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedadmm.theory.async_feddr import AsyncConstants as AsyncConstants
from fedadmm.theory.async_feddr import async_alpha_bar as async_alpha_bar
from fedadmm.theory.async_feddr import async_certificate as async_certificate
from fedadmm.theory.async_feddr import async_feddr_bound as async_feddr_bound
from fedadmm.theory.bounds import noise_floor as noise_floor
from fedadmm.theory.bounds import rounds_needed as rounds_needed
from fedadmm.theory.feddr import FedDRConstants as FedDRConstants
from fedadmm.theory.feddr import feddr_alpha_max as feddr_alpha_max
from fedadmm.theory.feddr import feddr_best_steps as feddr_best_steps
from fedadmm.theory.feddr import feddr_bound as feddr_bound
from fedadmm.theory.feddr import feddr_constants as feddr_constants
from fedadmm.theory.feddr import feddr_eta_max as feddr_eta_max
from fedadmm.theory.feddr import feddr_prox_start_excess as feddr_prox_start_excess
from fedadmm.theory.gong import GongConstants as GongConstants
from fedadmm.theory.gong import gong_best_rho as gong_best_rho
from fedadmm.theory.gong import gong_bound as gong_bound
from fedadmm.theory.gong import gong_constants as gong_constants
from fedadmm.theory.gong import gong_rho_min as gong_rho_min
from fedadmm.theory.gong import table_one as table_one
from fedadmm.theory.insa import insa_sigma_bound as insa_sigma_bound

if TYPE_CHECKING:
    from fedadmm.theory.constants import Constants as Constants
    from fedadmm.theory.constants import estimate_constants as estimate_constants


def __getattr__(name: str) -> Any:
    """Import what needs torch on first use: formulas alone must load quickly."""
    if name in ("Constants", "estimate_constants"):
        from fedadmm.theory import constants

        return getattr(constants, name)
    raise AttributeError(f"module 'fedadmm.theory' has no attribute {name!r}")
