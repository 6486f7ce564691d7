"""FedDyn: a dynamic regulariser per client and its mean on the server.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic
Regularization, ICLR 2021; in the notation of Zhang and Hong, On the connection between FedDyn
and FedPD, 2021, whose "grad f_i" is the dual y_i = -grad f_i(w_i).

    client   w ~ argmin f_i(w) + <y_i, w> + ||w - theta||^2 / (2 eta), started at theta
             y_i <- y_i + (w - theta) / eta;   send w - theta
    server   h <- h + (1/(eta n)) sum over S of (w - theta)
             theta <- theta + mean over S of (w - theta) + eta h

The primal part averages over the participants, the dual part over everybody: with full
participation this is FedPD, with partial participation it is not FedADMM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedadmm.algorithms.fed_avg import Delta
from fedadmm.errors import check_positive
from fedadmm.protocols import Algorithm, LocalProblem, LocalResult, Received, Regularizer
from fedadmm.rng import Key


class Server(NamedTuple):
    """The global model and h, the mean of all duals."""

    theta: Tensor
    h: Tensor


class Client(NamedTuple):
    """The client's dual."""

    y: Tensor


class Broadcast(NamedTuple):
    """The global model."""

    theta: Tensor


@dataclass(frozen=True)
class FedDyn(Algorithm[Server, Client, Broadcast, Delta]):
    """FedDyn with step `eta`, the inverse of the paper's regularisation weight."""

    name: ClassVar[str] = "feddyn"
    paper: ClassVar[str] = "Acar et al., Dynamic Regularization, ICLR 2021"

    eta: float

    def __post_init__(self) -> None:
        check_positive(self, "eta", self.eta)

    def init_server(self, params: Tensor) -> Server:
        """theta^0 and h = 0."""
        return Server(params, torch.zeros_like(params))

    def init_client(self, params: Tensor) -> Client:
        """y_i = 0."""
        return Client(torch.zeros_like(params))

    def broadcast(self, server: Server, key: Key) -> Broadcast:
        """Theta."""
        return Broadcast(server.theta)

    def local_problem(self, cast: Broadcast, client: Client) -> LocalProblem:
        """Min f_i(w) + <y_i, w> + ||w - theta||^2 / (2 eta), started at theta."""
        return LocalProblem(cast.theta, client.y, 1 / self.eta, cast.theta)

    def client_update(
        self, cast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Delta]:
        """Move the dual and send w - theta."""
        delta = result.params - cast.theta
        return Client(client.y + delta / self.eta), Delta(delta)

    def server_update(
        self, server: Server, total: Delta, received: Received, regularizer: Regularizer
    ) -> Server:
        """The participants' mean move plus eta times the mean dual of everybody."""
        h = server.h + total.delta / self.eta
        return Server(server.theta + total.delta / received.weight + self.eta * h, h)

    def global_params(self, server: Server) -> Tensor:
        """Theta."""
        return server.theta
