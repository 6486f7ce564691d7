"""FedDR-II: FedDR in the variables of FedADMM.

Wang, Marella, Anderson: FedADMM: A federated primal-dual algorithm allowing partial participation,
CDC 2022, section IV.B, (11): w_i = x_i - v_i, alpha = 1.

    client   x_i+ ~ prox_{eta f_i}(xbar - w_i)
             w_i+ = w_i + x_i+ - xbar
             send the increment of  xhat_i = x_i + w_i
    server   as FedDR's
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedadmm.algorithms.fed_dr import DouglasRachford, Message
from fedadmm.core.contracts import LocalProblem, LocalResult, PrimalDual, Theta
from fedadmm.core.parts import Positive, part


class Client(NamedTuple):
    """w_i = x_i - v_i and the local model x_i."""

    w: Tensor
    x: Tensor


@part("algorithm", "feddr-ii")
class FedDRII(DouglasRachford[Client]):
    """FedDR-II: FedDR in the variables of FedADMM (Wang et al., 2022, section IV.B).

        x_i ~ prox_{eta f_i}(xbar - w_i);   w_i <- w_i + x_i - xbar
        xtilde = mean of x_i + w_i;         xbar = prox_{eta g}(xtilde)

    Args:
        eta: Step size of the proximal operators; FedADMM's penalty is 1 / eta.  Default 100.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedDRII(eta=1.0), problem, 50, solver=fa.ExactSolver())
        >>> round(result.params.item(), 2)
        2.0
    """

    title: ClassVar[str] = "FedDR-II"
    paper: ClassVar[str] = "Wang et al., FedADMM, CDC 2022, section IV.B"

    eta: Positive = 100.0

    def init_client(self, params: Tensor) -> Client:
        return Client(torch.zeros_like(params), params)

    def local_problem(self, broadcast: Theta, client: Client) -> LocalProblem:
        return LocalProblem(broadcast.theta, None, 1 / self.prox_step, broadcast.theta - client.w)

    def client_update(
        self, broadcast: Theta, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        new = Client(client.w + result.params - broadcast.theta, result.params)
        return new, Message((new.x + new.w) - (client.x + client.w))

    def local_params(self, client: Client) -> Tensor:
        return client.x

    def primal_dual(self, client: Client) -> PrimalDual:
        return PrimalDual(client.x, client.w / self.prox_step, 1 / self.prox_step)
