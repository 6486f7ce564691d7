"""The theorems as a tool: constants, admissible steps, bounds and recommended settings.

Plain floats throughout. Every function names the equation that it computes, and says so where a
printed formula does not hold and what stands here in its place.
"""

from __future__ import annotations

from fedadmm.theory.async_feddr import (
    AsyncCertificate,
    AsyncConstants,
    async_alpha_bar,
    async_certificate,
    async_constants,
    async_eta_bar,
    async_feddr_bound,
)
from fedadmm.theory.bounds import THEOREMS, bound, rounds_needed
from fedadmm.theory.feddr import (
    FedDRConstants,
    feddr_accuracy,
    feddr_alpha_max,
    feddr_best_steps,
    feddr_bound,
    feddr_constants,
    feddr_corollary_bound,
    feddr_eta_max,
    feddr_prox_start_excess,
    prox_error_bound,
)
from fedadmm.theory.gong import (
    GongConstants,
    gong_best_rho,
    gong_bound,
    gong_constants,
    gong_rho_min,
)
from fedadmm.theory.local_solve import (
    insa_beta_bound,
    insa_sigma_bound,
    learning_rate_range,
    noise_floor,
    steps_to_reduce,
)
from fedadmm.theory.recommend import Advice, Situation, recommend
from fedadmm.theory.wang import wang_bound, wang_constants, wang_eta_min

__all__ = [
    "THEOREMS",
    "Advice",
    "AsyncCertificate",
    "AsyncConstants",
    "FedDRConstants",
    "GongConstants",
    "Situation",
    "async_alpha_bar",
    "async_certificate",
    "async_constants",
    "async_eta_bar",
    "async_feddr_bound",
    "bound",
    "feddr_accuracy",
    "feddr_alpha_max",
    "feddr_best_steps",
    "feddr_bound",
    "feddr_constants",
    "feddr_corollary_bound",
    "feddr_eta_max",
    "feddr_prox_start_excess",
    "gong_best_rho",
    "gong_bound",
    "gong_constants",
    "gong_rho_min",
    "insa_beta_bound",
    "insa_sigma_bound",
    "learning_rate_range",
    "noise_floor",
    "prox_error_bound",
    "recommend",
    "rounds_needed",
    "steps_to_reduce",
    "wang_bound",
    "wang_constants",
    "wang_eta_min",
]
