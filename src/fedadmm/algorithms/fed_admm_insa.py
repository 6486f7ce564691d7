"""FedADMM-InSa: FedADMM-In whose penalties adapt themselves.

Song, Wang, Zuazua: FedADMM-InSa: An Inexact and Self-Adaptive ADMM for Federated Learning,
Neural Networks 2025; slides by Wang, 2024.

    client   as FedADMM-In's, and then  p = beta_i ||w_i+ - w_i||,  d = ||w_i+ - theta||:
             beta_i grows by tau when d > mu p, and shrinks by tau when p > mu d
    server   as FedADMM-In's

This keeps the two residuals of ADMM within a factor mu of each other.  A new beta_i holds from the
client's next round: the upload of this round uses the one the round was solved with.

The slides' (S3) leaves open which beta_i an absent client counts with, because everybody takes part
there.  Here it is the one of its last solve, so that (w_i, y_i, beta_i) stay the triple that (S1)
and (S2) made; the authors' program counts the new one at once (`FedADMMInSaReleased`).  The limit
is the same.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from fedadmm.algorithms.fed_admm_in import FedADMMIn
from fedadmm.core.parts import Positive, part
from fedadmm.core.validation import check


@part("algorithm", "fedadmm-insa")
class FedADMMInSa(FedADMMIn):
    """FedADMM-InSa: FedADMM-In whose penalties balance the residuals (mu, tau).

    beta_i stays within [beta_min, beta_max], so that it cannot run away.
    """

    title: ClassVar[str] = "FedADMM-InSa"
    increments = ()

    mu: Annotated[float, Gt(1)] = 5.0
    tau: Annotated[float, Gt(1)] = 2.0
    beta_min: Positive = 1e-4
    beta_max: Positive = 1e4

    def __post_init__(self) -> None:
        check(self, "beta_max", self.beta_max, Annotated[float, Ge(self.beta_min)])
        check(self, "beta", self.beta, Annotated[float, Ge(self.beta_min), Le(self.beta_max)])

    def next_penalty(self, beta: Tensor, move: Tensor, drift: Tensor) -> Tensor:
        p = beta * move
        grown = torch.where(drift > self.mu * p, beta * self.tau, beta)
        balanced = torch.where(p > self.mu * drift, beta / self.tau, grown)
        return balanced.clamp(self.beta_min, self.beta_max)
