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

When rho follows a schedule, clients hold u_i of different rho_i, and the mean that minimises the
augmented Lagrangian is weighted by them: mean = sum a_i (rho_i w_i + y_i) / sum a_i rho_i.

With absent="aligned" clients that sit a round out move along: see `fedadmm.algorithms.alignment`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedadmm.algorithms.alignment import Alignable, Steps
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
from fedadmm.core.schedules import PerWork, Schedule, at, check_floor, meets_participation

_NOBODY = 1e-6
"""A weight of the members this small is rounding: the last one has left."""


class Server(NamedTuple):
    """The folded mean, theta = prox(mean), and what the mean runs over.

    `members` is the sum of the a_i of the clients that count, `weight` that of a_i rho_i / rho_0.
    """

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
    """The increment of u_i, and of what the mean runs over where that can change.

    With members="seen" also 1 from a client that joins, with a schedule of rho also the increment
    of rho_i / rho_0; `increment` is then that of u_i times rho_i / rho_0.
    """

    increment: Tensor
    joined: Tensor | None = None
    weight: Tensor | None = None


@dataclass(frozen=True)
class PrintedFedADMM(Algorithm[Server, Client, Broadcast, Message]):
    """The recursion, where absent clients keep what they have."""

    rho: Positive | Schedule | PerWork = 0.01
    step: Literal["tracking"] | Positive | Schedule = "tracking"
    start: Literal["own", "current", "global"] = "own"
    members: Literal["all", "seen"] = "all"
    increment: Literal["exact", "printed", "released"] = "exact"

    def __post_init__(self) -> None:
        check_floor(self, "rho", self.rho)
        if self._weighted and not isinstance(self.step, str):
            raise ParameterError(
                f"FedADMM: step is {self.step!r}, but must be 'tracking' with members='seen' or a "
                "schedule of rho, which keep an exact mean (increment='printed' keeps none)"
            )
        if self.members == "seen" and self.increment != "exact":
            raise ParameterError(
                f"FedADMM: increment is {self.increment!r}, but must be 'exact' with "
                "members='seen', whose mean counts the clients' own models"
            )

    def fixed_step(self, round_index: int) -> float | None:
        """`step`, unless it is "tracking"."""
        return None if isinstance(self.step, str) else at(self.step, round_index)

    @property
    def _weighted(self) -> bool:
        """Whether what the mean runs over can change."""
        return self.members == "seen" or (self.increment == "exact" and callable(self.rho))

    @property
    def bias(self) -> str | None:
        """What the server holds beside the mean of the u_i stays in the limit."""
        if self.increment == "released":
            return "2 (w_i - theta) pulls the limit towards theta^0 by (rho/2) (theta - theta^0)"
        if not isinstance(self.step, str):
            return "a numeric step, unless it is |S|/n, pulls the limit along theta - theta^0"
        if self.increment == "printed" and callable(self.rho):
            return "one rho in both u_i leaves an offset when rho changes"
        return None

    @property
    def tolerates_stale(self) -> bool:
        """With "tracking", where a reply moves the mean by its own share; a number may be more."""
        return isinstance(self.step, str)

    @property
    def prox_step(self) -> float:
        """1 / rho of the first round."""
        return 1 / at(self.rho, 0)

    @property
    def increments(self) -> tuple[str, ...]:
        """Those of u_i; where weights change, they change what a whole u_i counts."""
        return () if self._weighted else ("increment",)

    def init_server(self, params: Tensor) -> Server:
        """mean = theta = theta^0; every client counts, or none yet."""
        members = params.new_full((1,), 1.0 if self.members == "all" else 0.0)
        return Server(params, params, members, members)

    def init_client(self, params: Tensor) -> Client:
        """w_i = theta^0, y_i = 0."""
        rho = params.new_full((1,), at(self.rho, 0))
        return Client(params, torch.zeros_like(params), rho, params.new_zeros(1))

    def broadcast(self, server: Server, turn: Round) -> Broadcast:
        """theta and rho."""
        return Broadcast(server.theta, server.theta.new_full((1,), at(self.rho, turn.round_index)))

    def local_problem(self, cast: Broadcast, client: Client) -> LocalProblem:
        """min f_i(w) + <y_i, w> + (rho/2) ||w - theta||^2."""
        start = cast.theta
        if self.start == "own":
            start = client.w
        elif self.start == "current":
            start = torch.where(client.joined > 0, client.w, cast.theta)
        return LocalProblem(start, client.y, cast.rho, cast.theta)

    def client_update(
        self, cast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        """Move the dual and send the increment of u_i = w_i + y_i / rho."""
        y = client.y + cast.rho * (result.params - cast.theta)
        new = Client(
            result.params, y, cast.rho.expand_as(client.rho).clone(), torch.ones_like(client.joined)
        )
        return new, self._message(cast, client, new)

    def _message(self, cast: Broadcast, old: Client, new: Client) -> Message:
        after = new.w + new.y / cast.rho
        if self.increment == "released":
            return Message(2 * (new.w - cast.theta))
        if self.increment == "printed":
            return Message(after - (old.w + old.y / cast.rho))
        before = old.w + old.y / old.rho
        if not self._weighted:
            return Message(after - before)
        first = at(self.rho, 0)
        counted = torch.ones_like(old.joined) if self.members == "all" else old.joined
        weight, had = cast.rho / first, counted * old.rho / first
        return Message(
            weight * after - had * before,
            None if self.members == "all" else 1 - old.joined,
            weight - had if callable(self.rho) else None,
        )

    def server_update(
        self, server: Server, total: Message, received: Received, regularizer: Regularizer
    ) -> Server:
        """Fold the increments and apply prox_{g/rho}, rho the mean over those who count."""
        if self._weighted:
            return self._weighed(server, total, regularizer)
        mean = server.mean + self._factor(received) * total.increment
        rho = at(self.rho, received.round_index)
        return server._replace(mean=mean, theta=regularizer.prox(mean, 1 / rho))

    def _weighed(self, server: Server, total: Message, regularizer: Regularizer) -> Server:
        """The exact mean after weights were added or, in a negative message, taken away."""
        members = server.members if total.joined is None else server.members + total.joined
        weight = members if total.weight is None else server.weight + total.weight
        if float(members) <= _NOBODY:
            nothing = torch.zeros_like(members)
            return server._replace(members=nothing, weight=nothing)
        mean = (server.weight * server.mean + total.increment) / weight
        rho = at(self.rho, 0) * float(weight / members)
        return Server(mean, regularizer.prox(mean, 1 / rho), members, weight)

    def without(self, server: Server, past: Message, regularizer: Regularizer) -> Server | None:
        """Take a client out of the mean; a numeric step or a printed one keeps no such mean."""
        kept = isinstance(self.step, str) and self.increment != "released"
        if not kept or (self.increment == "printed" and callable(self.rho)):
            return None
        if self._weighted:
            taken: Message = trees.scaled(past, -1.0)
            return self._weighed(server, taken, regularizer)
        mean = server.mean - past.increment
        return server._replace(mean=mean, theta=regularizer.prox(mean, self.prox_step))

    def _factor(self, received: Received) -> float:
        """What multiplies sum a_i Delta_i: 1 for tracking, step / (weight of S) otherwise."""
        if isinstance(self.step, str):
            return 1.0
        step = at(self.step, received.round_index) / received.weight
        return max(step, 1.0) if meets_participation(self.step) else step

    def global_params(self, server: Server) -> Tensor:
        """theta."""
        return server.theta

    def local_params(self, client: Client) -> Tensor | None:
        """w_i."""
        return client.w

    def primal_dual(self, client: Client) -> PrimalDual | None:
        """w_i, y_i and the rho of the last upload."""
        return PrimalDual(client.w, client.y, client.rho)

    def tracked_mean(self, server: Server) -> Tensor | None:
        """The folded mean, which is meant to be one of all u_i with equal penalties."""
        return None if self._weighted else server.mean


@part("algorithm", "fedadmm")
class FedADMM(Alignable, PrintedFedADMM):
    """FedADMM of Gong et al. and of Wang et al.

    Args:
        rho: the penalty: a number, a schedule over rounds, or `PerWork(pull)`, which fits it to
            the clients' local work.
        step: the server step: "tracking", a number, or a schedule.  Where a numeric step differs
            from |S|/n the limit is not the optimum but is pulled along theta - theta^0.
        start: local training begins at the client's "own" w_i as printed, at the "global" theta, or
            at w_i except in the client's first round, where it begins at the "current" theta (as
            Wang's program does).  Aligned clients keep no model and always begin at theta.
        members: the mean runs over "all" clients as printed, or over those "seen" so far.
        increment: what is sent when rho changes.  "exact" keeps the weighted mean above.
            "printed" is (4) of Gong et al., with the rho of the round in both u_i, which leaves an
            offset when rho changes before the duals add up to zero.  "released" is 2 (w_i+ - theta)
            of Gong's program, with any rho, whose limit is pulled towards theta^0 by
            (rho/2) (theta - theta^0).
        absent: what becomes of a client that sits a round out: it is "kept" as it is, as printed,
            or "aligned": it moves along with the participants.
        alignment: sigma, the share of the participants' mean dual step that aligned clients take,
            or "auto".
    """

    paper: ClassVar[str] = "Gong et al., FedADMM, ICDE 2022; Wang et al., FedADMM, CDC 2022"
    accepts_regularizer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        PrintedFedADMM.__post_init__(self)
        for name, allowed in (("step", "tracking"), ("increment", "exact")):
            given = self.step if name == "step" else self.increment
            if self.absent == "aligned" and given != allowed:
                raise ParameterError(
                    f"FedADMM: {name} is {given!r}, but must be {allowed!r} with absent='aligned', "
                    "whose server holds the exact mean of all duals"
                )

    def fitted(self, length: Callable[[], float]) -> Self:
        """With a number for a penalty per work."""
        if not isinstance(self.rho, PerWork):
            return self
        return replace(self, rho=self.rho.fitted(length()))

    def common_penalty(self, round_index: int) -> float:
        """The rho of the round, which absent clients are moved with as well."""
        return at(self.rho, round_index)

    def first_weights(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Every client counts, or none yet."""
        members = params.new_full((1,), 1.0 if self.members == "all" else 0.0)
        return members, members * at(self.rho, 0)

    def weights_of(self, before: Client, after: Client) -> Steps:
        """With members="seen", whether the client joins."""
        return Steps(after.y, None if self.members == "all" else 1 - before.joined)
