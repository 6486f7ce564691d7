"""FedAdagrad, FedAdam and FedYogi: FedAvg whose server makes an optimiser's step (FedOpt).

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization,
ICLR 2021, Algorithms 1 and 2.  FedAvgM is another member of FedOpt.

    client   as FedAvg: w <- local steps on f_i, started at theta;  send w - theta
    server   delta = weighted mean over S of (w - theta)
             m <- beta1 m + (1 - beta1) delta
             FedAdagrad   v <- v + delta^2
             FedAdam      v <- beta2 v + (1 - beta2) delta^2
             FedYogi      v <- v - (1 - beta2) delta^2 sign(v - delta^2)
             theta <- theta + lr m / (sqrt(v) + tau)

m starts at 0 and v at tau^2; nothing corrects the means for that, unlike in `torch.optim`, whose
optimisers also keep their state in themselves and change parameters in place: so the formulas stand
here.  The recursions are checked against independent programs, and FedAdagrad with beta1 = 0 also
against `torch.optim.Adagrad`; the paper's rates for non-convex problems were not checked.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedadmm.algorithms.fed_avg import Delta, SendsMove, State
from fedadmm.core.capabilities import ParticipantsMeanModel
from fedadmm.core.contracts import Cohort, Regularizer, Requirements
from fedadmm.core.parts import Positive, Probability, part


class FedOpt(SendsMove[State]):
    """A server that hands the mean move to its optimiser."""

    @abstractmethod
    def step(self, server: State, delta: Tensor) -> State:
        """One step of the optimiser with the mean move."""

    def server_update(
        self, server: State, total: Delta, cohort: Cohort, regularizer: Regularizer
    ) -> State:
        return self.step(server, total.delta / cohort.weight)


class AdaptiveServer(NamedTuple):
    """The global model, the means m of moves and v of squares, and the participants' mean model."""

    theta: Tensor
    m: Tensor
    v: Tensor
    mean: Tensor


@dataclass(frozen=True)
class Adaptive(ParticipantsMeanModel[AdaptiveServer], FedOpt[AdaptiveServer]):
    """Algorithm 2 of the paper; its three members differ in how v moves.

    Args:
        lr: the server's learning rate.
        beta1: how much of the mean move stays from round to round.
        tau: how much the step adapts to each entry: the smaller, the more.
    """

    paper: ClassVar[str] = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"
    # The division by sqrt(v) bounds every step.
    requirements: ClassVar[Requirements] = Requirements(stale_updates=True)

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
        m = self.beta1 * server.m + (1 - self.beta1) * delta
        v = self.squares(server.v, delta.square())
        theta = server.theta + self.lr * m / (v.sqrt() + self.tau)
        return AdaptiveServer(theta, m, v, server.theta + delta)

    def participants_mean(self, server: AdaptiveServer) -> Tensor:
        return server.mean


@part("algorithm", "fedadagrad")
class FedAdagrad(Adaptive):
    """FedAdagrad: squared moves add up."""

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@part("algorithm", "fedadam")
class FedAdam(Adaptive):
    """FedAdam: squared moves are averaged.

    Args:
        beta2: how much of the mean square stays from round to round.
    """

    beta2: Probability = 0.99

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@part("algorithm", "fedyogi")
class FedYogi(Adaptive):
    """FedYogi: v moves towards the squared moves by as much as they are, never faster.

    Args:
        beta2: how much of the mean square stays from round to round.
    """

    beta2: Probability = 0.99

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()
