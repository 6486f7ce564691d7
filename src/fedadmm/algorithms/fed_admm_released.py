"""FedADMM as Gong's program computes it, beside the paper's Algorithm 1 (`fedadmm`).

    client   as FedADMM's, started at theta;   send  2 (w_i+ - theta)
    server   as FedADMM's

2 (w_i+ - theta) is the increment of u_i only while w_i = theta - y_i / rho + ..., which no round
keeps: what the server holds is (2/rho) times the mean dual, and the limit solves
grad f(theta) = -(|S|/(n step)) (rho/2) (theta - theta^0), where |S|/(n step) = 1 for "tracking".
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedadmm.algorithms.fed_admm import FedADMM
from fedadmm.algorithms.fed_admm_state import Broadcast, Client, Message, Server
from fedadmm.core.parts import part
from fedadmm.core.protocols import LocalResult, Regularizer


@part("algorithm", "fedadmm-released")
class FedADMMReleased(FedADMM):
    """Gong's program: FedADMM that uploads 2 (w_i - theta).

    Args:
        rho: the penalty: a number, a schedule over rounds, or `PerWork(pull)`.
        step: the server step: "tracking", a number, or a schedule.
    """

    title: ClassVar[str] = "FedADMM-released"
    paper: ClassVar[str] = "the program of Gong et al., FedADMM, ICDE 2022"
    weighted = False

    members: Literal["all"] = "all"

    @property
    def bias(self) -> str:
        return "2 (w - theta) pulls by (|S|/(n step)) (rho/2) (theta - theta^0) towards theta^0"

    def client_update(
        self, cast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        new, _ = super().client_update(cast, client, result)
        return new, Message(2 * (result.params - cast.theta))

    def remove_client(self, server: Server, past: Message, regularizer: Regularizer) -> None:
        """The server holds no mean of the u_i."""
