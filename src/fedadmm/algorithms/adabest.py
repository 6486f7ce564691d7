"""AdaBest: a fading memory of every client's drift, and momentum on the server.

Varno, Saghayi, Rafiee Sevyeri, Gupta, Matwin, Havaei: AdaBest: Minimizing Client Drift in
Federated Learning via Adaptive Bias Estimation, ECCV 2022, Algorithm 1.

    client   w <- local steps with gradients  g(w) - h_i,  started at theta
             h_i <- h_i / (t - t_i) + mu (theta - w);   t_i <- t;   send w - theta
    server   m <- theta + weighted mean over S of (w - theta)
             h = beta (m_before - m);   theta <- m - h

t_i is the step of the client's last reply.  The paper evaluates and hands out m; theta, which the
clients start from, is m carried on by beta times its last move.  Here `global_params` is theta and
m is beside it in the server's state.  t counts the server's steps: a round without replies
changes nothing, and no client grows older.

The limit is not the optimum.  With everybody in every round the memories add up to
mu (1 - beta) (x0 - m), so that m comes to rest at argmin f(x) + (mu (1 - beta) / 2) ||x - x0||^2:
the start never quite leaves it.  With some of the clients the division by t - t_i forgets what the
memories knew.  The formula is a test; the paper's claim of a lower drift in norm, and its
experiments, were not checked.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

import torch
from annotated_types import Ge, Le
from torch import Tensor

from fedadmm.algorithms.fed_avg import Delta
from fedadmm.core.capabilities import ParticipantsMeanModel
from fedadmm.core.contracts import (
    Algorithm,
    Cohort,
    LocalProblem,
    LocalResult,
    Regularizer,
    Round,
)
from fedadmm.core.parts import NotNegative, part


class Server(NamedTuple):
    """What clients start from, the participants' mean model, and the steps so far."""

    theta: Tensor
    m: Tensor
    steps: Tensor


class Client(NamedTuple):
    """The estimate of the client's drift, and the step of its last reply."""

    h: Tensor
    last: Tensor


class Broadcast(NamedTuple):
    """The start of the local steps, and which step of the server it is for, counted from 1."""

    theta: Tensor
    step: Tensor


@part("algorithm", "adabest")
class AdaBest(ParticipantsMeanModel[Server], Algorithm[Server, Client, Broadcast, Delta]):
    """AdaBest with a memory per client and a server that carries its mean on.

    Args:
        mu: how much of a round's move enters the client's memory.
        beta: how much of its last move the server's mean is carried on by.
    """

    paper: ClassVar[str] = "Varno et al., AdaBest, ECCV 2022"
    bias: ClassVar[str | None] = (
        "the memories hold on to the start, and fade while a client is absent"
    )
    deltas: ClassVar[tuple[str, ...]] = ("delta",)

    mu: NotNegative = 0.02
    beta: Annotated[float, Ge(0), Le(1)] = 0.9

    def init_server(self, params: Tensor) -> Server:
        return Server(params, params, params.new_zeros(1))

    def init_client(self, params: Tensor) -> Client:
        return Client(torch.zeros_like(params), params.new_zeros(1))

    def broadcast(self, server: Server, round: Round) -> Broadcast:
        return Broadcast(server.theta, server.steps + 1)

    def local_problem(self, broadcast: Broadcast, client: Client) -> LocalProblem:
        return LocalProblem(start=broadcast.theta, linear=-client.h)

    def client_update(
        self, broadcast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Delta]:
        delta = result.params - broadcast.theta
        # Replies to one and the same step, as where they arrive late, are no time apart.
        absence = (broadcast.step - client.last).clamp(min=1)
        h = client.h / absence - self.mu * delta
        return Client(h, broadcast.step.expand_as(client.last).clone()), Delta(delta)

    def server_update(
        self, server: Server, total: Delta, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        m = server.theta + total.delta / cohort.weight
        return Server(m + self.beta * (m - server.m), m, server.steps + 1)

    def participants_mean(self, server: Server) -> Tensor:
        return server.m
