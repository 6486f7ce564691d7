"""FedAdagrad: FedAvg with Adagrad on the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization,
ICLR 2021, Algorithm 2.

    client   as FedAvg: send w - theta
    server   delta = weighted mean over S of (w - theta)
             m <- beta1 m + (1 - beta1) delta
             v <- v + delta^2
             theta <- theta + lr m / (sqrt(v) + tau)

m starts at 0 and v at tau^2.  The recursion is checked against an independent program, and with
beta1 = 0 against `torch.optim.Adagrad`; the paper's rates for non-convex problems were not checked.
"""

from __future__ import annotations

from torch import Tensor

from fedadmm.algorithms.fed_opt import Adaptive
from fedadmm.core.parts import part


@part("algorithm", "fedadagrad")
class FedAdagrad(Adaptive):
    """FedAdagrad: squared moves add up."""

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """v + delta^2."""
        return v + square
