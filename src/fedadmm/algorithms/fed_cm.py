"""FedCM: client-level momentum along the last global direction.

Xu, Wang, Wang, Yao: FedCM: Federated Learning with Client-level Momentum, 2021, Algorithm 2.

    client   w <- local steps along  alpha g(w) + (1 - alpha) Delta,  started at theta
             K = the sum of its steps' weights;  send  w - theta  and  K
    server   Delta <- - sum over S of (w - theta) / sum over S of K, weighted
             theta <- theta + step times the weighted mean over S of (w - theta)

Delta starts at zero.  The local problem is f_i(w) + ((1 - alpha) / alpha) <Delta, w>, so that the
solver's learning rate is alpha times the paper's: a paper's (alpha, rate) = (0.1, 0.1) is lr = 0.01
here.  The paper's server rate is absolute; step = 1 is its choice (its rate)(its local steps), for
which theta is the mean of the clients' models.  With alpha = 1 it is FedAvg.

The limit has client drift, as FedAvg's.  The recursion is checked against an independent program;
the paper's rates were not.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedadmm.algorithms.fed_avg import KeepsNothing, Stateless
from fedadmm.core.contracts import (
    Cohort,
    LocalNeeds,
    LocalProblem,
    LocalResult,
    Regularizer,
    Requirements,
    Round,
)
from fedadmm.core.parts import Positive, Share, part


class Server(NamedTuple):
    """The global model and the mean direction of the last round; also what is broadcast."""

    theta: Tensor
    direction: Tensor


class Message(NamedTuple):
    """The change of the model by local training, and the sum of the steps' weights."""

    delta: Tensor
    work: Tensor


@part("algorithm", "fedcm")
class FedCM(KeepsNothing[Server, Server, Message]):
    """FedCM: local steps with momentum along the last global direction (Xu et al., 2021).

        w_i <- local steps along alpha g(w) + (1 - alpha) Delta, started at theta
        Delta <- mean direction of all local steps;   theta <- theta + step * mean change

    Args:
        alpha: Share of the client's gradient in a step.  Default 0.1; 1 is FedAvg.  The solver's
            learning rate is alpha times the paper's.
        step: Server step as a multiple of the mean change.  Default 1.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> work = dict(solver=fa.GradientDescent(0.01), stop=fa.Steps(5))
        >>> round(fa.simulate(fa.FedCM(), problem, 100, **work).params.item(), 2)  # slightly biased
        2.03
    """

    paper: ClassVar[str] = "Xu et al., FedCM, 2021"
    requirements: ClassVar[Requirements] = Requirements(local=LocalNeeds(step_sum=True))
    deltas: ClassVar[tuple[str, ...]] = ("delta",)

    alpha: Share = 0.1
    step: Positive = 1.0

    def init_server(self, params: Tensor) -> Server:
        return Server(params, torch.zeros_like(params))

    def broadcast(self, server: Server, round: Round) -> Server:
        return server

    def local_problem(self, broadcast: Server, client: Stateless) -> LocalProblem:
        return LocalProblem(broadcast.theta, (1 / self.alpha - 1) * broadcast.direction)

    def client_update(
        self, broadcast: Server, client: Stateless, result: LocalResult
    ) -> tuple[Stateless, Message]:
        assert result.step_sum is not None
        return client, Message(result.params - broadcast.theta, result.step_sum / self.alpha)

    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        made = bool(total.work > 0)
        direction = -total.delta / total.work if made else server.direction
        return Server(server.theta + self.step * total.delta / cohort.weight, direction)
