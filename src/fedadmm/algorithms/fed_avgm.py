"""FedAvgM: FedAvg with momentum on the server, as printed or in Nesterov's form.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019; FedOpt with the server optimiser SGD in Reddi et al., ICLR 2021.

    client   as FedAvg: send w - theta
    server   delta = weighted mean over S of (w - theta)
             v <- momentum v + delta
             theta <- theta + lr v                        (nesterov: lr (delta + momentum v))

With momentum 0 and lr 1 it is FedAvg.  Both forms are tested to equal `torch.optim.SGD` with the
gradient -delta.  The paper's experiments were not reproduced.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedadmm.algorithms.fed_opt import FedOpt
from fedadmm.core.capabilities import ParticipantsMeanModel
from fedadmm.core.parts import Positive, Probability, part


class Server(NamedTuple):
    """The global model, its velocity and the participants' mean model."""

    theta: Tensor
    v: Tensor
    mean: Tensor


@part("algorithm", "fedavgm")
class FedAvgM(ParticipantsMeanModel[Server], FedOpt[Server]):
    """FedAvgM: FedAvg with momentum on the server (Hsu et al., 2019).

        v <- momentum v + weighted mean over S of (w_i - theta);   theta <- theta + lr v

    Args:
        momentum: Share of the velocity that is kept from round to round.  Default 0.9.
        lr: Learning rate of the server.  Default 1.
        nesterov: Whether to use Nesterov's momentum.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedAvgM(momentum=0.5), problem, 50, solver=fa.ExactSolver())
        >>> round(result.params.item(), 2)  # biased, as FedAvg
        3.0
    """

    paper: ClassVar[str] = "Hsu et al., Measuring the Effects of Non-Identical Data, 2019"

    momentum: Probability = 0.9
    lr: Positive = 1.0
    nesterov: bool = False

    def init_server(self, params: Tensor) -> Server:
        return Server(params, torch.zeros_like(params), params)

    def step(self, server: Server, delta: Tensor) -> Server:
        v = self.momentum * server.v + delta
        ahead = delta + self.momentum * v if self.nesterov else v
        return Server(server.theta + self.lr * ahead, v, server.theta + delta)

    def participants_mean(self, server: Server) -> Tensor:
        return server.mean
