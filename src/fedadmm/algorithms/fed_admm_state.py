"""What FedADMM's server and clients hold, and its mean of all u_i = w_i + y_i / rho_i.

With one rho and all clients as members every u_i counts a_i.  When rho follows a schedule, the
clients' last rho_i differ; with members="seen" clients join one by one.  The mean that minimises
the augmented Lagrangian is weighted, over the members:

    mean = sum a_i (rho_i w_i + y_i) / sum a_i rho_i

A client sends how its share of both sums changes, in units of the first rho, and the server adds
up what it receives; a client is taken out by the same sum with the other sign.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedadmm.core.contracts import Regularizer

ROUNDING = 1e-6
"""A weight of the members this small is rounding: the last one has left."""


class Server(NamedTuple):
    """The mean, theta = prox(mean), and the sums of a_i and of a_i rho_i / rho_0 that it has."""

    mean: Tensor
    theta: Tensor
    members: Tensor
    weight: Tensor


class Client(NamedTuple):
    """Primal, dual, the rho of the last upload, and whether the client ever took part."""

    w: Tensor
    y: Tensor
    rho: Tensor
    joined: Tensor


class Broadcast(NamedTuple):
    """The global model and the penalty of this round."""

    theta: Tensor
    rho: Tensor


class Message(NamedTuple):
    """The increment of u_i; where weights change, that of (rho_i / rho_0) u_i and of both weights.

    `joined` is 1 from a client that joins, `weight` the increment of rho_i / rho_0; None where it
    cannot change.
    """

    increment: Tensor
    joined: Tensor | None = None
    weight: Tensor | None = None


def change(
    before: Tensor, after: Tensor, had: Tensor, weight: Tensor, joined: Tensor | None
) -> Message:
    """From u_i and its weight before and after; `joined` is whether the client counted before."""
    if joined is None:
        return Message(weight * after - had * before, None, weight - had)
    had = joined * had
    return Message(weight * after - had * before, 1 - joined, weight - had)


def fold(server: Server, total: Message, rho: float, regularizer: Regularizer) -> Server:
    """The mean after changes, and its prox; `rho` is the first one where weights change.

    Without members the mean stays where it is.
    """
    members = server.members if total.joined is None else server.members + total.joined
    weight = members if total.weight is None else server.weight + total.weight
    if float(members) <= ROUNDING:
        nothing = torch.zeros_like(members)
        return server._replace(members=nothing, weight=nothing)
    mean = (server.weight * server.mean + total.increment) / weight
    rho = rho * float(weight / members)
    return Server(mean, regularizer.prox(mean, 1 / rho), members, weight)
