"""FedProx: FedAvg whose local problem is held near the global model.

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
    """FedProx with proximal coefficient `rho`; rho = 0 is FedAvg, bit for bit."""

    paper: ClassVar[str] = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"

    rho: NotNegative = 0.1

    def local_problem(self, broadcast: Theta, client: Stateless) -> LocalProblem:
        return LocalProblem(start=broadcast.theta, weight=self.rho, centre=broadcast.theta)
