"""Every method of the family; one paper, one file."""

from __future__ import annotations

from fedadmm.algorithms.a_fed_pd import AFedPD
from fedadmm.algorithms.adabest import AdaBest
from fedadmm.algorithms.aligned_admm import AlignedADMM
from fedadmm.algorithms.async_fed_dr import AsyncFedDR
from fedadmm.algorithms.fed_admm import FedADMM
from fedadmm.algorithms.fed_admm_in import FedADMMIn
from fedadmm.algorithms.fed_admm_insa import FedADMMInSa
from fedadmm.algorithms.fed_admm_insa_released import FedADMMInReleased, FedADMMInSaReleased
from fedadmm.algorithms.fed_admm_printed import FedADMMPrinted
from fedadmm.algorithms.fed_admm_released import FedADMMReleased
from fedadmm.algorithms.fed_async import FedAsync
from fedadmm.algorithms.fed_avg import FedAvg, FedSGD
from fedadmm.algorithms.fed_avgm import FedAvgM
from fedadmm.algorithms.fed_buff import FedBuff
from fedadmm.algorithms.fed_cm import FedCM
from fedadmm.algorithms.fed_dr import FedDR
from fedadmm.algorithms.fed_dr_ii import FedDRII
from fedadmm.algorithms.fed_dual_avg import FedDualAvg
from fedadmm.algorithms.fed_dyn import FedDyn
from fedadmm.algorithms.fed_mid import FedMid
from fedadmm.algorithms.fed_nova import FedNova
from fedadmm.algorithms.fed_opt import FedAdagrad, FedAdam, FedYogi
from fedadmm.algorithms.fed_pd import FedPD
from fedadmm.algorithms.fed_prox import FedProx
from fedadmm.algorithms.fed_split import FedSplit
from fedadmm.algorithms.scaffnew import Scaffnew
from fedadmm.algorithms.scaffold import Scaffold
from fedadmm.algorithms.scaffold_plus import ScaffoldPlus
from fedadmm.core.parts import FAMILIES
from fedadmm.core.protocols import AnyAlgorithm

REGISTRY: dict[str, type[AnyAlgorithm]] = FAMILIES["algorithm"]
"""Name on the command line and in configurations -> class."""

__all__ = [
    "REGISTRY",
    "AFedPD",
    "AdaBest",
    "AlignedADMM",
    "AsyncFedDR",
    "FedADMM",
    "FedADMMIn",
    "FedADMMInReleased",
    "FedADMMInSa",
    "FedADMMInSaReleased",
    "FedADMMPrinted",
    "FedADMMReleased",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedCM",
    "FedDR",
    "FedDRII",
    "FedDualAvg",
    "FedDyn",
    "FedMid",
    "FedNova",
    "FedPD",
    "FedProx",
    "FedSGD",
    "FedSplit",
    "FedYogi",
    "Scaffnew",
    "Scaffold",
    "ScaffoldPlus",
]
