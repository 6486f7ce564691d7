"""FedOpt: FedAvg whose server makes an optimiser's step with the participants' mean move.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization,
ICLR 2021, Algorithms 1 and 2.  FedAvgM, FedAdagrad, FedAdam and FedYogi are its members.

    client   as FedAvg: w <- local steps on f_i, started at theta;  send w - theta
    server   delta = weighted mean over S of (w - theta), then the optimiser's step with -delta as
             its gradient

The optimisers of `torch.optim` keep their state in themselves and change parameters in place, and
its Adam corrects the bias of its means, which Algorithm 2 does not; so the formulas stand here.
The tests compare with `torch.optim` where the two are the same method.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedadmm.algorithms.fed_avg import Delta, SendsMove, State
from fedadmm.core.parts import Positive, Probability
from fedadmm.core.protocols import Received, Regularizer


class FedOpt(SendsMove[State]):
    """A server that hands the mean move to its optimiser."""

    @abstractmethod
    def step(self, server: State, delta: Tensor) -> State:
        """One step of the optimiser with the mean move."""

    def server_update(
        self, server: State, total: Delta, received: Received, regularizer: Regularizer
    ) -> State:
        """The optimiser's step with the replies' weighted mean."""
        return self.step(server, total.delta / received.weight)


class AdaptiveServer(NamedTuple):
    """The global model, the means m of moves and v of squares, and the participants' mean model."""

    theta: Tensor
    m: Tensor
    v: Tensor
    mean: Tensor


@dataclass(frozen=True)
class Adaptive(FedOpt[AdaptiveServer]):
    """Algorithm 2 of the paper; its three members differ in how v moves.

    Args:
        lr: the server's learning rate.
        beta1: how much of the mean move stays from round to round.
        tau: how much the step adapts to each entry: the smaller, the more.
    """

    paper: ClassVar[str] = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"

    lr: Positive = 0.1
    beta1: Probability = 0.9
    tau: Positive = 1e-3

    @abstractmethod
    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v from the last one and the squared mean move."""

    def init_server(self, params: Tensor) -> AdaptiveServer:
        """theta^0, m = 0 and v = tau^2, the smallest that the paper allows."""
        return AdaptiveServer(
            params, torch.zeros_like(params), torch.full_like(params, self.tau**2), params
        )

    def step(self, server: AdaptiveServer, delta: Tensor) -> AdaptiveServer:
        """Move m and v, then theta by lr m / (sqrt(v) + tau)."""
        m = self.beta1 * server.m + (1 - self.beta1) * delta
        v = self.squares(server.v, delta.square())
        theta = server.theta + self.lr * m / (v.sqrt() + self.tau)
        return AdaptiveServer(theta, m, v, server.theta + delta)

    def global_params(self, server: AdaptiveServer) -> Tensor:
        """theta."""
        return server.theta

    def participants_mean(self, server: AdaptiveServer) -> Tensor:
        """Where theta stood before the step, moved by their mean move."""
        return server.mean
