"""FedADMM: each client solves its augmented Lagrangian and sends one increment.

Gong, Li, Freris: FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System
Heterogeneity, ICDE 2022, Algorithm 1.  Wang, Marella, Anderson: FedADMM: A federated primal-dual
algorithm allowing partial participation, CDC 2022, Algorithm 2.

    minimise sum_i a_i f_i(theta) + g(theta)

    client   w_i+ ~ argmin f_i(w) + <y_i, w> + (rho/2) ||w - theta||^2
             y_i+ = y_i + rho (w_i+ - theta)
             send  Delta_i = u_i+ - u_i  with  u_i = w_i + y_i / rho
    server   mean <- mean + (step/|S|) sum over S of Delta_i;   theta = prox_{g/rho}(mean)

`step = "tracking"` is |S|/n: `mean` is then exactly the mean of all u_i, the setting of both
convergence theorems.  Gong et al. run step = 1, where it is not: the limit then solves
grad f(theta) = rho (1 - |S|/(n step)) (theta - theta^0), so that step = 1 wants a small rho.

When rho follows a schedule, the clients' last rho_i differ; with members="seen" clients join one by
one.  The mean that minimises the augmented Lagrangian is then weighted, over the members:

    mean = sum a_i (rho_i w_i + y_i) / sum a_i rho_i

A client sends how its share of both sums changes, in units of the first rho, and the server adds
up what it receives; a client is taken out by the same sum with the other sign.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Positive, part
from fedadmm.core.protocols import (
    Algorithm,
    LocalProblem,
    LocalResult,
    PrimalDual,
    Received,
    Regularizer,
    Round,
)
from fedadmm.core.schedules import PerWork, Schedule, at

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


@part("algorithm", "fedadmm")
class FedADMM(Algorithm[Server, Client, Broadcast, Message]):
    """FedADMM of Gong et al. and of Wang et al.

    Args:
        rho: the penalty: a number, a schedule over rounds, or `PerWork` for the local work.
        step: the server step: "tracking", a number, or a schedule.
        members: the mean runs over "all" clients as printed, or over those "seen" so far.
    """

    paper: ClassVar[str] = "Gong et al., FedADMM, ICDE 2022; Wang et al., FedADMM, CDC 2022"
    accepts_regularizer: ClassVar[bool] = True

    rho: Positive | Schedule | PerWork = 0.01
    step: Literal["tracking"] | Positive | Schedule = "tracking"
    members: Literal["all", "seen"] = "all"

    def __post_init__(self) -> None:
        if self.weighted and self.step != "tracking":
            raise ParameterError(
                f"FedADMM: step is {self.step!r}, but must be 'tracking' with members 'seen' "
                "or a schedule of rho, which keep an exact mean (FedADMMPrinted keeps none)"
            )

    @property
    def weighted(self) -> bool:
        """Whether what a client counts in the mean can change."""
        return self.members != "all" or callable(self.rho)

    @property
    def bias(self) -> str | None:
        pull = "a numeric step pulls the limit by rho (1 - |S|/(n step)) (theta - theta^0)"
        return None if self.step == "tracking" else pull

    @property
    def tolerates_stale(self) -> bool:
        """With "tracking", where a reply moves the mean by its own share; a number may be more."""
        return self.step == "tracking"

    def fixed_step(self, round_index: int) -> float | None:
        return None if isinstance(self.step, str) else at(self.step, round_index)

    @property
    def prox_step(self) -> float:
        return 1 / at(self.rho, 0)

    @property
    def increments(self) -> tuple[str, ...]:
        return () if self.weighted else ("increment",)

    def init_server(self, params: Tensor) -> Server:
        members = params.new_full((1,), 1.0 if self.members == "all" else 0.0)
        return Server(params, params, members, members)

    def init_client(self, params: Tensor) -> Client:
        rho = params.new_full((1,), at(self.rho, 0))
        return Client(params, torch.zeros_like(params), rho, params.new_zeros(1))

    def broadcast(self, server: Server, round: Round) -> Broadcast:
        return Broadcast(server.theta, server.theta.new_full((1,), at(self.rho, round.round_index)))

    def local_problem(self, cast: Broadcast, client: Client) -> LocalProblem:
        return LocalProblem(cast.theta, client.y, cast.rho, cast.theta)

    def client_update(
        self, cast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        w, rho = result.params, cast.rho.expand_as(client.rho).clone()
        y = client.y + cast.rho * (w - cast.theta)
        before, after = client.w + client.y / client.rho, w + y / cast.rho
        new = Client(w, y, rho, torch.ones_like(client.joined))
        if not self.weighted:
            return new, Message(after - before)
        joined = None if self.members == "all" else client.joined
        had, weight = client.rho / at(self.rho, 0), cast.rho / at(self.rho, 0)
        message = change(before, after, had, weight, joined)
        return new, message if callable(self.rho) else message._replace(weight=None)

    def server_update(
        self, server: Server, total: Message, received: Received, regularizer: Regularizer
    ) -> Server:
        rho = at(self.rho, 0 if self.weighted else received.round_index)
        if isinstance(self.step, str):  # the sum of a_i Delta_i is |S|/n times their mean over S
            return fold(server, total, rho, regularizer)
        factor = at(self.step, received.round_index) / received.weight
        return fold(server, Message(factor * total.increment), rho, regularizer)

    def remove_client(
        self, server: Server, past: Message, regularizer: Regularizer
    ) -> Server | None:
        """Take its u_i out of the mean; a numeric step keeps no such mean."""
        if self.step != "tracking":
            return None
        return fold(server, trees.scaled(past, -1.0), at(self.rho, 0), regularizer)

    def local_params(self, client: Client) -> Tensor:
        return client.w

    def primal_dual(self, client: Client) -> PrimalDual:
        return PrimalDual(client.w, client.y, client.rho)

    def tracked_mean(self, server: Server) -> Tensor | None:
        return None if self.weighted else server.mean
