"""SCAFFOLD+: SCAFFOLD with one upload, more of the mean direction, and a server that looks ahead.

After Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning, ICML 2020.  The move of a client's model tells the mean of its corrected
gradients, s_i = (theta - w) / K_i with K_i the sum of its learning rates, and hence its new control
variate: one vector is enough.

    client   w <- local steps with gradients  g(w) - c_i + (1 + gamma) c,  started at theta
             c_i <- c_i + change_i  with  change_i = s_i - (1 + gamma) c;   send change_i and K_i
    server   s = mean over S of change_i, plus (1 + gamma) c;   m = theta - (mean over S of K_i) s
             c <- c + (1/n) sum over S of change_i;   theta <- m + beta (m - m before)

c is the mean of all c_i, whatever gets lost or comes late.  gamma = beta = 0 is SCAFFOLD with
option 2 and step 1 at half its upload, where all clients make as many plain steps; otherwise m
normalises them as FedNova does, and momentum weighs the gradients of a solve.  beta = "auto" is
min(0.9, max(0, 1 - 4/|S|)): the mean of few replies is too noisy to be carried on.

Every fixed point is the optimum: nothing moves where s_i = 0, so that c_i is the client's gradient
at theta, and the mean of all s_i is then (1 + gamma) c = 0.  That it gets there for gamma <= 1 is a
test on strongly convex problems; prototypes with gamma = 3 diverged.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge, Le
from torch import Tensor

from fedadmm.algorithms.scaffold import Client
from fedadmm.algorithms.scaffold import Server as Broadcast
from fedadmm.core.parts import Probability, part
from fedadmm.core.protocols import (
    Algorithm,
    LocalProblem,
    LocalResult,
    Needs,
    Received,
    Regularizer,
    Round,
)


class Server(NamedTuple):
    """The global model, the mean of all control variates, and the participants' mean model."""

    theta: Tensor
    c: Tensor
    mean: Tensor


class Message(NamedTuple):
    """The change of the control variate, and the sum of the learning rates."""

    change: Tensor
    work: Tensor


@part("algorithm", "scaffold-plus")
class ScaffoldPlus(Algorithm[Server, Client, Broadcast, Message]):
    """SCAFFOLD with one upload, and with two accelerations.

    Args:
        gamma: how much more than once the mean control variate counts in a local step.
        momentum: beta, how far the server goes on along the participants' last mean move, or
            "auto", which depends on how many they are.
    """

    title: ClassVar[str] = "SCAFFOLD+"
    paper: ClassVar[str] = "Karimireddy et al., SCAFFOLD, ICML 2020, with one upload"
    needs: ClassVar[Needs] = Needs(step_sum=True)

    gamma: Annotated[float, Ge(0), Le(1)] = 1.0
    momentum: Probability | Literal["auto"] = "auto"

    def init_server(self, params: Tensor) -> Server:
        return Server(params, torch.zeros_like(params), params)

    def init_client(self, params: Tensor) -> Client:
        return Client(torch.zeros_like(params))

    def broadcast(self, server: Server, round: Round) -> Broadcast:
        return Broadcast(server.theta, server.c)

    def _correction(self, c: Tensor) -> Tensor:
        return (1 + self.gamma) * c

    def local_problem(self, cast: Broadcast, client: Client) -> LocalProblem:
        return LocalProblem(start=cast.theta, linear=self._correction(cast.c) - client.c_i)

    def client_update(
        self, cast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        assert result.step_sum is not None
        change = (cast.theta - result.params) / result.step_sum - self._correction(cast.c)
        return Client(client.c_i + change), Message(change, result.step_sum)

    def server_update(
        self, server: Server, total: Message, received: Received, regularizer: Regularizer
    ) -> Server:
        slope = total.change / received.weight + self._correction(server.c)
        mean = server.theta - total.work / received.weight * slope
        auto = min(0.9, max(0.0, 1 - 4 / received.replies))
        beta = auto if isinstance(self.momentum, str) else self.momentum
        return Server(mean + beta * (mean - server.mean), server.c + total.change, mean)

    def remove_client(self, server: Server, past: Message, regularizer: Regularizer) -> Server:
        """Take a client's control variate out of c; its moves of theta are history."""
        return server._replace(c=server.c - past.change)

    def participants_mean(self, server: Server) -> Tensor:
        return server.mean
