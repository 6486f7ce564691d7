"""FedADMM-In and FedADMM-InSa: inexact local solves, self-adaptive penalties.

Song, Wang, Zuazua: FedADMM-InSa: An Inexact and Self-Adaptive ADMM for Federated Learning,
Neural Networks 2025; slides by Wang, 2024.  Signs follow y_i = -lambda_i.

    client   w_i+ with ||e(w_i+)|| <= sigma_i ||e(w_i)||,  e the gradient of
             f_i(w) + <y_i, w> + (beta_i/2) ||w - theta||^2
             y_i+ = y_i + beta_i (w_i+ - theta)
             send the increments of  beta_i w_i + y_i  and of  beta_i
    server   theta = sum a_i (beta_i w_i + y_i) / sum a_i beta_i, then prox_{g / sum a_i beta_i}

In keeps beta_i; InSa balances the residuals.  A new beta_i holds from the client's next round:
the upload of this round uses the one the round was solved with.

The slides' (S3) leaves open which beta_i an absent client counts with, because everybody takes part
there.  Here it is the one of its last solve, so that (w_i, y_i, beta_i) stay the triple that (S1)
and (S2) made; server_beta="next" counts the new one at once, as the authors' program does, for
one more vector up.  The limit is the same, since there all w_i are theta and the duals add up to 0.

With absent="aligned" clients that sit a round out move along: see `fedadmm.algorithms.alignment`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Gt
from torch import Tensor

from fedadmm.algorithms.alignment import Alignable, Steps
from fedadmm.core.errors import check_positive, check_range
from fedadmm.core.parts import NotNegative, Positive, part
from fedadmm.core.protocols import (
    Algorithm,
    LocalProblem,
    LocalResult,
    PrimalDual,
    Received,
    Regularizer,
    Round,
    norm,
)
from fedadmm.core.stopping import InSaCriterion

_NOBODY = 1e-6
"""A share of the penalties this small is rounding: the last member has left."""


@dataclass(frozen=True)
class FixedPenalty:
    """beta_i stays what it is."""

    def next(self, beta: Tensor, move: Tensor, drift: Tensor) -> Tensor:
        """From this round's beta, ||w_new - w_old|| and ||w_new - theta||, each (1,) or (K, 1)."""
        return beta


@dataclass(frozen=True)
class ResidualBalancing:
    """Keep the two residuals of ADMM within a factor mu of each other.

    With p = beta ||w_new - w_old|| and d = ||w_new - theta||: beta grows by tau when d > mu p,
    shrinks by tau when p > mu d, and stays within [low, high] so that it cannot run away.
    """

    mu: float = 5.0
    tau: float = 2.0
    low: float = 1e-4
    high: float = 1e4

    def __post_init__(self) -> None:
        check_range(self, "mu", self.mu, 1.0, open_low=True)
        check_range(self, "tau", self.tau, 1.0, open_low=True)
        check_positive(self, "low", self.low)
        check_range(self, "high", self.high, self.low)

    def next(self, beta: Tensor, move: Tensor, drift: Tensor) -> Tensor:
        """The balanced penalty."""
        p = beta * move
        grown = torch.where(drift > self.mu * p, beta * self.tau, beta)
        balanced = torch.where(p > self.mu * drift, beta / self.tau, grown)
        return balanced.clamp(self.low, self.high)


class Server(NamedTuple):
    """sum a_i (beta_i w_i + y_i), sum a_i beta_i, and theta."""

    numerator: Tensor
    denominator: Tensor
    theta: Tensor


class Client(NamedTuple):
    """Primal, dual, the penalty of the next round, and the one the server counts."""

    w: Tensor
    y: Tensor
    beta: Tensor
    sent: Tensor


class Broadcast(NamedTuple):
    """The global model."""

    theta: Tensor


class Message(NamedTuple):
    """The increments of beta_i w_i + y_i and of beta_i."""

    numerator: Tensor
    denominator: Tensor
    next_numerator: Tensor | None = None
    """With server_beta="next": what the new penalty adds to both once theta has been made."""
    next_denominator: Tensor | None = None


@dataclass(frozen=True)
class PrintedFedADMMIn(Algorithm[Server, Client, Broadcast, Message]):
    """The recursion, where absent clients keep what they have."""

    beta: Positive = 1.0
    start: Literal["own", "global"] = "own"
    members: Literal["all", "seen"] = "all"
    memory: NotNegative = 0.0
    server_beta: Literal["solved", "next"] = "solved"

    @property
    def penalty(self) -> FixedPenalty | ResidualBalancing:
        """How beta_i moves: not at all."""
        return FixedPenalty()

    @property
    def prox_step(self) -> float:
        """1 / beta at the start."""
        return 1 / self.beta

    @property
    def tolerates_stale(self) -> bool:
        """A reply moves the mean by its own share."""
        return True

    def default_stop(self) -> InSaCriterion:
        """The inexactness criterion of the paper."""
        return InSaCriterion()

    @property
    def increments(self) -> tuple[str, ...]:
        """Those of beta_i w_i + y_i; a beta_i that moves changes what a whole w_i counts."""
        fixed = isinstance(self.penalty, FixedPenalty)
        return ("numerator",) if fixed and self.members == "all" else ()

    def init_server(self, params: Tensor) -> Server:
        """theta^0; every client counts with (beta theta^0, beta), or none yet."""
        beta = params.new_full((1,), self.beta if self.members == "all" else 0.0)
        return Server(beta * params, beta, params)

    def init_client(self, params: Tensor) -> Client:
        """w_i = theta^0, y_i = 0, beta_i = beta."""
        beta = params.new_full((1,), self.beta)
        sent = beta if self.members == "all" else torch.zeros_like(beta)
        return Client(params, torch.zeros_like(params), beta, sent)

    def broadcast(self, server: Server, turn: Round) -> Broadcast:
        """theta."""
        return Broadcast(server.theta)

    def local_problem(self, cast: Broadcast, client: Client) -> LocalProblem:
        """min f_i(w) + <y_i, w> + (beta_i/2) ||w - theta||^2."""
        start = client.w if self.start == "own" else cast.theta
        return LocalProblem(start, client.y, client.beta, cast.theta)

    def client_update(
        self, cast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        """Move the dual, send both increments, choose the next penalty."""
        w = result.params
        y = client.y + client.beta * (w - cast.theta)
        numerator = client.beta * w + y - (client.sent * client.w + client.y)
        beta = self.penalty.next(client.beta, norm(w - client.w), norm(w - cast.theta))
        message = Message(numerator, client.beta - client.sent)
        if self.server_beta == "solved":
            return Client(w, y, beta, client.beta), message
        change = beta - client.beta
        return Client(w, y, beta, beta), message._replace(
            next_numerator=change * w, next_denominator=change
        )

    def server_update(
        self, server: Server, total: Message, received: Received, regularizer: Regularizer
    ) -> Server:
        """Fold both increments; theta minimises the augmented Lagrangian."""
        numerator = server.numerator + total.numerator
        denominator = server.denominator + total.denominator
        fresh = regularizer.prox(numerator / denominator, 1 / float(denominator))
        theta = (fresh + self.memory * server.theta) / (1 + self.memory)
        if total.next_numerator is not None and total.next_denominator is not None:
            numerator = numerator + total.next_numerator
            denominator = denominator + total.next_denominator
        return Server(numerator, denominator, theta)

    def without(self, server: Server, past: Message, regularizer: Regularizer) -> Server:
        """Take a client out of both sums; without anybody left theta stays where it is."""
        numerator, denominator = past.numerator, past.denominator
        if past.next_numerator is not None and past.next_denominator is not None:
            numerator = numerator + past.next_numerator
            denominator = denominator + past.next_denominator
        numerator = server.numerator - numerator
        denominator = (server.denominator - denominator).clamp(min=0)
        if float(denominator) <= _NOBODY * self.beta:
            return Server(torch.zeros_like(numerator), denominator, server.theta)
        theta = regularizer.prox(numerator / denominator, 1 / float(denominator))
        return Server(numerator, denominator, theta)

    def global_params(self, server: Server) -> Tensor:
        """theta."""
        return server.theta

    def local_params(self, client: Client) -> Tensor | None:
        """w_i."""
        return client.w

    def primal_dual(self, client: Client) -> PrimalDual | None:
        """w_i, y_i and beta_i."""
        return PrimalDual(client.w, client.y, client.beta)


@part("algorithm", "fedadmm-in")
class FedADMMIn(Alignable, PrintedFedADMMIn):
    """FedADMM-In: a fixed penalty and the inexactness criterion as stopping rule.

    Args:
        beta: the penalty every client starts with.
        start: local training begins at the client's own w_i or at the "global" theta.  Aligned
            clients always begin at theta.
        members: the mean runs over "all" clients, or over those "seen" so far.
        server_beta: the penalty that an absent client counts with: that of its last solve
            ("solved"), or the one it will solve with ("next", as the authors' program).
        memory: delta of the released program, theta <- (theta_new + delta theta)/(1 + delta).
        absent: what becomes of a client that sits a round out: it is "kept" as it is, or "aligned":
            it moves along with the participants.
        alignment: sigma, the share of the participants' mean dual step that aligned clients take,
            or "auto".
    """

    title: ClassVar[str] = "FedADMM-In"
    paper: ClassVar[str] = "Song, Wang, Zuazua, FedADMM-InSa, Neural Networks 2025"
    accepts_regularizer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()

    def common_penalty(self, round_index: int) -> None:
        """Every client has its own."""

    def first_weights(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Every client counts with beta, or none yet."""
        members = params.new_full((1,), 1.0 if self.members == "all" else 0.0)
        return members, members * self.beta

    def weights_of(self, before: Client, after: Client) -> Steps:
        """The penalty of this round, and how the one that the server counts has changed."""
        joined = None if self.members == "all" else (before.sent == 0).to(before.sent.dtype)
        following = after.sent - before.beta if self.server_beta == "next" else None
        return Steps(after.y, joined, before.beta, before.beta - before.sent, following)

    def server_update(
        self, server: Any, total: Any, received: Received, regularizer: Regularizer
    ) -> Any:
        """As usual; an aligned theta has the memory, too."""
        new = super().server_update(server, total, received, regularizer)
        if self.sigma is None or not self.memory:
            return new
        theta = (new.theta + self.memory * server.theta) / (1 + self.memory)
        return new._replace(theta=theta)


@part("algorithm", "fedadmm-insa")
class FedADMMInSa(FedADMMIn):
    """FedADMM-InSa: FedADMM-In whose penalties balance the residuals (mu, tau).

    beta_i stays within [beta_min, beta_max].
    """

    title: ClassVar[str] = "FedADMM-InSa"
    mu: Annotated[float, Gt(1)] = 5.0
    tau: Annotated[float, Gt(1)] = 2.0
    beta_min: Positive = 1e-4
    beta_max: Positive = 1e4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "beta_max", self.beta_max, self.beta_min)
        check_range(self, "beta", self.beta, self.beta_min, self.beta_max)

    @property
    def penalty(self) -> FixedPenalty | ResidualBalancing:
        """Residual balancing."""
        return ResidualBalancing(self.mu, self.tau, self.beta_min, self.beta_max)
