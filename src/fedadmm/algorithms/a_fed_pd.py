"""A-FedPD: FedDyn whose absent clients make the participants' mean dual step.

Sun, Shen, Tao: A-FedPD: Aligning Dual-Drift is All Federated Primal-Dual Learning Needs,
NeurIPS 2024.

    client   as FedDyn's, with eta = 1 / rho
    server   m = mean over S of w_i;   y_j <- y_j + rho (m - theta)  for all j not in S
             h <- h + rho (m - theta);   theta <- m + h / rho

It is aligned ADMM with sigma = 1.  The paper evaluates m, which is the output "participants-mean".
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from fedadmm.algorithms.aligned_admm import AlignedADMM
from fedadmm.core.contracts import Requirements
from fedadmm.core.parts import Positive, part
from fedadmm.core.schedules import PerWork, Schedule


@part("algorithm", "a-fedpd")
class AFedPD(AlignedADMM):
    """A-FedPD: FedDyn whose absent clients make the participants' mean dual step (Sun et al.).

        y_i <- y_i + rho (w_i - theta) for i in S, with w_i as in FedDyn and m their mean
        y_j <- y_j + rho (m - theta) for j not in S;   theta <- m + mean dual / rho

    Args:
        rho: Penalty: a number, a schedule over rounds, or `PerWork`.  Default 0.1.
        sigma: Fixed to 1.
        members: Clients that the mean dual runs over: "all", or those "seen" so far.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.AFedPD(rho=1.0), problem, 50, solver=fa.ExactSolver())
        >>> round(result.params.item(), 2)
        2.0
    """

    title: ClassVar[str] = "A-FedPD"
    paper: ClassVar[str] = "Sun, Shen, Tao, A-FedPD, NeurIPS 2024"
    requirements: ClassVar[Requirements] = Requirements()

    rho: Positive | Schedule | PerWork = 0.1
    sigma: Annotated[float, Ge(1), Le(1)] = 1.0
