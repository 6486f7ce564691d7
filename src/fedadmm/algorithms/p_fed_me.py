"""pFedMe: a personal model for every client, near a global one that is best for all of them.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, with one
local round.

    minimise sum_i a_i F_i(theta),   F_i(theta) = min over v of f_i(v) + (rho/2) ||v - theta||^2

    client   v_i ~ argmin f_i(v) + (rho/2) ||v - theta||^2, started at theta
             keep v_i, its own model;   send v_i - theta
    server   theta <- theta + step times the weighted mean over S of (v_i - theta)

rho (theta - v_i) is the gradient of the Moreau envelope F_i: the server makes a gradient step of
length step / rho on their mean.  So the local problem is FedProx's, and what differs is the aim:
the v_i are the result, and theta is where they meet.  The paper's lambda is rho, and its step for
one local round is beta eta lambda; more rounds repeat the client's step with other mini-batches.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from torch import Tensor

from fedadmm.algorithms.fed_avg import Delta
from fedadmm.core.capabilities import LocalModels
from fedadmm.core.contracts import (
    Algorithm,
    Cohort,
    LocalProblem,
    LocalResult,
    Regularizer,
    Theta,
)
from fedadmm.core.parts import Positive, part


class Client(NamedTuple):
    """The client's personal model."""

    v: Tensor


@part("algorithm", "pfedme")
class PFedMe(LocalModels[Client], Algorithm[Theta, Client, Theta, Delta]):
    """pFedMe: personal models within a quadratic penalty of the global one.

    Args:
        rho: how strongly a personal model is held near the global one.
        step: the server's step, in mean moves.
    """

    title: ClassVar[str] = "pFedMe"
    paper: ClassVar[str] = "Dinh, Tran, Nguyen, Moreau Envelopes, NeurIPS 2020"
    bias: ClassVar[str | None] = "theta minimises the mean of the clients' Moreau envelopes, not f"
    deltas: ClassVar[tuple[str, ...]] = ("delta",)

    rho: Positive = 15.0
    step: Positive = 1.0

    def init_client(self, params: Tensor) -> Client:
        return Client(params)

    def local_problem(self, broadcast: Theta, client: Client) -> LocalProblem:
        return LocalProblem(start=broadcast.theta, weight=self.rho, centre=broadcast.theta)

    def client_update(
        self, broadcast: Theta, client: Client, result: LocalResult
    ) -> tuple[Client, Delta]:
        return Client(result.params), Delta(result.params - broadcast.theta)

    def server_update(
        self, server: Theta, total: Delta, cohort: Cohort, regularizer: Regularizer
    ) -> Theta:
        return Theta(server.theta + self.step * total.delta / cohort.weight)

    def local_params(self, client: Client) -> Tensor:
        return client.v
