"""Alignment: absent clients move along with the participants, which cures the dual drift.

A client that is absent for long keeps an old dual, and the server's mean an old w_i + y_i / rho.
Aligned, an absent client j does in every round what the participants did on average: its model
becomes theirs, and its dual takes sigma times their dual step (a *virtual* step).

    client   w_i+ ~ argmin f_i(w) + <y_i, w> + (rho/2) ||w - theta||^2, started at theta
             y_i+ = y_i + rho (w_i+ - theta);   send  s_i = rho (w_i+ - theta)
    server   s = mean over S of s_i;   m = theta + s / rho, the mean of their models
             y_j <- y_j + sigma s  for all j not in S, whom nobody tells
             h <- h + (p + sigma (1 - p)) s,  p the weight of S: h is the mean of all duals
             theta = prox_{g/rho}(m + h / rho)

sigma = 1 is A-FedPD (Sun, Shen, Tao: A-FedPD, NeurIPS 2024), sigma = 0 is FedDyn, and with full
participation every sigma is the printed method.  "auto" is min(1, |S|/10) times the share of the
clients seen so far: while most duals are still zero, h is momentum without damping.  For every
sigma the only point of rest is the optimum: s = 0 there, so that y_i = -grad f_i(theta) and
h = -grad f(theta) lies in the subdifferential of g.

A client that comes back is sent the sum of the virtual steps that it missed (`fedadmm.core.missed`)
and is then where the server has it.  So the upload is one vector as FedAvg's, and the download is
theta and one more.  With penalties of their own, participants count with them: m is weighted by
beta_i, and theta = m + h / (sum over all of a_i beta_i).
"""

# The methods below stand before those of a printed recursion, never before the abstract ones.
# mypy: disable-error-code="safe-super"

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from annotated_types import Ge, Le
from torch import Tensor

from fedadmm.core.errors import ParameterError
from fedadmm.core.protocols import (
    AnyAlgorithm,
    LocalProblem,
    LocalResult,
    PrimalDual,
    Received,
    Regularizer,
)

Sigma = Annotated[float, Ge(0), Le(1)] | Literal["auto"]
"""The share of the participants' dual step that absent clients take."""
FULL_COHORT = 10
"""With so many replies their mean is good enough to move everybody else by all of it."""


class Server(NamedTuple):
    """theta, m, h = sum a_i y_i over the members, the sum of the virtual steps, and weights.

    `members` is the sum of the a_i of the clients that count, `penalty` that of a_i beta_i;
    `unseen` is the share of clients that has not taken part yet, as far as chance tells: the
    product of 1 - p over all rounds.
    """

    theta: Tensor
    mean: Tensor
    h: Tensor
    virtual: Tensor
    members: Tensor
    penalty: Tensor
    unseen: Tensor


class Steps(NamedTuple):
    """The dual step of a client, and its weights where the server cannot know them.

    With members="seen" 1 from a client that joins; with penalties of their own that of this round,
    and by how much the one that the server counts has changed: before theta is made, and after.
    """

    step: Tensor
    joined: Tensor | None = None
    penalty: Tensor | None = None
    counted: Tensor | None = None
    next: Tensor | None = None


class Aligning(AnyAlgorithm):
    """What alignment changes in a method; it stands before the printed recursion among the bases.

    Nothing changes while `sigma` is None.
    """

    @property
    def sigma(self) -> float | Literal["auto"] | None:
        """The share of the mean dual step that absent clients take; None keeps them as they are."""
        return None

    @abstractmethod
    def common_penalty(self, round_index: int) -> float | None:
        """The penalty of all clients in a round; None where they have their own and send them."""

    @abstractmethod
    def weights_of(self, before: Any, after: Any) -> Steps:
        """What goes up beside the dual step, in a message whose step is to be filled in."""

    def first_weights(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """`members` and `penalty` before the first round: everybody counts."""
        return params.new_ones(1), params.new_full((1,), 1 / self.prox_step)

    @property
    def increments(self) -> tuple[str, ...]:
        """As printed; aligned, the steps of the dual."""
        return super().increments if self.sigma is None else ("step",)

    @property
    def tolerates_stale(self) -> bool:
        """As printed; aligned, every reply moves theta and all duals in full."""
        return self.sigma is None and super().tolerates_stale

    def init_server(self, params: Tensor) -> Any:
        """theta^0 = m, and all duals zero."""
        if self.sigma is None:
            return super().init_server(params)
        zero = torch.zeros_like(params)
        return Server(params, params, zero, zero, *self.first_weights(params), params.new_ones(1))

    def local_problem(self, cast: Any, client: Any) -> LocalProblem:
        """As printed, but started at theta: an aligned client has no model of its own."""
        problem = super().local_problem(cast, client)
        return problem if self.sigma is None else problem._replace(start=cast.theta)

    def client_update(self, cast: Any, client: Any, result: LocalResult) -> tuple[Any, Any]:
        """Move as printed and send the dual step."""
        after, printed = super().client_update(cast, client, result)
        if self.sigma is None:
            return after, printed
        weight = super().local_problem(cast, client).weight
        step = weight * (result.params - cast.theta)
        return after, self.weights_of(client, after)._replace(step=step)

    def server_update(
        self, server: Any, total: Any, received: Received, regularizer: Regularizer
    ) -> Any:
        """h follows all duals, seen and unseen; theta minimises the augmented Lagrangian."""
        if self.sigma is None:
            return super().server_update(server, total, received, regularizer)
        members, h = server.members, server.h
        if total.joined is not None:  # who joins brings the virtual steps of its absence along
            members, h = members + total.joined, h + total.joined * server.virtual
        solved, counted = self._penalties(server, total, received, members)
        share = received.weight
        sigma = self._sigma(server, received)
        h = h + (1 + sigma * (members / share - 1)) * total.step
        mean = server.theta + total.step / solved
        theta = regularizer.prox(mean + h / counted, float(members / counted))
        if total.next is not None:
            counted = counted + total.next
        virtual = server.virtual + sigma / share * total.step
        unseen = server.unseen * max(0.0, 1 - share)
        return Server(theta, mean, h, virtual, members, counted, unseen)

    def _penalties(
        self, server: Server, total: Steps, received: Received, members: Tensor
    ) -> tuple[Tensor | float, Tensor]:
        """sum a_i beta_i over the replies, and over everybody who counts."""
        common = self.common_penalty(received.round_index)
        if common is not None:
            return common * received.weight, common * members
        assert total.penalty is not None
        assert total.counted is not None
        return total.penalty, server.penalty + total.counted

    def _sigma(self, server: Server, received: Received) -> float | Tensor:
        """sigma; "auto" trusts the mean of many replies, and only once most clients have a dual."""
        sigma = self.sigma
        if isinstance(sigma, float | int):
            return sigma
        return min(1.0, received.replies / FULL_COHORT) * (1 - server.unseen)

    def virtual_steps(self, server: Any) -> Tensor | None:
        """The sum of sigma s over all rounds."""
        virtual: Tensor | None = None if self.sigma is None else server.virtual
        return virtual

    def returned(self, client: Any, missed: Tensor) -> Any:
        """The dual with the virtual steps."""
        return client._replace(y=client.y + missed)

    def contribution(self, message: Any, virtual: Tensor) -> Any:
        """The client's own dual step instead of the virtual one."""
        if self.sigma is None:
            return super().contribution(message, virtual)
        return message._replace(step=message.step - virtual)

    def without(self, server: Any, past: Any, regularizer: Regularizer) -> Any:
        """Take a client's own steps out of h, and itself where only members count."""
        if self.sigma is None:
            return super().without(server, past, regularizer)
        members, h, penalty = server.members, server.h - past.step, server.penalty
        if past.joined is not None:
            members, h = (members - past.joined).clamp(min=0), h - past.joined * server.virtual
        for change in (past.counted, past.next):
            penalty = penalty if change is None else penalty - change
        return server._replace(h=h, members=members, penalty=penalty)

    def global_params(self, server: Any) -> Tensor:
        """theta."""
        theta: Tensor = super().global_params(server) if self.sigma is None else server.theta
        return theta

    def participants_mean(self, server: Any) -> Tensor | None:
        """The mean of the participants' models, each counted with its penalty."""
        return super().participants_mean(server) if self.sigma is None else server.mean

    def local_params(self, client: Any) -> Tensor | None:
        """As printed; none when aligned, where it is the participants' mean."""
        return super().local_params(client) if self.sigma is None else None

    def primal_dual(self, client: Any) -> PrimalDual | None:
        """As printed; none when aligned, where only the server knows what they have become."""
        return super().primal_dual(client) if self.sigma is None else None

    def tracked_mean(self, server: Any) -> Tensor | None:
        """As printed; none when aligned, where no client holds its own part of it."""
        return super().tracked_mean(server) if self.sigma is None else None


@dataclass(frozen=True)
class Alignable(Aligning):
    """The two options of a method that is printed without alignment."""

    absent: Literal["kept", "aligned"] = "kept"
    alignment: Sigma = "auto"

    def __post_init__(self) -> None:
        if self.absent == "kept" and self.alignment != "auto":
            raise ParameterError(
                f"{type(self).__name__}: alignment is {self.alignment!r}, but absent is 'kept', "
                "which has no use for it; use absent='aligned'"
            )

    @property
    def sigma(self) -> float | Literal["auto"] | None:
        """`alignment`, when absent clients are aligned."""
        return self.alignment if self.absent == "aligned" else None
