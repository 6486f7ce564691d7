"""AdaBest: a decaying estimate of every client's drift, and momentum on the server.

Varno, Saghayi, Rafiee Sevyeri, Gupta, Matwin, Havaei: AdaBest: Minimizing Client Drift in
Federated Learning via Adaptive Bias Estimation, ECCV 2022, Algorithm 1.

    client   w <- local steps with gradients  g(w) - h_i,  started at theta
             h_i <- h_i / (t - t_i) + mu (theta - w);   t_i <- t;   send w - theta
    server   m <- theta + weighted mean over S of (w - theta)
             h = beta (m_before - m);   theta <- m - h

t_i is the server step of the client's last update.  The paper evaluates and returns m; theta, at
which local training starts, extrapolates m by beta times its last change.  Here `global_params` is
theta, and m is the output "participants-mean".  t counts the server's steps: a round without
updates changes no state.

The limit is not the optimum.  With full participation the estimates add up to
mu (1 - beta) (x0 - m), so that m converges to argmin f(x) + (mu (1 - beta) / 2) ||x - x0||^2, which
depends on the initial model.  With partial participation the division by t - t_i also discards past
estimates.  This limit is tested; the paper's claim of a lower drift in norm, and its experiments,
were not checked.
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
    """The start of local training, the participants' mean model, and the number of steps."""

    theta: Tensor
    m: Tensor
    steps: Tensor


class Client(NamedTuple):
    """The estimate of the client's drift, and the server step of its last update."""

    h: Tensor
    last: Tensor


class Broadcast(NamedTuple):
    """The start of local training, and the index of the server step, counted from 1."""

    theta: Tensor
    step: Tensor


@part("algorithm", "adabest")
class AdaBest(ParticipantsMeanModel[Server], Algorithm[Server, Client, Broadcast, Delta]):
    """AdaBest: drift estimates of the clients and extrapolation at the server (Varno et al., 2022).

        w_i <- local steps with gradients g(w) - h_i, started at theta
        h_i <- h_i / (t - t_i) + mu (theta - w_i);   m = weighted mean over S of w_i
        theta <- m + beta (m - m_before)

    Args:
        mu: Weight of a round's change in the client's estimate.  Default 0.02.
        beta: Extrapolation of the mean by its last change, from 0 to 1.  Default 0.9.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> method = fa.AdaBest(mu=0.5, beta=0.5)
        >>> result = fa.simulate(method, problem, 100, solver=fa.ExactSolver())
        >>> round(result.params.item(), 2)  # biased towards the initial model
        1.78
    """

    paper: ClassVar[str] = "Varno et al., AdaBest, ECCV 2022"
    bias: ClassVar[str | None] = (
        "the drift estimates pull towards the initial model, and decay while a client is absent"
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
        # A stale update may answer the same server step as the client's last one.
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
