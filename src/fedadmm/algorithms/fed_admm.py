"""FedADMM: each client solves its augmented Lagrangian and sends one increment.

Gong, Li, Freris: FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System
Heterogeneity, ICDE 2022, Algorithm 1.  Wang, Marella, Anderson: FedADMM: A federated primal-dual
algorithm allowing partial participation, CDC 2022, Algorithm 2.

    client   w_i+ ~ argmin f_i(w) + <y_i, w> + (rho/2) ||w - theta||^2
             y_i+ = y_i + rho (w_i+ - theta)
             send  Delta_i = u_i+ - u_i  with  u_i = w_i + y_i / rho
    server   mean <- mean + (step/|S|) sum over S of Delta_i;   theta = prox_{g/rho}(mean)

`step = "tracking"` is |S|/n: `mean` is then exactly the mean of all u_i, the setting of both
convergence theorems.  Gong et al. run step = 1, where it is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedadmm.errors import ParameterError, check_choice
from fedadmm.protocols import (
    Algorithm,
    LocalProblem,
    LocalResult,
    PrimalDual,
    Received,
    Regularizer,
)
from fedadmm.rng import Key
from fedadmm.schedules import Schedule, at, check_schedule

_NOBODY = 1e-6
"""A weight of the members this small is rounding: the last one has left."""


class Server(NamedTuple):
    """The folded mean, theta = prox(mean), the weight of the members, and the round."""

    mean: Tensor
    theta: Tensor
    members: Tensor
    round: Tensor


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
    """The increment of u_i; with members="seen" also 1 from a client that joins."""

    increment: Tensor
    joined: Tensor | None


@dataclass(frozen=True)
class FedADMM(Algorithm[Server, Client, Broadcast, Message]):
    """FedADMM of Gong et al. and of Wang et al.

    Args:
        rho: the penalty, a number or a schedule over rounds.
        step: the server step: "tracking", a number, or a schedule.
        start: local training begins at the client's own w_i or at the "global" theta.
        join: what a client holds as w_i when it first takes part: the "initial" vector as
            printed, or the "current" theta it receives; "always" takes that theta every time, as
            Gong's program does, which makes the increment 2 (w_i+ - theta).
        members: the mean runs over "all" clients as printed, or over those "seen" so far.
    """

    name: ClassVar[str] = "fedadmm"
    paper: ClassVar[str] = "Gong et al., FedADMM, ICDE 2022; Wang et al., FedADMM, CDC 2022"
    accepts_regularizer: ClassVar[bool] = True

    rho: float | Schedule
    step: Literal["tracking"] | float | Schedule = "tracking"
    start: Literal["own", "global"] = "own"
    join: Literal["initial", "current", "always"] = "initial"
    members: Literal["all", "seen"] = "all"

    def __post_init__(self) -> None:
        check_schedule(self, "rho", self.rho)
        check_choice(self, "start", self.start, ("own", "global"))
        check_choice(self, "join", self.join, ("initial", "current", "always"))
        check_choice(self, "members", self.members, ("all", "seen"))
        if isinstance(self.step, str):
            check_choice(self, "step", self.step, ("tracking",))
        else:
            check_schedule(self, "step", self.step, may_track=True)
            if self.members == "seen":
                raise ParameterError(
                    f"FedADMM: step is {self.step!r}, but must be 'tracking' with members='seen', "
                    "which keeps the exact mean of the members"
                )
        if self.join == "always" and self.members == "seen":
            raise ParameterError(
                "FedADMM: join is 'always', but must be 'initial' or 'current' with "
                "members='seen', whose mean counts the clients' own models"
            )

    @property
    def prox_step(self) -> float:
        """1 / rho of the first round."""
        return 1 / at(self.rho, 0)

    def init_server(self, params: Tensor) -> Server:
        """mean = theta = theta^0; every client counts, or none yet."""
        members = params.new_full((1,), 1.0 if self.members == "all" else 0.0)
        return Server(params, params, members, torch.zeros(1, dtype=torch.int64))

    def init_client(self, params: Tensor) -> Client:
        """w_i = theta^0, y_i = 0."""
        rho = params.new_full((1,), at(self.rho, 0))
        return Client(params, torch.zeros_like(params), rho, params.new_zeros(1))

    def broadcast(self, server: Server, key: Key) -> Broadcast:
        """theta and rho."""
        rho = at(self.rho, int(server.round))
        return Broadcast(server.theta, server.theta.new_full((1,), rho))

    def _own(self, cast: Broadcast, client: Client) -> Tensor:
        """w_i; a client that joins with join="current" takes the theta it received."""
        if self.join == "initial":
            return client.w
        if self.join == "always":
            return cast.theta
        return torch.where(client.joined > 0, client.w, cast.theta)

    def local_problem(self, cast: Broadcast, client: Client) -> LocalProblem:
        """min f_i(w) + <y_i, w> + (rho/2) ||w - theta||^2."""
        start = self._own(cast, client) if self.start == "own" else cast.theta
        return LocalProblem(start, client.y, cast.rho, cast.theta)

    def client_update(
        self, cast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        """Move the dual and send the increment of u_i = w_i + y_i / rho."""
        y = client.y + cast.rho * (result.params - cast.theta)
        before = self._own(cast, client) + client.y / client.rho
        after = result.params + y / cast.rho
        new = Client(
            result.params, y, cast.rho.expand_as(client.rho).clone(), torch.ones_like(client.joined)
        )
        if self.members == "all":
            return new, Message(after - before, None)
        return new, Message(after - client.joined * before, 1 - client.joined)

    def server_update(
        self, server: Server, total: Message, received: Received, regularizer: Regularizer
    ) -> Server:
        """Fold the increments and apply prox_{g/rho}."""
        t = int(server.round)
        if total.joined is None:
            members = server.members
            mean = server.mean + self._factor(t, received) * total.increment
        else:
            members = server.members + total.joined
            mean = (server.members * server.mean + total.increment) / members
        theta = regularizer.prox(mean, 1 / at(self.rho, t))
        return Server(mean, theta, members, server.round + 1)

    def without(self, server: Server, past: Message, regularizer: Regularizer) -> Server | None:
        """Take a client out of the mean; a numeric step keeps no mean to take it out of."""
        if not isinstance(self.step, str):
            return None
        if past.joined is None:
            members, mean = server.members, server.mean - past.increment
        else:
            members = server.members - past.joined
            rest = (server.members * server.mean - past.increment) / members
            mean = torch.where(members > _NOBODY, rest, server.mean)
        last = max(int(server.round) - 1, 0)
        theta = regularizer.prox(mean, 1 / at(self.rho, last))
        return Server(mean, theta, members.clamp(min=0), server.round)

    def _factor(self, t: int, received: Received) -> float:
        """What multiplies sum a_i Delta_i: 1 for tracking, step / (weight of S) otherwise."""
        if isinstance(self.step, str):
            return 1.0
        step = at(self.step, t) / received.weight
        return max(step, 1.0) if getattr(self.step, "floor", None) == "tracking" else step

    def global_params(self, server: Server) -> Tensor:
        """theta."""
        return server.theta

    def local_params(self, client: Client) -> Tensor:
        """w_i."""
        return client.w

    def primal_dual(self, client: Client) -> PrimalDual:
        """w_i, y_i and the rho of the last upload."""
        return PrimalDual(client.w, client.y, client.rho)

    def tracked_mean(self, server: Server) -> Tensor | None:
        """The folded mean, which is one of all u_i when everybody is a member."""
        return server.mean if self.members == "all" else None
