"""States and messages of FedADMM, and the server's weighted mean of all u_i = w_i + y_i / rho_i.

With one rho and all clients as members, u_i has the weight a_i.  If rho follows a schedule, the
clients' last rho_i differ; with members="seen", clients join one by one.  The mean that minimises
the augmented Lagrangian is then weighted, over the members:

    mean = sum a_i (rho_i w_i + y_i) / sum a_i rho_i

A client sends the changes of its terms in both sums, in units of the first rho, and the server adds
them.  A client is removed by subtracting the sum of its changes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedadmm.core.contracts import Regularizer

ROUNDING = 1e-6
"""Total weight of the members below which only rounding errors remain: there are no members."""


class Server(NamedTuple):
    """The mean, theta = prox(mean), and the members' sums of a_i and of a_i rho_i / rho_0."""

    mean: Tensor
    theta: Tensor
    members: Tensor
    weight: Tensor


class Client(NamedTuple):
    """Primal, dual, the rho of the last upload, and 1 if the client has participated."""

    w: Tensor
    y: Tensor
    rho: Tensor
    joined: Tensor


class Broadcast(NamedTuple):
    """The global model and the penalty of this round."""

    theta: Tensor
    rho: Tensor


class Message(NamedTuple):
    """The increment of u_i, or of (rho_i / rho_0) u_i if weights change."""

    increment: Tensor
    joined: Tensor | None = None
    """1 from a client that joins, else 0; None if all clients are members from the start."""
    weight: Tensor | None = None
    """The increment of rho_i / rho_0; None if rho is constant."""


def weighted_change(
    before: Tensor, after: Tensor, had: Tensor, weight: Tensor, joined: Tensor | None
) -> Message:
    """Return the message with the change of a client's terms in the weighted mean.

    Args:
        before: u_i before the round.
        after: u_i after the round.
        had: weight rho_i / rho_0 before the round.
        weight: weight after the round.
        joined: 1 if the client was a member before the round; None if all clients are members.
    """
    if joined is None:
        return Message(weight * after - had * before, None, weight - had)
    had = joined * had
    return Message(weight * after - had * before, 1 - joined, weight - had)


def add_to_mean(server: Server, total: Message, rho: float, regularizer: Regularizer) -> Server:
    """Return the server's state after the mean has changed by an aggregated message.

    Args:
        server: the state before; without members the mean does not change.
        total: weighted sum of messages.
        rho: the penalty of this round, or of the first round if weights change.
        regularizer: g.
    """
    members = server.members if total.joined is None else server.members + total.joined
    weight = members if total.weight is None else server.weight + total.weight
    if float(members) <= ROUNDING:
        nothing = torch.zeros_like(members)
        return server._replace(members=nothing, weight=nothing)
    mean = (server.weight * server.mean + total.increment) / weight
    rho = rho * float(weight / members)
    return Server(mean, regularizer.prox(mean, 1 / rho), members, weight)
