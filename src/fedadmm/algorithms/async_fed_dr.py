"""asyncFedDR: FedDR without rounds.

Tran-Dinh, Pham, Phan, Nguyen: FedDR: Randomized Douglas-Rachford Splitting Algorithms for
Nonconvex Federated Composite Optimization, NeurIPS 2021, Algorithm 2.

    a client that is free receives xbar and works; when its reply arrives, the server makes one step
             v_i+ = v_i + alpha (xbar^(k - delay) - x_i)
             x_i+ ~ prox_{eta f_i}(v_i+)
             send the increment of  xhat_i = 2 x_i - v_i
    server   xtilde <- xtilde + (1/n) increment;   xbar = prox_{eta g}(xtilde)

It is FedDR's file under an asynchronous engine; the class says that it means nothing else.  By
Wang et al., Theorem 1, FedADMM(rho=1/eta) under the same engine is the same method for alpha = 1.
"""

from __future__ import annotations

from typing import ClassVar

from fedadmm.algorithms.fed_dr import FedDR
from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import part


@part("algorithm", "async-feddr")
class AsyncFedDR(FedDR):
    """asyncFedDR: FedDR where every arriving reply is one server step."""

    title: ClassVar[str] = "asyncFedDR"
    paper: ClassVar[str] = "Tran-Dinh et al., FedDR, NeurIPS 2021, Algorithm 2"
    asynchronous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.absent == "aligned":
            raise ParameterError(
                "AsyncFedDR: absent is 'aligned', but must be 'kept': whoever is free is at work, "
                "so that nobody is absent"
            )
