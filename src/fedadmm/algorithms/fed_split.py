"""FedSplit: Peaceman-Rachford splitting, which is FedDR at the end of its range.

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
    """FedSplit with step `eta`; alpha is 2 by definition."""

    paper: ClassVar[str] = "Pathak and Wainwright, FedSplit, NeurIPS 2020"

    alpha: float = 2.0

    @property
    def requirements(self) -> Requirements:
        return super().requirements._replace(regularizer=False, full_participation=True)

    def __post_init__(self) -> None:
        if self.alpha != 2.0:
            raise ParameterError(
                f"FedSplit: alpha is {self.alpha!r}, but must be 2 (use FedDR for others)"
            )
