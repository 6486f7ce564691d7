"""What methods without rounds share: models with a version, and replies that count less when late.

Xie, Koyejo, Gupta: Asynchronous Federated Optimization, 2019, section 5.2:

    constant     s(delay) = 1
    hinge        s(delay) = 1 up to a delay of `grace`, then 1 / (slope (delay - grace) + 1)
    polynomial   s(delay) = (delay + 1)^(-exponent)

A delay counts the models that the server made since the one that the client worked from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from fedadmm.algorithms.fed_sgd import Stateless
from fedadmm.core.parts import NotNegative, Positive
from fedadmm.core.protocols import Algorithm, Round

Message = TypeVar("Message")


class HasVersion(Protocol):
    """A server's state with the global model and how many models came before it."""

    @property
    def theta(self) -> Tensor:
        """The global model."""

    @property
    def version(self) -> Tensor:
        """How many models came before it."""


State = TypeVar("State", bound=HasVersion)


class Versioned(NamedTuple):
    """The global model and its version."""

    theta: Tensor
    version: Tensor


@dataclass(frozen=True)
class AsTheyArrive(Algorithm[State, Stateless, Versioned, Message]):
    """Clients that keep nothing, and a server that weighs replies by their age.

    Args:
        staleness: how much a late reply counts: s(delay) is "constant", a "hinge" or "polynomial".
        exponent: polynomial: how fast it falls.
        slope: hinge: how fast it falls.
        grace: hinge: up to which delay a reply counts in full.
    """

    asynchronous: ClassVar[bool] = True
    baseline: ClassVar[bool] = True

    staleness: Literal["constant", "hinge", "polynomial"] = "polynomial"
    exponent: NotNegative = 0.5
    slope: Positive = 10.0
    grace: NotNegative = 4.0

    @property
    def bias(self) -> str:
        """Client drift, and who replies more often."""
        return "local steps have a fixed point of their own, and quick clients count more"

    def discount(self, delay: Tensor) -> Tensor:
        """s(delay)."""
        if self.staleness == "polynomial":
            return (delay + 1) ** -self.exponent
        if self.staleness == "hinge":
            return 1 / (self.slope * (delay - self.grace).clamp(min=0) + 1)
        return torch.ones_like(delay)

    def init_client(self, params: Tensor) -> Stateless:
        """Nothing."""
        return Stateless()

    def broadcast(self, server: State, turn: Round) -> Versioned:
        """Theta and its version."""
        return Versioned(server.theta, server.version)

    def global_params(self, server: State) -> Tensor:
        """theta."""
        return server.theta
