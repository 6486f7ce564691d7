"""FedAvg: several local steps from the global model, then a weighted mean.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep
Networks from Decentralized Data, AISTATS 2017.

    client   w <- local steps on f_i, started at theta;  send w - theta
    server   theta <- theta + weighted mean over S
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, TypeVar

from torch import Tensor

from fedadmm.algorithms.fed_sgd import Server, Stateless
from fedadmm.core.parts import part
from fedadmm.core.protocols import (
    Algorithm,
    LocalProblem,
    LocalResult,
    Received,
    Regularizer,
    Round,
)


class Delta(NamedTuple):
    """How far the local steps moved the model."""

    delta: Tensor


State = TypeVar("State")
Sent = TypeVar("Sent")


class LocalSteps(Algorithm[State, Stateless, Server, Sent]):
    """Clients that keep nothing, and make local steps on f_i from theta."""

    baseline: ClassVar[bool] = True

    @property
    def bias(self) -> str:
        """Client drift."""
        return "several local steps, or some of the clients, have a fixed point of their own"

    def init_client(self, params: Tensor) -> Stateless:
        """Nothing."""
        return Stateless()

    def broadcast(self, server: State, turn: Round) -> Server:
        """theta."""
        return Server(self.global_params(server))

    def local_problem(self, cast: Server, client: Stateless) -> LocalProblem:
        """min f_i, started at theta."""
        return LocalProblem(start=cast.theta)


class SendsMove(LocalSteps[State, Delta]):
    """The clients' half of FedAvg, which other servers share: theta in, w - theta out."""

    @property
    def moves(self) -> tuple[str, ...]:
        """w - theta."""
        return ("delta",)

    def client_update(
        self, cast: Server, client: Stateless, result: LocalResult
    ) -> tuple[Stateless, Delta]:
        """Send w - theta."""
        return client, Delta(result.params - cast.theta)


@part("algorithm", "fedavg")
class FedAvg(SendsMove[Server]):
    """FedAvg; all hyper-parameters are those of the solver and its stopping rule."""

    paper: ClassVar[str] = "McMahan et al., Communication-Efficient Learning, AISTATS 2017"

    def init_server(self, params: Tensor) -> Server:
        """theta^0."""
        return Server(params)

    def server_update(
        self, server: Server, total: Delta, received: Received, regularizer: Regularizer
    ) -> Server:
        """Add the replies' weighted mean."""
        return Server(server.theta + total.delta / received.weight)

    def global_params(self, server: Server) -> Tensor:
        """theta."""
        return server.theta
