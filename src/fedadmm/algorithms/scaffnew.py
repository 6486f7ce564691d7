"""Scaffnew: local gradient steps that a shared coin ends, with control variates that learn.

Mishchenko, Malinovsky, Stich, Richtarik: ProxSkip: Yes! Local Gradient Steps Provably Lead to
Communication Acceleration! Finally!, ICML 2022, Algorithm 2.

    client   h_i = z_i + (p/lr) theta
             w <- as many steps with gradients  g(w) - h_i  as the coin allows, started at theta
             z_i <- h_i - (p/lr) w;   send  (p/lr)(w - theta) - h_i  and  p/lr
    server   theta <- theta + sum a_i ((p/lr)(w_i - theta) - h_i) / sum a_i (p/lr)

The coin is the same for all clients: after every local step the round ends with probability p, so
that a round has 1/p steps in the mean.  It is part of the broadcast, and the stopping rule is not
asked.  The server's line is the paper's mean of w_i - (lr/p) h_i; z_i means the paper's
h_i + (p/lr)(theta - w_i), which a client can only form when it knows the next theta.  With one
learning rate for all clients the h_i add up to zero; with a rate per client the sums above keep
sum a_i h_i = 0 too, which the paper does not treat.

All clients take part in every round.  On L-smooth, mu-strongly convex f_i with full gradients,
lr = 1/L and p = sqrt(mu/L), the paper's theorem needs O(sqrt(L/mu) log(1/eps)) rounds; that the
rounds grow like sqrt(L/mu) is a test.
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
    """The control variate, as far as it is known before the next theta, and p/lr."""

    z: Tensor
    ratio: Tensor


class Broadcast(NamedTuple):
    """The global model, and how many steps the coin allows."""

    theta: Tensor
    steps: int


class Message(NamedTuple):
    """(p/lr)(w - theta) - h_i, and p/lr."""

    move: Tensor
    ratio: Tensor


@part("algorithm", "scaffnew")
class Scaffnew(Algorithm[Theta, Client, Broadcast, Message]):
    """Scaffnew, which is ProxSkip for federated learning.

    Args:
        p: the probability with which a local step is the round's last.
    """

    paper: ClassVar[str] = "Mishchenko et al., ProxSkip, ICML 2022"
    requirements: ClassVar[Requirements] = Requirements(
        local=LocalNeeds(step_sum=True), full_participation=True
    )

    p: Share = 0.2

    def init_client(self, params: Tensor) -> Client:
        """h_i = 0, whatever theta comes first."""
        return Client(torch.zeros_like(params), params.new_zeros(1))

    def broadcast(self, server: Theta, round: Round) -> Broadcast:
        """Theta, and the coin's tosses until it ends the round."""
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
