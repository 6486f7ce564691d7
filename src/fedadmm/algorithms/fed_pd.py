"""FedPD: a primal-dual method with full participation and rounds without communication.

Zhang, Hong, Dhople, Yin, Liu: FedPD: A Federated Learning Framework with Adaptivity to Non-IID
Data, IEEE TSP 2021; Algorithm 1 in Zhang and Hong, On the connection between FedDyn and FedPD.

    client   w_i ~ argmin f_i(w) + <y_i, w> + ||w - theta_i||^2 / (2 eta)
             y_i <- y_i + (w_i - theta_i) / eta
    with probability 1 - p   send w_i + eta y_i;  server: theta <- mean;  theta_i <- theta
    with probability p       nothing is sent;     theta_i <- w_i + eta y_i

theta_i need not be stored: it is either the theta just received or w_i + eta y_i.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedadmm.core.capabilities import InitialDuals, PrimalDualStates
from fedadmm.core.contracts import (
    Algorithm,
    Cohort,
    LocalProblem,
    LocalResult,
    PrimalDual,
    Regularizer,
    Requirements,
    Round,
)
from fedadmm.core.parts import Positive, Probability, part
from fedadmm.core.rng import uniform


class Server(NamedTuple):
    """The global model, and 1 if the clients have not received it yet."""

    theta: Tensor
    news: Tensor


class Client(NamedTuple):
    """The client's primal and dual."""

    w: Tensor
    y: Tensor


class Broadcast(NamedTuple):
    """theta, or None after a round without communication; and whether this round has none."""

    theta: Tensor | None
    silent: bool


class Message(NamedTuple):
    """w_i + eta y_i, or None in a round without communication."""

    augmented: Tensor | None


@part("algorithm", "fedpd")
class FedPD(InitialDuals, PrimalDualStates[Client], Algorithm[Server, Client, Broadcast, Message]):
    """FedPD: primal-dual updates, with communication in a random subset of rounds (Zhang et al.).

        w_i ~ argmin f_i(w) + <y_i, w> + ||w - theta_i||^2 / (2 eta)
        y_i <- y_i + (w_i - theta_i) / eta;   theta = mean of w_i + eta y_i

    Args:
        eta: Step size, the inverse of the penalty.  Default 100.
        skip_probability: Probability that a round has no communication.  Default 0.
        dual: Initial y_i: "zero", or "gradient" for -grad f_i(theta^0), which takes an initial
            round with all clients.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedPD(eta=1.0), problem, 50, solver=fa.ExactSolver())
        >>> round(result.params.item(), 2)
        2.0
    """

    paper: ClassVar[str] = "Zhang et al., FedPD, IEEE TSP 2021"

    eta: Positive = 100.0
    skip_probability: Probability = 0.0
    dual: Literal["zero", "gradient"] = "zero"

    @property
    def bias(self) -> str | None:
        """Rounds without communication move the clients away from consensus."""
        if not self.skip_probability:
            return None
        return "in a round without communication each client makes a proximal step on its own f_i"

    @property
    def requirements(self) -> Requirements:
        return Requirements(
            initial_round=self.initial_round,
            full_participation=True,
            broadcasts_theta=self.skip_probability == 0,
        )

    def init_server(self, params: Tensor) -> Server:
        return Server(params, params.new_ones(1))

    def init_client(self, params: Tensor) -> Client:
        return Client(params, torch.zeros_like(params))

    def broadcast(self, server: Server, round: Round) -> Broadcast:
        silent = round.round_index >= 0 and uniform(round.key) < self.skip_probability
        return Broadcast(server.theta if bool(server.news) else None, silent)

    def _centre(self, broadcast: Broadcast, client: Client) -> Tensor:
        return client.w + self.eta * client.y if broadcast.theta is None else broadcast.theta

    def local_problem(self, broadcast: Broadcast, client: Client) -> LocalProblem:
        centre = self._centre(broadcast, client)
        return LocalProblem(centre, client.y, 1 / self.eta, centre)

    def client_update(
        self, broadcast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        moved = (result.params - self._centre(broadcast, client)) / self.eta
        y = self.dual_after(client.y + moved, result)
        augmented = None if broadcast.silent else result.params + self.eta * y
        return Client(result.params, y), Message(augmented)

    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        if total.augmented is None:
            return Server(server.theta, torch.zeros_like(server.news))
        return Server(total.augmented, torch.ones_like(server.news))

    def local_params(self, client: Client) -> Tensor:
        return client.w

    def primal_dual(self, client: Client) -> PrimalDual:
        return PrimalDual(client.w, client.y, 1 / self.eta)
