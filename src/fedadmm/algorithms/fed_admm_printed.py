"""FedADMM under a schedule of rho with the increment (4) of Gong et al., word for word.

    client   as FedADMM's, with the rho of the round;   send  Delta_i = u_i+ - u_i
             with  u_i = w_i + y_i / rho  for the rho of *this* round in both
    server   as FedADMM's

The client's last upload used the rho of an earlier round.  So the increments no longer add up to
u_i - theta^0: when rho changes before the duals add up to zero, an offset stays in the mean for
good.  `fedadmm` sends the increment that keeps the mean exact; with a number for rho both are one.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedadmm.algorithms.fed_admm import FedADMM
from fedadmm.algorithms.fed_admm_state import Broadcast, Client, Message, Server
from fedadmm.core.parts import part
from fedadmm.core.protocols import LocalResult, Regularizer
from fedadmm.core.schedules import Piecewise, Schedule


@part("algorithm", "fedadmm-printed")
class FedADMMPrinted(FedADMM):
    """FedADMM whose schedule of rho enters the increment as Gong et al. print it.

    Args:
        rho: a schedule over rounds; figure 9's by default.
        step: the server step: "tracking", a number, or a schedule.
    """

    title: ClassVar[str] = "FedADMM-printed"
    paper: ClassVar[str] = "Gong et al., FedADMM, ICDE 2022, (4) and figure 9"
    weighted = False
    usual_start = "own"

    rho: Schedule = Piecewise({0: 0.01, 60: 0.1})
    members: Literal["all"] = "all"

    @property
    def bias(self) -> str:
        return "one rho in both u_i leaves an offset when rho changes"

    def client_update(
        self, cast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        new, _ = super().client_update(cast, client, result)
        before = client.w + client.y / cast.rho
        return new, Message(new.w + new.y / cast.rho - before)

    def remove_client(self, server: Server, past: Message, regularizer: Regularizer) -> None:
        """The server holds no mean of the u_i."""
