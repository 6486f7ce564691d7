"""FedProx: FedAvg with a proximal term in the local problem.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020.

    client   w ~ argmin f_i(w) + (rho/2) ||w - theta||^2, started at theta;  send w - theta
    server   as FedAvg
"""

from __future__ import annotations

from typing import ClassVar

from fedadmm.algorithms.fed_avg import FedAvg, Stateless
from fedadmm.core.contracts import LocalProblem, Theta
from fedadmm.core.parts import NotNegative, part


@part("algorithm", "fedprox")
class FedProx(FedAvg):
    """FedProx: FedAvg with a proximal term in the local problem (Li et al., 2020).

        w_i ~ argmin f_i(w) + (rho/2) ||w - theta||^2;   theta <- weighted mean over S of w_i

    Args:
        rho: Weight of the proximal term (the paper's mu).  Default 0.1; 0 is FedAvg.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedProx(rho=1.0), problem, 50, solver=fa.ExactSolver())
        >>> round(result.params.item(), 2)  # biased, less than FedAvg's 3.0
        2.61
    """

    paper: ClassVar[str] = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"

    rho: NotNegative = 0.1

    def local_problem(self, broadcast: Theta, client: Stateless) -> LocalProblem:
        return LocalProblem(start=broadcast.theta, weight=self.rho, centre=broadcast.theta)
