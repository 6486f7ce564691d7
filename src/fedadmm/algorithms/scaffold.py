"""SCAFFOLD: control variates that correct the drift of local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning, ICML 2020, Algorithm 1.

    client   w <- local steps with gradients  g(w) - c_i + c,  started at theta
             option 1   c_i+ = grad f_i(theta)
             option 2   c_i+ = c_i - c + (theta - w) / (K lr)
             send  w - theta  and  c_i+ - c_i
    server   theta <- theta + step * mean over S;   c <- c + (1/n) sum over S of (c_i+ - c_i)

Option 2 is computed as the mean of the K gradients of the steps.  For plain SGD this is the printed
formula, because theta - w = lr * sum_k (g_k - c_i + c); it needs no learning rate and is also
correct with momentum.  All control variates are initially zero, so that c is their mean.
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
    """The changes of the model and of the control variate: twice FedAvg's upload."""

    delta: Tensor
    control: Tensor


@part("algorithm", "scaffold")
class Scaffold(ClientRemoval[Server, Message], Algorithm[Server, Client, Server, Message]):
    """SCAFFOLD: control variates that correct the drift of local steps (Karimireddy et al., 2020).

        w_i <- local steps with gradients g(w) - c_i + c, started at theta
        c_i <- grad f_i(theta) (option 1) or the mean gradient of the steps (option 2)
        theta <- theta + step * weighted mean over S of (w_i - theta);   c = mean of all c_i

    Args:
        option: How clients update their control variates.  Default 2, which costs no gradient.
        step: Server step as a multiple of the mean change.  Default 1.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> work = dict(solver=fa.GradientDescent(0.1), stop=fa.Steps(5))
        >>> round(fa.simulate(fa.Scaffold(), problem, 50, **work).params.item(), 2)
        2.0
    """

    title: ClassVar[str] = "SCAFFOLD"
    paper: ClassVar[str] = "Karimireddy et al., SCAFFOLD, ICML 2020"
    deltas: ClassVar[tuple[str, ...]] = ("delta",)
    increments: ClassVar[tuple[str, ...]] = ("control",)

    option: Literal[1, 2] = 2
    step: Positive = 1.0

    @property
    def requirements(self) -> Requirements:
        """Option 1 requires the gradient at theta, option 2 the mean gradient of the steps."""
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
        """Remove the client's control variate from c; its earlier effect on theta remains."""
        return Server(server.theta, server.c - past.control)
