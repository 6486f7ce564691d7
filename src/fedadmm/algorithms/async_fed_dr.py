"""asyncFedDR: FedDR without rounds.

Tran-Dinh, Pham, Phan, Nguyen: FedDR: Randomized Douglas-Rachford Splitting Algorithms for
Nonconvex Federated Composite Optimization, NeurIPS 2021, Algorithm 2.

    client   when it is free: receive xbar and work, as FedDR's
    server   when a reply arrives, made from xbar^(k - delay):  xtilde <- xtilde + (1/n) increment;
             xbar = prox_{eta g}(xtilde)

Under an asynchronous engine FedDR itself is this method, and so is, by Wang et al., Theorem 1,
FedADMM(rho=1/eta) for alpha = 1; the class refuses engines with rounds.
"""

from __future__ import annotations

from typing import ClassVar

from fedadmm.algorithms.fed_dr import FedDR
from fedadmm.core.parts import part


@part("algorithm", "async-feddr")
class AsyncFedDR(FedDR):
    """asyncFedDR: FedDR where every arriving reply is one server step."""

    title: ClassVar[str] = "asyncFedDR"
    paper: ClassVar[str] = "Tran-Dinh et al., FedDR, NeurIPS 2021, Algorithm 2"
    asynchronous: ClassVar[bool] = True
