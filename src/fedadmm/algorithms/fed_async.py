"""FedAsync: every arriving model is mixed into the global one, with less weight if it is stale.

Xie, Koyejo, Gupta: Asynchronous Federated Optimization, 2019, Algorithm 1 and section 5.2.

    a client that is free receives theta and trains; its update makes a server step when it arrives
             w ~ argmin f_i(w) + (rho/2) ||w - theta^(k - delay)||^2, started there;   send w
    server   theta <- (1 - alpha s(delay)) theta + alpha s(delay) w

    constant     s(delay) = 1
    hinge        s(delay) = 1 up to a delay of `grace`, then 1 / (slope (delay - grace) + 1)
    polynomial   s(delay) = (delay + 1)^(-exponent)

A delay is the number of server steps since the model that the client received.  If several updates
make one step, theta moves by the mean of the s(delay) (w - theta).  The influence of a client is
proportional to the number of its updates, whatever its weight.  The recursion is tested against an
independent program with the order of arrivals of a run; the paper's rates were not checked.
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
    """The client's model, and the version of the global model that it received.

    On arrival the model is multiplied by s(delay), and `share` is set to s(delay).
    """

    model: Tensor
    version: Tensor
    share: Tensor | None = None


@dataclass(frozen=True)
class StalenessDiscounted(StalenessWeighting[State, Sent], KeepsNothing[State, Versioned, Sent]):
    """Base class of asynchronous methods that weight updates by s(delay).

    Args:
        staleness: Form of s(delay): "constant", "hinge" or "polynomial".
        exponent: For "polynomial": s(delay) = (delay + 1)^(-exponent).
        slope: For "hinge": s(delay) = 1 / (slope (delay - grace) + 1) above `grace`.
        grace: For "hinge": largest delay with s(delay) = 1, in server steps.
    """

    requirements: ClassVar[Requirements] = Requirements(asynchronous=True, stale_updates=True)
    bias: ClassVar[str | None] = (
        "local steps have another fixed point than the optimum, and fast clients have more weight"
    )

    staleness: Literal["constant", "hinge", "polynomial"] = "polynomial"
    exponent: NotNegative = 0.5
    slope: Positive = 10.0
    grace: NotNegative = 4.0

    def discount(self, delay: Tensor) -> Tensor:
        """Return s(delay)."""
        if self.staleness == "polynomial":
            return (delay + 1) ** -self.exponent
        if self.staleness == "hinge":
            return 1 / (self.slope * (delay - self.grace).clamp(min=0) + 1)
        return torch.ones_like(delay)


@part("algorithm", "fedasync")
class FedAsync(StalenessDiscounted[Versioned, Message]):
    """FedAsync: every arriving model is mixed into the global one (Xie et al., 2019).

        theta <- (1 - alpha s(delay)) theta + alpha s(delay) w_i

    `simulate` runs it in virtual time; its rounds are server steps.

    Args:
        staleness: Form of s(delay): "constant", "hinge" or "polynomial" (the default).
        exponent: For "polynomial": s(delay) = (delay + 1)^(-exponent).  Default 0.5.
        slope: For "hinge": s(delay) = 1 / (slope (delay - grace) + 1) above `grace`.  Default 10.
        grace: For "hinge": largest delay with s(delay) = 1, in server steps.  Default 4.
        alpha: Weight of a model without delay.  Default 0.6.
        rho: Weight of the proximal term of the local problem.  Default 0.005.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedAsync(), problem, 60, solver=fa.ExactSolver())
        >>> round(result.params.item(), 1)  # biased, as FedAvg
        3.1
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
