"""FedAsync: every model that arrives is mixed into the global one, the less the later it is.

Xie, Koyejo, Gupta: Asynchronous Federated Optimization, 2019, Algorithm 1 and section 5.2.

    a client that is free receives theta and works; its reply makes one server step when it arrives
             w ~ argmin f_i(w) + (rho/2) ||w - theta^(k - delay)||^2, started there;   send w
    server   theta <- (1 - alpha s(delay)) theta + alpha s(delay) w

    constant     s(delay) = 1
    hinge        s(delay) = 1 up to a delay of `grace`, then 1 / (slope (delay - grace) + 1)
    polynomial   s(delay) = (delay + 1)^(-exponent)

A delay counts the models that the server made since the one that the client worked from.  Where
several replies make one step, the mean of the s(delay) (w - theta) moves theta.  Clients count as
often as they reply, whatever their weights.  Checked here against an independent program on the
order of arrivals that a run really had; the paper's rates were not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedadmm.algorithms.fed_avg import KeepsNothing, Sent, State, Stateless
from fedadmm.core.capabilities import StalenessWeighting
from fedadmm.core.contracts import (
    Cohort,
    LocalProblem,
    LocalResult,
    Regularizer,
    Requirements,
    Round,
)
from fedadmm.core.parts import NotNegative, Positive, Share, part


class Versioned(NamedTuple):
    """The global model and its version."""

    theta: Tensor
    version: Tensor


class Message(NamedTuple):
    """The client's model, and the version of the one that it worked from.

    On arrival the model is multiplied by s(delay), and `share` is s(delay) itself.
    """

    model: Tensor
    version: Tensor
    share: Tensor | None = None


@dataclass(frozen=True)
class AsTheyArrive(StalenessWeighting[State, Sent], KeepsNothing[State, Versioned, Sent]):
    """Models with a version, and a server without rounds that weighs replies by their age.

    Args:
        staleness: how much a late reply counts: s(delay) is "constant", a "hinge" or "polynomial".
        exponent: polynomial: how fast it falls.
        slope: hinge: how fast it falls.
        grace: hinge: up to which delay a reply counts in full.
    """

    requirements: ClassVar[Requirements] = Requirements(asynchronous=True, stale_updates=True)
    bias: ClassVar[str | None] = (
        "local steps have a fixed point of their own, and quick clients count more"
    )

    staleness: Literal["constant", "hinge", "polynomial"] = "polynomial"
    exponent: NotNegative = 0.5
    slope: Positive = 10.0
    grace: NotNegative = 4.0

    def discount(self, delay: Tensor) -> Tensor:
        if self.staleness == "polynomial":
            return (delay + 1) ** -self.exponent
        if self.staleness == "hinge":
            return 1 / (self.slope * (delay - self.grace).clamp(min=0) + 1)
        return torch.ones_like(delay)


@part("algorithm", "fedasync")
class FedAsync(AsTheyArrive[Versioned, Message]):
    """FedAsync with mixing weight `alpha`.

    Args:
        alpha: how much a reply without delay counts.
        rho: how strongly the local problem is held near the model it started from.
    """

    paper: ClassVar[str] = "Xie et al., Asynchronous Federated Optimization, 2019"

    alpha: Share = 0.6
    rho: NotNegative = 0.005

    def init_server(self, params: Tensor) -> Versioned:
        return Versioned(params, params.new_zeros(1))

    def broadcast(self, server: Versioned, round: Round) -> Versioned:
        return server

    def local_problem(self, broadcast: Versioned, client: Stateless) -> LocalProblem:
        return LocalProblem(start=broadcast.theta, weight=self.rho, centre=broadcast.theta)

    def client_update(
        self, broadcast: Versioned, client: Stateless, result: LocalResult
    ) -> tuple[Stateless, Message]:
        return client, Message(result.params, broadcast.version)

    def weight_update(self, server: Versioned, message: Message) -> Message:
        share = self.discount(server.version - message.version)
        return Message(share * message.model, message.version, share)

    def server_update(
        self, server: Versioned, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Versioned:
        share = cohort.weight if total.share is None else total.share
        move = (total.model - share * server.theta) / cohort.weight
        return Versioned(server.theta + self.alpha * move, server.version + 1)
