"""FedADMM-In: FedADMM with inexact local solves and one penalty per client.

Song, Wang, Zuazua: FedADMM-InSa: An Inexact and Self-Adaptive ADMM for Federated Learning,
Neural Networks 2025; slides by Wang, 2024.  Signs follow y_i = -lambda_i.

    minimise sum_i a_i f_i(theta) + g(theta)

    client   w_i+ with ||e(w_i+)|| <= sigma_i ||e(w_i)||,  e the gradient of
             f_i(w) + <y_i, w> + (beta_i/2) ||w - theta||^2
             y_i+ = y_i + beta_i (w_i+ - theta)
             send the increments of  beta_i w_i + y_i  and of  beta_i
    server   theta = sum a_i (beta_i w_i + y_i) / sum a_i beta_i, then prox_{g / sum a_i beta_i}

beta_i is constant; FedADMM-InSa adapts it.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedadmm.core.capabilities import ClientRemoval, PrimalDualStates, ProximalServer
from fedadmm.core.contracts import (
    Algorithm,
    Cohort,
    LocalProblem,
    LocalResult,
    PrimalDual,
    Regularizer,
    Requirements,
    Theta,
    norm,
)
from fedadmm.core.parts import Positive, part
from fedadmm.core.stopping import InSaCriterion


class Server(NamedTuple):
    """sum a_i (beta_i w_i + y_i), sum a_i beta_i, and theta."""

    numerator: Tensor
    denominator: Tensor
    theta: Tensor


class Client(NamedTuple):
    """Primal, dual, the penalty of the next round, and the one in the server's sums."""

    w: Tensor
    y: Tensor
    beta: Tensor
    sent: Tensor


class Message(NamedTuple):
    """The increments of beta_i w_i + y_i and of beta_i."""

    numerator: Tensor
    denominator: Tensor


@part("algorithm", "fedadmm-in")
class FedADMMIn(
    PrimalDualStates[Client],
    ClientRemoval[Server, Message],
    ProximalServer,
    Algorithm[Server, Client, Theta, Message],
):
    """FedADMM-In: FedADMM whose inexactness criterion ends the local solves (Song et al., 2025).

        w_i ~ argmin f_i(w) + <y_i, w> + (beta_i/2) ||w - theta||^2, until `InSaCriterion` holds
        y_i <- y_i + beta_i (w_i - theta);   theta = sum a_i (beta_i w_i + y_i) / sum a_i beta_i

    Args:
        beta: Penalty of every client.  Default 1.
        members: Clients that the mean runs over: "all", or those "seen" so far.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedADMMIn(), problem, 50, solver=fa.GradientDescent(0.2))
        >>> round(result.params.item(), 2)
        2.0
    """

    title: ClassVar[str] = "FedADMM-In"
    paper: ClassVar[str] = "Song, Wang, Zuazua, FedADMM-InSa, Neural Networks 2025"
    requirements: ClassVar[Requirements] = Requirements(
        regularizer=True,
        stale_updates=True,  # an update changes only the client's own terms of the sums
        default_stop=InSaCriterion(),
    )

    beta: Positive = 1.0
    members: Literal["all", "seen"] = "all"

    def next_penalty(self, beta: Tensor, move: Tensor, drift: Tensor) -> Tensor:
        """Return beta_i for the client's next round.

        Args:
            beta: beta_i of this round; all arguments have shape (1,) or (K, 1).
            move: ||w_i+ - w_i||.
            drift: ||w_i+ - theta||.
        """
        return beta

    @property
    def prox_step(self) -> float:
        return 1 / self.beta

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

    def local_problem(self, broadcast: Theta, client: Client) -> LocalProblem:
        return LocalProblem(broadcast.theta, client.y, client.beta, broadcast.theta)

    def client_update(
        self, broadcast: Theta, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        w = result.params
        y = client.y + client.beta * (w - broadcast.theta)
        numerator = client.beta * w + y - (client.sent * client.w + client.y)
        beta = self.next_penalty(client.beta, norm(w - client.w), norm(w - broadcast.theta))
        return Client(w, y, beta, client.beta), Message(numerator, client.beta - client.sent)

    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        numerator = server.numerator + total.numerator
        denominator = server.denominator + total.denominator
        theta = regularizer.prox(numerator / denominator, 1 / float(denominator))
        return Server(numerator, denominator, theta)

    def remove_client(self, server: Server, past: Message, regularizer: Regularizer) -> Server:
        """Remove a client from both sums; if no member is left, theta does not change."""
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
