"""A-FedPD: FedDyn whose absent clients make the participants' mean dual step.

Sun, Shen, Tao: A-FedPD: Aligning Dual-Drift is All Federated Primal-Dual Learning LocalNeeds,
NeurIPS 2024.

    client   as FedDyn's, with eta = 1 / rho
    server   m = mean over S of w_i;   y_j <- y_j + rho (m - theta)  for all j not in S
             h <- h + rho (m - theta);   theta <- m + h / rho

It is aligned ADMM with sigma = 1.  The paper evaluates m: choose the output "participants-mean".
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
    """A-FedPD with penalty `rho`; sigma is 1 by definition."""

    title: ClassVar[str] = "A-FedPD"
    paper: ClassVar[str] = "Sun, Shen, Tao, A-FedPD, NeurIPS 2024"
    requirements: ClassVar[Requirements] = Requirements()

    rho: Positive | Schedule | PerWork = 0.1
    sigma: Annotated[float, Ge(1), Le(1)] = 1.0
