"""Federated optimisation methods, one file per paper."""

from __future__ import annotations

from fedadmm.algorithms.a_fed_pd import AFedPD as AFedPD
from fedadmm.algorithms.adabest import AdaBest as AdaBest
from fedadmm.algorithms.aligned_admm import AlignedADMM as AlignedADMM
from fedadmm.algorithms.consensus_admm import ConsensusADMM as ConsensusADMM
from fedadmm.algorithms.fed_admm import FedADMM as FedADMM
from fedadmm.algorithms.fed_admm_in import FedADMMIn as FedADMMIn
from fedadmm.algorithms.fed_admm_insa import FedADMMInSa as FedADMMInSa
from fedadmm.algorithms.fed_admm_insa_released import (
    FedADMMInReleased as FedADMMInReleased,
    FedADMMInSaReleased as FedADMMInSaReleased,
)
from fedadmm.algorithms.fed_admm_variants import (
    FedADMMPrinted as FedADMMPrinted,
    FedADMMReleased as FedADMMReleased,
    FedADMMWangReleased as FedADMMWangReleased,
)
from fedadmm.algorithms.fed_async import FedAsync as FedAsync
from fedadmm.algorithms.fed_avg import FedAvg as FedAvg, FedSGD as FedSGD
from fedadmm.algorithms.fed_avgm import FedAvgM as FedAvgM
from fedadmm.algorithms.fed_buff import FedBuff as FedBuff
from fedadmm.algorithms.fed_cm import FedCM as FedCM
from fedadmm.algorithms.fed_dr import AsyncFedDR as AsyncFedDR, FedDR as FedDR
from fedadmm.algorithms.fed_dr_ii import FedDRII as FedDRII
from fedadmm.algorithms.fed_dual_avg import FedDualAvg as FedDualAvg
from fedadmm.algorithms.fed_dyn import FedDyn as FedDyn
from fedadmm.algorithms.fed_exp import FedExP as FedExP
from fedadmm.algorithms.fed_mid import FedMid as FedMid
from fedadmm.algorithms.fed_nova import FedNova as FedNova
from fedadmm.algorithms.fed_opt import (
    FedAdagrad as FedAdagrad,
    FedAdam as FedAdam,
    FedYogi as FedYogi,
)
from fedadmm.algorithms.fed_pd import FedPD as FedPD
from fedadmm.algorithms.fed_prox import FedProx as FedProx
from fedadmm.algorithms.fed_split import FedSplit as FedSplit
from fedadmm.algorithms.p_fed_me import PFedMe as PFedMe
from fedadmm.algorithms.scaffnew import Scaffnew as Scaffnew
from fedadmm.algorithms.scaffold import Scaffold as Scaffold
from fedadmm.core.contracts import AnyAlgorithm
from fedadmm.core.parts import FAMILIES

REGISTRY: dict[str, type[AnyAlgorithm]] = FAMILIES["algorithm"]
"""Maps the name in configurations and on the command line to the class."""
