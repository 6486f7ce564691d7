"""FedAsync: every model that arrives is mixed into the global one, the less the later it is.

Xie, Koyejo, Gupta: Asynchronous Federated Optimization, 2019, Algorithm 1.

    a client that is free receives theta and works; its reply makes one server step when it arrives
             w ~ argmin f_i(w) + (rho/2) ||w - theta^(k - delay)||^2, started there;   send w
    server   theta <- (1 - alpha s(delay)) theta + alpha s(delay) w

s(delay) is one of three functions (`staleness`).  Where several replies make one step, the mean of
the s(delay) (w - theta) moves theta.  Clients count as often as they reply, whatever their weights.
Checked here against an independent program on the order of arrivals that a run really had; the
paper's rates were not checked.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from torch import Tensor

from fedadmm.algorithms.fed_sgd import Stateless
from fedadmm.algorithms.staleness import AsTheyArrive, Versioned
from fedadmm.core.parts import NotNegative, Share, part
from fedadmm.core.protocols import LocalProblem, LocalResult, Received, Regularizer


class Message(NamedTuple):
    """The client's model, and the version of the one that it worked from.

    On arrival the model is multiplied by s(delay), and `share` is s(delay) itself.
    """

    model: Tensor
    version: Tensor
    share: Tensor | None = None


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
        """theta^0, whose version is 0."""
        return Versioned(params, params.new_zeros(1))

    def local_problem(self, cast: Versioned, client: Stateless) -> LocalProblem:
        """min f_i + (rho/2) ||w - theta||^2, started at theta."""
        return LocalProblem(start=cast.theta, weight=self.rho, centre=cast.theta)

    def client_update(
        self, cast: Versioned, client: Stateless, result: LocalResult
    ) -> tuple[Stateless, Message]:
        """Send w, and what it was made from."""
        return client, Message(result.params, cast.version)

    def arrived(self, server: Versioned, message: Message) -> Message:
        """Weigh a model by its age."""
        share = self.discount(server.version - message.version)
        return Message(share * message.model, message.version, share)

    def server_update(
        self, server: Versioned, total: Message, received: Received, regularizer: Regularizer
    ) -> Versioned:
        """Mix the replies into theta; without ages they count in full."""
        share = received.weight if total.share is None else total.share
        move = (total.model - share * server.theta) / received.weight
        return Versioned(server.theta + self.alpha * move, server.version + 1)
