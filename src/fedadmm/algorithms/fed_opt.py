"""FedAdagrad, FedAdam and FedYogi: FedAvg with an adaptive optimiser on the server (FedOpt).

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization,
ICLR 2021, Algorithms 1 and 2.  FedAvgM is another member of FedOpt.

    client   as FedAvg: w <- local steps on f_i, started at theta;  send w - theta
    server   delta = weighted mean over S of (w - theta)
             m <- beta1 m + (1 - beta1) delta
             FedAdagrad   v <- v + delta^2
             FedAdam      v <- beta2 v + (1 - beta2) delta^2
             FedYogi      v <- v - (1 - beta2) delta^2 sign(v - delta^2)
             theta <- theta + lr m / (sqrt(v) + tau)

m starts at 0 and v at tau^2, without the bias correction of `torch.optim`, whose optimisers also
keep state in themselves and modify parameters in place; therefore they are not used here.  The
recursions are tested against independent programs, and FedAdagrad with beta1 = 0 also against
`torch.optim.Adagrad`; the paper's rates for non-convex problems were not checked.
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
    """Base class of methods whose server makes an optimiser's step along the mean change."""

    @abstractmethod
    def step(self, server: State, delta: Tensor) -> State:
        """Return the server's state after a step with the mean change `delta`."""

    def server_update(
        self, server: State, total: Delta, cohort: Cohort, regularizer: Regularizer
    ) -> State:
        return self.step(server, total.delta / cohort.weight)


class AdaptiveServer(NamedTuple):
    """The global model, the first and second moments m and v, and the participants' mean model."""

    theta: Tensor
    m: Tensor
    v: Tensor
    mean: Tensor


@dataclass(frozen=True)
class Adaptive(ParticipantsMeanModel[AdaptiveServer], FedOpt[AdaptiveServer]):
    """Base class of Algorithm 2 of the paper, whose three variants differ in the update of v.

    Args:
        lr: Learning rate of the server.
        beta1: Decay of the first moment.
        tau: Added to sqrt(v); the smaller, the more the step adapts to each entry.
    """

    paper: ClassVar[str] = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"
    # The division by sqrt(v) bounds every step.
    requirements: ClassVar[Requirements] = Requirements(stale_updates=True)

    lr: Positive = 0.1
    beta1: Probability = 0.9
    tau: Positive = 1e-3

    @abstractmethod
    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the next v from the last one and the squared mean change."""

    def init_server(self, params: Tensor) -> AdaptiveServer:
        """Return theta^0, m = 0 and v = tau^2, the smallest value that the paper allows."""
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
    """FedAdagrad: FedAvg with Adagrad on the server (Reddi et al., 2021).

        delta = weighted mean over S of (w_i - theta);   m <- beta1 m + (1 - beta1) delta
        v <- v + delta^2;   theta <- theta + lr m / (sqrt(v) + tau)

    Args:
        lr: Learning rate of the server.  Default 0.1.
        beta1: Decay of the first moment.  Default 0.9.
        tau: Added to sqrt(v); the smaller, the more the step adapts to each entry.  Default 1e-3.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedAdagrad(lr=1.0), problem, 200, solver=fa.ExactSolver())
        >>> round(result.params.item(), 1)  # biased, as FedAvg
        3.0
    """

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@part("algorithm", "fedadam")
class FedAdam(Adaptive):
    """FedAdam: FedAvg with Adam on the server (Reddi et al., 2021).

        delta = weighted mean over S of (w_i - theta);   m <- beta1 m + (1 - beta1) delta
        v <- beta2 v + (1 - beta2) delta^2;   theta <- theta + lr m / (sqrt(v) + tau)

    Args:
        lr: Learning rate of the server.  Default 0.1.
        beta1: Decay of the first moment.  Default 0.9.
        tau: Added to sqrt(v); the smaller, the more the step adapts to each entry.  Default 1e-3.
        beta2: Decay of the second moment.  Default 0.99.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedAdam(), problem, 200, solver=fa.ExactSolver())
        >>> round(result.params.item(), 1)  # biased, as FedAvg
        3.0
    """

    beta2: Probability = 0.99

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@part("algorithm", "fedyogi")
class FedYogi(Adaptive):
    """FedYogi: FedAvg with Yogi on the server (Reddi et al., 2021).

        delta = weighted mean over S of (w_i - theta);   m <- beta1 m + (1 - beta1) delta
        v <- v - (1 - beta2) delta^2 sign(v - delta^2);   theta <- theta + lr m / (sqrt(v) + tau)

    Args:
        lr: Learning rate of the server.  Default 0.1.
        beta1: Decay of the first moment.  Default 0.9.
        tau: Added to sqrt(v); the smaller, the more the step adapts to each entry.  Default 1e-3.
        beta2: Decay of the second moment.  Default 0.99.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedYogi(), problem, 200, solver=fa.ExactSolver())
        >>> round(result.params.item(), 1)  # biased, as FedAvg
        3.0
    """

    beta2: Probability = 0.99

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()
