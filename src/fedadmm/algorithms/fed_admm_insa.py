"""FedADMM-In and FedADMM-InSa: inexact local solves, and a penalty per client that adapts itself.

Song, Wang, Zuazua: FedADMM-InSa: An Inexact and Self-Adaptive ADMM for Federated Learning,
Neural Networks 2025; slides by Wang, 2024.  Signs follow y_i = -lambda_i.

    minimise sum_i a_i f_i(theta) + g(theta)

    client   w_i+ with ||e(w_i+)|| <= sigma_i ||e(w_i)||,  e the gradient of
             f_i(w) + <y_i, w> + (beta_i/2) ||w - theta||^2
             y_i+ = y_i + beta_i (w_i+ - theta)
             send the increments of  beta_i w_i + y_i  and of  beta_i
    InSa     then, with  p = beta_i ||w_i+ - w_i||  and  d = ||w_i+ - theta||,
             beta_i grows by tau when d > mu p, and shrinks by tau when p > mu d
    server   theta = sum a_i (beta_i w_i + y_i) / sum a_i beta_i, then prox_{g / sum a_i beta_i}

FedADMM-In keeps beta_i; FedADMM-InSa keeps the two residuals of ADMM within a factor mu of each
other.  A new beta_i holds from the client's next round: the upload of this round uses the one the
round was solved with.  The slides' (S3) leaves open which beta_i an absent client counts with,
because everybody takes part there.  Here it is the one of its last solve, so that (w_i, y_i,
beta_i) stay the triple that (S1) and (S2) made.

The authors' program (`-released`) differs in two things:

    server   theta <- (theta_new + memory theta) / (1 + memory),  memory = 0.01
    InSa     an absent client counts with its new beta_i and its old (w_i, y_i): after theta is
             made, both sums take over what changes

The second costs one more vector up.  With everybody in every round it makes no difference, and the
limit is always the same: all w_i are theta there, and the duals add up to zero.  The program also
starts local work at theta and measures its criterion there: `start="global"` and
`InSaCriterion(reference="global")`, for every method of its table.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from fedadmm.core.parts import NotNegative, Positive, part
from fedadmm.core.protocols import (
    Algorithm,
    LocalProblem,
    LocalResult,
    PrimalDual,
    Received,
    Regularizer,
    Theta,
    norm,
)
from fedadmm.core.stopping import InSaCriterion
from fedadmm.core.validation import check


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


class Message(NamedTuple):
    """The increments of beta_i w_i + y_i and of beta_i."""

    numerator: Tensor
    denominator: Tensor


@part("algorithm", "fedadmm-in")
class FedADMMIn(Algorithm[Server, Client, Theta, Message]):
    """FedADMM-In: a fixed penalty and the inexactness criterion as stopping rule.

    Args:
        beta: the penalty every client starts with.
        members: the mean runs over "all" clients, or over those "seen" so far.
    """

    title: ClassVar[str] = "FedADMM-In"
    paper: ClassVar[str] = "Song, Wang, Zuazua, FedADMM-InSa, Neural Networks 2025"
    tolerates_stale: ClassVar[bool] = True  # a reply moves the sums by its own share
    accepts_regularizer: ClassVar[bool] = True

    beta: Positive = 1.0
    members: Literal["all", "seen"] = "all"

    def next_penalty(self, beta: Tensor, move: Tensor, drift: Tensor) -> Tensor:
        """From this round's beta, ||w_i+ - w_i|| and ||w_i+ - theta||, each (1,) or (K, 1)."""
        return beta

    @property
    def prox_step(self) -> float:
        return 1 / self.beta

    def default_stop(self) -> InSaCriterion:
        return InSaCriterion()

    @property
    def increments(self) -> tuple[str, ...]:
        return ("numerator",) if self.members == "all" else ()

    def init_server(self, params: Tensor) -> Server:
        beta = params.new_full((1,), self.beta if self.members == "all" else 0.0)
        return Server(beta * params, beta, params)

    def init_client(self, params: Tensor) -> Client:
        beta = params.new_full((1,), self.beta)
        sent = beta if self.members == "all" else torch.zeros_like(beta)
        return Client(params, torch.zeros_like(params), beta, sent)

    def local_problem(self, cast: Theta, client: Client) -> LocalProblem:
        return LocalProblem(cast.theta, client.y, client.beta, cast.theta)

    def client_update(
        self, cast: Theta, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        w = result.params
        y = client.y + client.beta * (w - cast.theta)
        numerator = client.beta * w + y - (client.sent * client.w + client.y)
        beta = self.next_penalty(client.beta, norm(w - client.w), norm(w - cast.theta))
        return Client(w, y, beta, client.beta), Message(numerator, client.beta - client.sent)

    def server_update(
        self, server: Server, total: Message, received: Received, regularizer: Regularizer
    ) -> Server:
        numerator = server.numerator + total.numerator
        denominator = server.denominator + total.denominator
        theta = regularizer.prox(numerator / denominator, 1 / float(denominator))
        return Server(numerator, denominator, theta)

    def remove_client(self, server: Server, past: Message, regularizer: Regularizer) -> Server:
        """Take a client out of both sums; without anybody left theta stays where it is."""
        numerator = server.numerator - past.numerator
        denominator = (server.denominator - past.denominator).clamp(min=0)
        if float(denominator) <= 1e-6 * self.beta:  # rounding: the last member has left
            return Server(torch.zeros_like(numerator), denominator, server.theta)
        theta = regularizer.prox(numerator / denominator, 1 / float(denominator))
        return Server(numerator, denominator, theta)

    def local_params(self, client: Client) -> Tensor:
        return client.w

    def primal_dual(self, client: Client) -> PrimalDual:
        return PrimalDual(client.w, client.y, client.beta)


@part("algorithm", "fedadmm-insa")
class FedADMMInSa(FedADMMIn):
    """FedADMM-InSa: FedADMM-In whose penalties balance the residuals (mu, tau).

    beta_i stays within [beta_min, beta_max], so that it cannot run away.
    """

    title: ClassVar[str] = "FedADMM-InSa"
    increments = ()

    mu: Annotated[float, Gt(1)] = 5.0
    tau: Annotated[float, Gt(1)] = 2.0
    beta_min: Positive = 1e-4
    beta_max: Positive = 1e4

    def __post_init__(self) -> None:
        check(self, "beta_max", self.beta_max, Annotated[float, Ge(self.beta_min)])
        check(self, "beta", self.beta, Annotated[float, Ge(self.beta_min), Le(self.beta_max)])

    def next_penalty(self, beta: Tensor, move: Tensor, drift: Tensor) -> Tensor:
        p = beta * move
        grown = torch.where(drift > self.mu * p, beta * self.tau, beta)
        balanced = torch.where(p > self.mu * drift, beta / self.tau, grown)
        return balanced.clamp(self.beta_min, self.beta_max)


@part("algorithm", "fedadmm-in-released")
class FedADMMInReleased(FedADMMIn):
    """FedADMM-In whose server mixes theta with its last value (`memory`)."""

    title: ClassVar[str] = "FedADMM-In-released"
    paper: ClassVar[str] = "the program of Song, Wang, Zuazua, FedADMM-InSa, 2025"

    memory: NotNegative = 0.01

    def server_update(
        self, server: Server, total: Any, received: Received, regularizer: Regularizer
    ) -> Server:
        new = super().server_update(server, total, received, regularizer)
        return mixed(new, server, self.memory)


class LongMessage(NamedTuple):
    """The increments of both sums before theta is made, and what the new beta_i adds afterwards."""

    numerator: Tensor
    denominator: Tensor
    next_numerator: Tensor
    next_denominator: Tensor


@part("algorithm", "fedadmm-insa-released")
class FedADMMInSaReleased(FedADMMInSa):
    """FedADMM-InSa with `memory`, whose absent clients count with their new penalty."""

    title: ClassVar[str] = "FedADMM-InSa-released"
    paper: ClassVar[str] = "the program of Song, Wang, Zuazua, FedADMM-InSa, 2025"

    memory: NotNegative = 0.01

    def client_update(self, cast: Theta, client: Client, result: LocalResult) -> tuple[Client, Any]:
        new, sent = super().client_update(cast, client, result)
        change = new.beta - client.beta
        return new._replace(sent=new.beta), LongMessage(*sent, change * new.w, change)

    def server_update(
        self, server: Server, total: Any, received: Received, regularizer: Regularizer
    ) -> Server:
        new = super().server_update(server, total, received, regularizer)
        new = mixed(new, server, self.memory)
        return new._replace(
            numerator=new.numerator + total.next_numerator,
            denominator=new.denominator + total.next_denominator,
        )

    def remove_client(self, server: Server, past: Any, regularizer: Regularizer) -> Server:
        numerator = past.numerator + past.next_numerator
        denominator = past.denominator + past.next_denominator
        return super().remove_client(server, Message(numerator, denominator), regularizer)


def mixed(new: Server, old: Server, memory: float) -> Server:
    """The new state with the theta that the program hands on."""
    return new._replace(theta=(new.theta + memory * old.theta) / (1 + memory))
