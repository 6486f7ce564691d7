"""SCAFFOLD: control variates that take the drift out of local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning, ICML 2020, Algorithm 1.

    client   w <- local steps with gradients  g(w) - c_i + c,  started at theta
             option 1   c_i+ = grad f_i(theta)
             option 2   c_i+ = c_i - c + (theta - w) / (K lr)
             send  w - theta  and  c_i+ - c_i
    server   theta <- theta + step * mean over S;   c <- c + (1/n) sum over S of (c_i+ - c_i)

Option 2 is written here as the mean of the K gradients that the steps used.  For plain SGD this
is the printed formula, because theta - w = lr * sum_k (g_k - c_i + c); it needs no learning rate
and stays right with momentum.  All control variates start at zero, so that c is their mean.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedadmm.core.capabilities import ClientRemoval
from fedadmm.core.contracts import (
    Algorithm,
    Cohort,
    LocalNeeds,
    LocalProblem,
    LocalResult,
    Regularizer,
    Requirements,
    Round,
)
from fedadmm.core.parts import Positive, part


class Server(NamedTuple):
    """The global model and the mean of all control variates; also what is broadcast."""

    theta: Tensor
    c: Tensor


class Client(NamedTuple):
    """The client's control variate."""

    c_i: Tensor


class Message(NamedTuple):
    """The moves of the model and of the control variate: twice FedAvg's upload."""

    delta: Tensor
    control: Tensor


@part("algorithm", "scaffold")
class Scaffold(ClientRemoval[Server, Message], Algorithm[Server, Client, Server, Message]):
    """SCAFFOLD with option 1 or 2 for the control variates and a server step."""

    title: ClassVar[str] = "SCAFFOLD"
    paper: ClassVar[str] = "Karimireddy et al., SCAFFOLD, ICML 2020"
    baseline: ClassVar[bool] = True
    deltas: ClassVar[tuple[str, ...]] = ("delta",)
    increments: ClassVar[tuple[str, ...]] = ("control",)

    option: Literal[1, 2] = 2
    step: Positive = 1.0

    @property
    def requirements(self) -> Requirements:
        """A gradient at theta (option 1) or the mean gradient of the steps (option 2)."""
        needs = LocalNeeds(start_gradient=self.option == 1, mean_gradient=self.option == 2)
        return Requirements(local=needs)

    def init_server(self, params: Tensor) -> Server:
        return Server(params, torch.zeros_like(params))

    def init_client(self, params: Tensor) -> Client:
        return Client(torch.zeros_like(params))

    def broadcast(self, server: Server, round: Round) -> Server:
        return server

    def local_problem(self, broadcast: Server, client: Client) -> LocalProblem:
        return LocalProblem(start=broadcast.theta, linear=broadcast.c - client.c_i)

    def client_update(
        self, broadcast: Server, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        c_i = result.start_gradient if self.option == 1 else result.mean_gradient
        assert c_i is not None
        return Client(c_i), Message(result.params - broadcast.theta, c_i - client.c_i)

    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        return Server(
            server.theta + self.step * total.delta / cohort.weight, server.c + total.control
        )

    def remove_client(self, server: Server, past: Message, regularizer: Regularizer) -> Server:
        """Take a client's control variate out of c; its moves of theta are history."""
        return Server(server.theta, server.c - past.control)
