"""Scaffnew: a random number of local gradient steps with control variates (ProxSkip).

Mishchenko, Malinovsky, Stich, Richtarik: ProxSkip: Yes! Local Gradient Steps Provably Lead to
Communication Acceleration! Finally!, ICML 2022, Algorithm 2.

    client   h_i = z_i + (p/lr) theta
             w <- K steps with gradients  g(w) - h_i,  started at theta;  K ~ Geometric(p)
             z_i <- h_i - (p/lr) w;   send  (p/lr)(w - theta) - h_i  and  p/lr
    server   theta <- theta + sum a_i ((p/lr)(w_i - theta) - h_i) / sum a_i (p/lr)

K is the same for all clients: after every local step the round ends with probability p, so that the
mean number of steps is 1/p.  K is part of the broadcast and replaces the stopping rule.  The
server's line is the paper's mean of w_i - (lr/p) h_i; z_i is the part of the paper's
h_i + (p/lr)(theta - w_i) that a client can compute before it receives the next theta.  With one
learning rate for all clients the h_i add up to zero; with a rate per client, which the paper does
not treat, the sums above still keep sum a_i h_i = 0.

All clients participate in every round.  On L-smooth, mu-strongly convex f_i with full gradients,
lr = 1/L and p = sqrt(mu/L), the paper's theorem needs O(sqrt(L/mu) log(1/eps)) rounds; that the
number of rounds grows like sqrt(L/mu) is tested.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedadmm.core.contracts import (
    Algorithm,
    Cohort,
    LocalNeeds,
    LocalProblem,
    LocalResult,
    Regularizer,
    Requirements,
    Round,
    Theta,
)
from fedadmm.core.parts import Share, part
from fedadmm.core.rng import uniform


class Client(NamedTuple):
    """The part of the control variate that does not depend on the next theta, and p/lr."""

    z: Tensor
    ratio: Tensor


class Broadcast(NamedTuple):
    """The global model, and the number of local steps of the round."""

    theta: Tensor
    steps: int


class Message(NamedTuple):
    """(p/lr)(w - theta) - h_i, and p/lr."""

    move: Tensor
    ratio: Tensor


@part("algorithm", "scaffnew")
class Scaffnew(Algorithm[Theta, Client, Broadcast, Message]):
    """Scaffnew: ProxSkip for federated learning (Mishchenko et al., 2022).

        w_i <- K steps with gradients g(w) - h_i, started at theta, with K ~ Geometric(p)
        theta <- mean of w_i - (lr/p) h_i;   h_i <- h_i + (p/lr) (theta - w_i)

    Args:
        p: Probability that a local step is the last one of its round.  Default 0.2, which is 5
            steps on average.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.Scaffnew(), problem, 50, solver=fa.GradientDescent(0.1))
        >>> round(result.params.item(), 2)
        2.0
    """

    paper: ClassVar[str] = "Mishchenko et al., ProxSkip, ICML 2022"
    requirements: ClassVar[Requirements] = Requirements(
        local=LocalNeeds(step_sum=True), full_participation=True
    )

    p: Share = 0.2

    def init_client(self, params: Tensor) -> Client:
        """Return the state with h_i = 0 for any first theta."""
        return Client(torch.zeros_like(params), params.new_zeros(1))

    def broadcast(self, server: Theta, round: Round) -> Broadcast:
        """Return theta and the number of local steps, which is geometric with mean 1/p."""
        steps = 1
        if self.p < 1:
            steps += math.floor(math.log1p(-uniform(round.key)) / math.log1p(-self.p))
        return Broadcast(server.theta, steps)

    def _control(self, broadcast: Broadcast, client: Client) -> Tensor:
        return client.z + client.ratio * broadcast.theta

    def local_problem(self, broadcast: Broadcast, client: Client) -> LocalProblem:
        return LocalProblem(
            broadcast.theta, -self._control(broadcast, client), steps=broadcast.steps
        )

    def client_update(
        self, broadcast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        assert result.step_sum is not None
        ratio = self.p * broadcast.steps / result.step_sum
        h = self._control(broadcast, client)
        sent = Message(ratio * (result.params - broadcast.theta) - h, ratio)
        return Client(h - ratio * result.params, ratio), sent

    def server_update(
        self, server: Theta, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Theta:
        return Theta(server.theta + total.move / total.ratio)
