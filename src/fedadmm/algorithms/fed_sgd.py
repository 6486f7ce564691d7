"""FedSGD: the clients send gradients, the server makes the step.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep
Networks from Decentralized Data, AISTATS 2017.

    client   g_i = grad f_i(theta)
    server   theta <- theta - lr * mean over S of g_i
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from torch import Tensor

from fedadmm.core.parts import Positive, part
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
    """The global model."""

    theta: Tensor


class Stateless(NamedTuple):
    """A client that keeps nothing between rounds."""


class Gradient(NamedTuple):
    """The full local gradient at theta."""

    gradient: Tensor


@part("algorithm", "fedsgd")
class FedSGD(Algorithm[Server, Stateless, Server, Gradient]):
    """FedSGD with server learning rate `lr`."""

    paper: ClassVar[str] = "McMahan et al., Communication-Efficient Learning, AISTATS 2017"
    baseline: ClassVar[bool] = True

    lr: Positive

    @property
    def needs(self) -> Needs:
        """A gradient at theta and no local steps."""
        return Needs(local_solve=False, start_gradient=True)

    @property
    def bias(self) -> str:
        """With everybody there is none; a cohort's mean gradient is its own."""
        return "the mean gradient of some of the clients is not zero at the optimum"

    @property
    def moves(self) -> tuple[str, ...]:
        """The gradient."""
        return ("gradient",)

    def init_server(self, params: Tensor) -> Server:
        """theta^0."""
        return Server(params)

    def init_client(self, params: Tensor) -> Stateless:
        """Nothing."""
        return Stateless()

    def broadcast(self, server: Server, turn: Round) -> Server:
        """theta."""
        return server

    def local_problem(self, cast: Server, client: Stateless) -> LocalProblem:
        """The place where the gradient is wanted."""
        return LocalProblem(start=cast.theta)

    def client_update(
        self, cast: Server, client: Stateless, result: LocalResult
    ) -> tuple[Stateless, Gradient]:
        """Send grad f_i(theta)."""
        assert result.start_gradient is not None
        return client, Gradient(result.start_gradient)

    def server_update(
        self, server: Server, total: Gradient, received: Received, regularizer: Regularizer
    ) -> Server:
        """One gradient step with the replies' weighted mean."""
        return Server(server.theta - self.lr * total.gradient / received.weight)

    def global_params(self, server: Server) -> Tensor:
        """theta."""
        return server.theta
