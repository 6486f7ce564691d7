"""FedAvgM: FedAvg with momentum on the server, as printed or in Nesterov's form.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019; FedOpt with the server optimiser SGD in Reddi et al., ICLR 2021.

    client   as FedAvg: send w - theta
    server   delta = weighted mean over S of (w - theta)
             v <- momentum v + delta
             theta <- theta + lr v                        (nesterov: lr (delta + momentum v))

With momentum 0 and lr 1 it is FedAvg.  Checked here: both forms are `torch.optim.SGD` on -delta.
The paper's gain on non-identical data is an experiment; it was not a claim to prove.
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
    """FedAvgM with server momentum.

    Args:
        momentum: how much of the velocity stays from round to round.
        lr: the server's learning rate.
        nesterov: look ahead by one more step of the momentum.
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
