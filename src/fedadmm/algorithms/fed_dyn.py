"""FedDyn: a dynamic regularisation term per client and its mean on the server.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic
Regularization, ICLR 2021; in the notation of Zhang and Hong, On the connection between FedDyn
and FedPD, 2021, whose "grad f_i" is the dual y_i = -grad f_i(w_i).

    client   w ~ argmin f_i(w) + <y_i, w> + ||w - theta||^2 / (2 eta), started at theta
             y_i <- y_i + (w - theta) / eta;   send w - theta
    server   h <- h + (1/(eta n)) sum over S of (w - theta)
             theta <- theta + mean over S of (w - theta) + eta h

The server averages models over the participants and duals over all clients: with full participation
this is FedPD, with partial participation it differs from FedADMM.

With members="seen" duals are averaged over the clients that have participated so far.  A client
that has not participated has y_i = 0, which is no estimate of its gradient, and is left out of the
mean until it joins.  Once all clients have been seen the two options are identical.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedadmm.core.capabilities import ClientRemoval, ParticipantsMeanModel
from fedadmm.core.contracts import (
    Algorithm,
    Cohort,
    LocalProblem,
    LocalResult,
    Regularizer,
    Theta,
)
from fedadmm.core.parts import Positive, part


class Server(NamedTuple):
    """The global model, h = sum a_i y_i, and the weight of the members."""

    theta: Tensor
    h: Tensor
    members: Tensor


class Client(NamedTuple):
    """The client's dual, and 1 if it has participated."""

    y: Tensor
    joined: Tensor


class Message(NamedTuple):
    """w - theta; with members="seen" also 1 from a client that joins."""

    delta: Tensor
    joined: Tensor | None


@part("algorithm", "feddyn")
class FedDyn(
    ClientRemoval[Server, Message],
    ParticipantsMeanModel[Server],
    Algorithm[Server, Client, Theta, Message],
):
    """FedDyn: a dynamic regularisation term per client (Acar et al., 2021).

        w_i ~ argmin f_i(w) + <y_i, w> + ||w - theta||^2 / (2 eta);   y_i <- y_i + (w_i - theta)/eta
        theta <- weighted mean over S of w_i + eta * mean dual of all clients

    Args:
        eta: Step size, the inverse of the paper's regularisation weight alpha.  Default 100.
        members: Clients that the mean dual runs over: "all" as in the paper, or those "seen" so
            far.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedDyn(eta=1.0), problem, 50, solver=fa.ExactSolver())
        >>> round(result.params.item(), 2)
        2.0
    """

    paper: ClassVar[str] = "Acar et al., Dynamic Regularization, ICLR 2021"

    eta: Positive = 100.0
    members: Literal["all", "seen"] = "all"

    @property
    def increments(self) -> tuple[str, ...]:
        return ("delta",)

    def init_server(self, params: Tensor) -> Server:
        members = params.new_full((1,), 1.0 if self.members == "all" else 0.0)
        return Server(params, torch.zeros_like(params), members)

    def init_client(self, params: Tensor) -> Client:
        return Client(torch.zeros_like(params), params.new_zeros(1))

    def local_problem(self, broadcast: Theta, client: Client) -> LocalProblem:
        return LocalProblem(broadcast.theta, client.y, 1 / self.eta, broadcast.theta)

    def client_update(
        self, broadcast: Theta, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        delta = result.params - broadcast.theta
        new = Client(client.y + delta / self.eta, torch.ones_like(client.joined))
        return new, Message(delta, None if self.members == "all" else 1 - client.joined)

    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        h = server.h + total.delta / self.eta
        members = server.members if total.joined is None else server.members + total.joined
        theta = server.theta + total.delta / cohort.weight + self.eta * h / members
        return server._replace(theta=theta, h=h, members=members)

    def remove_client(self, server: Server, past: Message, regularizer: Regularizer) -> Server:
        """Remove the client's dual from h; its earlier effect on theta remains."""
        members = server.members if past.joined is None else server.members - past.joined
        h = server.h - past.delta / self.eta
        return server._replace(h=h, members=members.clamp(min=0))

    def participants_mean(self, server: Server) -> Tensor:
        """Return theta without the step along h, which is zero while there are no members."""
        return server.theta - self.eta * server.h / server.members.clamp(min=1e-30)
