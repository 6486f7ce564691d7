"""FedADMM as Wang's program computes it, beside the paper's Algorithm 2 (`fedadmm`).

    client   as FedADMM's
    server   mean over the clients seen so far as FedADMM's with members="seen";
             theta = prox_{g/rho}(m mean + (1 - m) theta),  m the weight of those seen

The program keeps a slot for each client, and those of clients not seen yet refer to the global
model itself: they count with the current theta.  Once all clients were seen it is FedADMM.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedadmm.algorithms.fed_admm import FedADMM
from fedadmm.algorithms.fed_admm_state import Message, Server
from fedadmm.core.parts import Positive, part
from fedadmm.core.protocols import Received, Regularizer
from fedadmm.core.schedules import PerWork


@part("algorithm", "fedadmm-wang-released")
class FedADMMWangReleased(FedADMM):
    """Wang's program: FedADMM in which clients not seen yet count with the current theta.

    Args:
        rho: the penalty: a number, or `PerWork(pull)`.
    """

    title: ClassVar[str] = "FedADMM-Wang-released"
    paper: ClassVar[str] = "the program of Wang et al., FedADMM, CDC 2022"

    rho: Positive | PerWork = 0.01
    step: Literal["tracking"] = "tracking"
    members: Literal["seen"] = "seen"

    def server_update(
        self, server: Server, total: Message, received: Received, regularizer: Regularizer
    ) -> Server:
        new = super().server_update(server, total, received, regularizer)
        return self._mixed(server, new, regularizer)

    def remove_client(
        self, server: Server, past: Message, regularizer: Regularizer
    ) -> Server | None:
        left = super().remove_client(server, past, regularizer)
        return None if left is None else self._mixed(server, left, regularizer)

    def _mixed(self, old: Server, new: Server, regularizer: Regularizer) -> Server:
        mixed = new.members * new.mean + (1 - new.members) * old.theta
        return new._replace(theta=regularizer.prox(mixed, self.prox_step))
