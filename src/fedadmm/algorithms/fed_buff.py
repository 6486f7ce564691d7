"""FedBuff: arriving updates are collected in a buffer, and a full buffer makes a server step.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered Asynchronous
Aggregation, AISTATS 2022, Algorithm 1.

    a client that is free receives theta and trains
             w <- local steps on f_i, started at theta^(k - delay);   send w - theta^(k - delay)
    server   put s(delay) (w - theta^(k - delay)) into the buffer; when it holds `size` of them
             theta <- theta + lr times their weighted mean, and the buffer is empty again

Every update is one step of the run, whether theta moves or not.  A delay is the number of models
that the server has computed meanwhile; the default is the paper's s(delay) = 1 / sqrt(1 + delay).
Changes add up, so that they must be short if delays are long: it diverges with many stale updates
and accurate local solves.  With size 1 it is FedAsync with changes in place of models.  The
recursion is tested against an independent program with the order of arrivals of a run; the paper's
rates, its secure buffer and its noise are not.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedadmm.algorithms.fed_async import StalenessDiscounted, Versioned
from fedadmm.algorithms.fed_avg import Stateless
from fedadmm.core.contracts import Cohort, LocalProblem, LocalResult, Regularizer, Round
from fedadmm.core.parts import Count, Positive, part


class Server(NamedTuple):
    """The global model and its version; the buffer's sum, weight and number of updates."""

    theta: Tensor
    version: Tensor
    buffered: Tensor
    weight: Tensor
    replies: Tensor


class Message(NamedTuple):
    """The change of the model by local training, and the version of its start."""

    delta: Tensor
    version: Tensor


@part("algorithm", "fedbuff")
class FedBuff(StalenessDiscounted[Server, Message]):
    """FedBuff: buffered asynchronous aggregation (Nguyen et al., 2022).

        buffer += s(delay) (w_i - theta^(k - delay)), on arrival
        theta <- theta + lr * weighted mean of the buffer, as soon as it holds `size` updates

    `simulate` runs it in virtual time; its rounds are arrivals of updates.

    Args:
        staleness: Form of s(delay): "constant", "hinge" or "polynomial" (the default).
        exponent: For "polynomial": s(delay) = (delay + 1)^(-exponent).  Default 0.5.
        slope: For "hinge": s(delay) = 1 / (slope (delay - grace) + 1) above `grace`.  Default 10.
        grace: For "hinge": largest delay with s(delay) = 1, in server steps.  Default 4.
        size: Number of updates in a server step.  Default 10.
        lr: Learning rate of the server.  Default 1.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> work = dict(solver=fa.GradientDescent(0.1), stop=fa.Steps(5))
        >>> result = fa.simulate(fa.FedBuff(size=3), problem, 150, **work)
        >>> round(result.params.item(), 1)  # biased, as FedAvg
        3.0
    """

    paper: ClassVar[str] = "Nguyen et al., Buffered Asynchronous Aggregation, AISTATS 2022"
    deltas: ClassVar[tuple[str, ...]] = ("delta",)

    size: Count = 10
    lr: Positive = 1.0

    def init_server(self, params: Tensor) -> Server:
        nothing = params.new_zeros(1)
        return Server(params, nothing, torch.zeros_like(params), nothing, nothing)

    def broadcast(self, server: Server, round: Round) -> Versioned:
        return Versioned(server.theta, server.version)

    def local_problem(self, broadcast: Versioned, client: Stateless) -> LocalProblem:
        return LocalProblem(start=broadcast.theta)

    def client_update(
        self, broadcast: Versioned, client: Stateless, result: LocalResult
    ) -> tuple[Stateless, Message]:
        return client, Message(result.params - broadcast.theta, broadcast.version)

    def weight_update(self, server: Server, message: Message) -> Message:
        count = self.discount(server.version - message.version)
        return Message(count * message.delta, message.version)

    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        filled = Server(
            server.theta,
            server.version,
            server.buffered + total.delta,
            server.weight + cohort.weight,
            server.replies + cohort.size,
        )
        if float(filled.replies) < self.size:
            return filled
        theta = server.theta + self.lr * filled.buffered / filled.weight
        return self.init_server(theta)._replace(version=server.version + 1)
