"""How a client's penalty beta_i moves from round to round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedadmm.core.errors import check_positive, check_range


class PenaltyRule(Protocol):
    """The penalty of the client's next round."""

    def next(self, beta: Tensor, move: Tensor, drift: Tensor) -> Tensor:
        """From this round's beta, ||w_new - w_old|| and ||w_new - theta||, each (1,) or (K, 1)."""


@dataclass(frozen=True)
class FixedPenalty:
    """beta_i stays what it is."""

    def next(self, beta: Tensor, move: Tensor, drift: Tensor) -> Tensor:
        """The same penalty."""
        return beta


@dataclass(frozen=True)
class ResidualBalancing:
    """Keep the two residuals of ADMM within a factor mu of each other.

    With p = beta ||w_new - w_old|| and d = ||w_new - theta||: beta grows by tau when d > mu p,
    shrinks by tau when p > mu d, and stays within [low, high] so that it cannot run away.
    """

    mu: float = 5.0
    tau: float = 2.0
    low: float = 1e-4
    high: float = 1e4

    def __post_init__(self) -> None:
        check_range(self, "mu", self.mu, 1.0, open_low=True)
        check_range(self, "tau", self.tau, 1.0, open_low=True)
        check_positive(self, "low", self.low)
        check_range(self, "high", self.high, self.low)

    def next(self, beta: Tensor, move: Tensor, drift: Tensor) -> Tensor:
        """The balanced penalty."""
        p = beta * move
        grown = torch.where(drift > self.mu * p, beta * self.tau, beta)
        balanced = torch.where(p > self.mu * drift, beta / self.tau, grown)
        return balanced.clamp(self.low, self.high)
