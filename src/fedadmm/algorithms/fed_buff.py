"""FedBuff: replies are collected as they arrive, and some at a time make a server step.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered Asynchronous
Aggregation, AISTATS 2022, Algorithm 1.

    a client that is free receives theta and works from it
             w <- local steps on f_i, started at theta^(k - delay);   send w - theta^(k - delay)
    server   put s(delay) (w - theta^(k - delay)) into the buffer; when it holds `size` of them
             theta <- theta + lr times their weighted mean, and the buffer is empty again

A reply counts one step of the run, whether theta moves or not.  A delay counts the models that the
server made meanwhile; the paper's s(delay) = 1 / sqrt(1 + delay) is the default (`staleness`).
Moves add up, so that they must be short where delays are long: many late replies with accurate
local solves make it explode.  With the size 1 it is FedAsync with moves in place of models.
Checked here against an independent program on the order of arrivals that a run really had; the
paper's rates, its secure buffer and its noise were not.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedadmm.algorithms.fed_async import AsTheyArrive, Versioned
from fedadmm.algorithms.fed_avg import Stateless
from fedadmm.core.contracts import Cohort, LocalProblem, LocalResult, Regularizer, Round
from fedadmm.core.parts import Count, Positive, part


class Server(NamedTuple):
    """The global model and its version; the buffer's sum, weight and number of replies."""

    theta: Tensor
    version: Tensor
    buffered: Tensor
    weight: Tensor
    replies: Tensor


class Message(NamedTuple):
    """How far the local steps moved the model, and the version that they started from."""

    delta: Tensor
    version: Tensor


@part("algorithm", "fedbuff")
class FedBuff(AsTheyArrive[Server, Message]):
    """FedBuff with a buffer of `size` replies.

    Args:
        size: how many replies make a server step.
        lr: the server's learning rate.
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
