"""FedPD: primal-dual with all clients, and rounds without communication.

Zhang, Hong, Dhople, Yin, Liu: FedPD: A Federated Learning Framework with Adaptivity to Non-IID
Data, IEEE TSP 2021; Algorithm 1 in Zhang and Hong, On the connection between FedDyn and FedPD.

    client   w_i ~ argmin f_i(w) + <y_i, w> + ||w - theta_i||^2 / (2 eta)
             y_i <- y_i + (w_i - theta_i) / eta
    with probability 1 - p   send w_i + eta y_i;  server: theta <- mean;  theta_i <- theta
    with probability p       nothing is sent;     theta_i <- w_i + eta y_i

theta_i need not be stored: it is either the theta just cohort or w_i + eta y_i.
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
    """The global model, and whether the clients have yet to receive it (1) or not (0)."""

    theta: Tensor
    news: Tensor


class Client(NamedTuple):
    """The client's primal and dual."""

    w: Tensor
    y: Tensor


class Broadcast(NamedTuple):
    """theta, or None after a silent round; and whether this round is silent."""

    theta: Tensor | None
    silent: bool


class Message(NamedTuple):
    """w_i + eta y_i, or None in a silent round."""

    augmented: Tensor | None


@part("algorithm", "fedpd")
class FedPD(InitialDuals, PrimalDualStates[Client], Algorithm[Server, Client, Broadcast, Message]):
    """FedPD with step `eta`; a round is silent with probability `skip_probability`.

    `dual` is lambda^0 of the note's Algorithm 1: "zero", or the "gradient" -grad f_i(theta^0), with
    which the exact first solve stays at theta^0: an initial round takes the gradient alone.
    """

    paper: ClassVar[str] = "Zhang et al., FedPD, IEEE TSP 2021"

    eta: Positive = 100.0
    skip_probability: Probability = 0.0
    dual: Literal["zero", "gradient"] = "zero"

    @property
    def bias(self) -> str | None:
        """A silent round moves the clients away from consensus."""
        return (
            "a silent round is a proximal step on each f_i alone" if self.skip_probability else None
        )

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
