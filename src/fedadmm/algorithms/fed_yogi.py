"""FedYogi: FedAvg with Yogi on the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization,
ICLR 2021, Algorithm 2.

    client   as FedAvg: send w - theta
    server   delta = weighted mean over S of (w - theta)
             m <- beta1 m + (1 - beta1) delta
             v <- v - (1 - beta2) delta^2 sign(v - delta^2)
             theta <- theta + lr m / (sqrt(v) + tau)

m starts at 0 and v at tau^2; nothing corrects the means for that, unlike in `torch.optim`.  The
recursion is checked against an independent program; the paper's rates for non-convex problems were
not checked.
"""

from __future__ import annotations

from torch import Tensor

from fedadmm.algorithms.fed_opt import Adaptive
from fedadmm.core.parts import Probability, part


@part("algorithm", "fedyogi")
class FedYogi(Adaptive):
    """FedYogi: v moves towards the squared moves by as much as they are, never faster.

    Args:
        beta2: how much of the mean square stays from round to round.
    """

    beta2: Probability = 0.99

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """v - (1 - beta2) delta^2 sign(v - delta^2)."""
        return v - (1 - self.beta2) * square * (v - square).sign()
