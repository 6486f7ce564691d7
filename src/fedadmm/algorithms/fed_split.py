"""FedSplit: Peaceman-Rachford splitting, which is FedDR with relaxation alpha = 2.

Pathak, Wainwright: FedSplit: an algorithmic framework for fast federated optimization,
NeurIPS 2020.  FedDR with alpha = 2, without g, with all clients in every round.
"""

from __future__ import annotations

from typing import ClassVar

from fedadmm.algorithms.fed_dr import FedDR
from fedadmm.core.contracts import Requirements
from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import part


@part("algorithm", "fedsplit")
class FedSplit(FedDR):
    """FedSplit: Peaceman-Rachford splitting with full participation (Pathak and Wainwright, 2020).

        v_i <- v_i + 2 (theta - x_i);   x_i ~ prox_{eta f_i}(v_i);   theta = mean of 2 x_i - v_i

    Args:
        eta: Step size of the proximal operators.  Default 100.
        alpha: Fixed to 2.
        init: Initial x_i: "start" for x^0, or "prox" for an initial round with all clients.

    Raises:
        ParameterError: Another alpha; use `FedDR`.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedSplit(eta=0.5), problem, 50, solver=fa.ExactSolver())
        >>> round(result.params.item(), 2)
        2.0
    """

    paper: ClassVar[str] = "Pathak and Wainwright, FedSplit, NeurIPS 2020"

    alpha: float = 2.0

    @property
    def requirements(self) -> Requirements:
        return super().requirements._replace(regularizer=False, full_participation=True)

    def __post_init__(self) -> None:
        if self.alpha != 2.0:
            raise ParameterError(
                f"FedSplit.alpha: got {self.alpha!r}, expected 2. Use FedDR for other values."
            )
