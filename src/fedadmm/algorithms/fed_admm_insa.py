"""FedADMM-InSa: FedADMM-In with self-adaptive penalties.

Song, Wang, Zuazua: FedADMM-InSa: An Inexact and Self-Adaptive ADMM for Federated Learning,
Neural Networks 2025; slides by Wang, 2024.

    client   as FedADMM-In's, and then  p = beta_i ||w_i+ - w_i||,  d = ||w_i+ - theta||:
             beta_i grows by tau when d > mu p, and shrinks by tau when p > mu d
    server   as FedADMM-In's

This keeps the primal and dual residuals of ADMM within a factor mu of each other.  A new beta_i is
used from the client's next round on: the upload of this round contains the one of the local solve.

The slides' (S3) assumes full participation and does not define the beta_i of an absent client in
the weighted mean.  Here it is the one of its last solve, so that w_i, y_i and beta_i are always
from the same round; the authors' program uses the new one at once (`FedADMMInSaReleased`).  The
limit is the same.
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
    """FedADMM-InSa: FedADMM-In whose penalties balance the residuals (Song et al., 2025).

        p = beta_i ||w_i+ - w_i||;   d = ||w_i+ - theta||
        beta_i <- tau beta_i  if d > mu p;   beta_i / tau  if p > mu d;   clipped to its bounds

    Args:
        beta: Initial penalty of every client.  Default 1.
        members: Clients that the mean runs over: "all", or those "seen" so far.
        mu: Ratio of the residuals above which the penalty changes, greater than 1.  Default 5.
        tau: Factor by which it changes, greater than 1.  Default 2.
        beta_min: Lower bound of every beta_i.  Default 1e-4.
        beta_max: Upper bound of every beta_i.  Default 1e4.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedADMMInSa(), problem, 50, solver=fa.GradientDescent(0.2))
        >>> round(result.params.item(), 2)
        2.0
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
