"""pFedMe: personalised models from the Moreau envelopes of the clients' objectives.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, with one
local round.

    minimise sum_i a_i F_i(theta),   F_i(theta) = min over v of f_i(v) + (rho/2) ||v - theta||^2

    client   v_i ~ argmin f_i(v) + (rho/2) ||v - theta||^2, started at theta
             keep v_i, the personalised model;   send v_i - theta
    server   theta <- theta + step times the weighted mean over S of (v_i - theta)

rho (theta - v_i) is the gradient of the Moreau envelope F_i: the server makes a gradient step of
length step / rho on their mean.  The recursion is FedProx's; the difference is that the v_i are the
result.  The paper's lambda is rho, and its step for one local round is beta eta lambda; more rounds
repeat the client's step with other mini-batches.
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
    """The client's personalised model."""

    v: Tensor


@part("algorithm", "pfedme")
class PFedMe(LocalModels[Client], Algorithm[Theta, Client, Theta, Delta]):
    """pFedMe: personalised models near a global one (Dinh et al., 2020).

        v_i ~ argmin f_i(v) + (rho/2) ||v - theta||^2
        theta <- theta + step * weighted mean over S of (v_i - theta)

    `Result.personal(i)` is v_i.

    Args:
        rho: Weight of the quadratic term between v_i and theta (the paper's lambda).  Default 15.
        step: Server step as a multiple of the mean change.  Default 1.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> result = fa.simulate(fa.PFedMe(rho=1.0), problem, 50, solver=fa.ExactSolver())
        >>> [round(result.personal(client).item(), 2) for client in range(3)]  # near 6, 3 and 0
        [4.3, 2.87, 0.65]
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
