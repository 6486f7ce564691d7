"""Variants of FedADMM: Gong's printed increment, Gong's program, and Wang's program.

`fedadmm` implements what the two papers have in common.  These variants differ as follows:

    printed    client   send  Delta_i = u_i+ - u_i  with  u_i = w_i + y_i / rho  for the rho of
                        *this* round in both, as (4) of Gong et al. prints it
    released   client   started at theta;   send  2 (w_i+ - theta)
    Wang       server   mean over the clients seen so far, as with members="seen";
                        theta = prox_{g/rho}(m mean + (1 - m) theta),  m the weight of those seen

Printed: the client's last upload used the rho of an earlier round, so that the increments do not
add up to u_i - theta^0: if rho changes before the duals add up to zero, the mean keeps an offset.
`fedadmm` sends the increment that keeps the mean exact; for a constant rho the two are identical.

Released: 2 (w_i+ - theta) is the increment of u_i only if w_i + y_i / rho = theta before the round,
which does not hold in general.  The server's mean is then (2/rho) times the mean dual, and the
limit solves grad f(theta) = -(|S|/(n step)) (rho/2) (theta - theta^0), where |S|/(n step) = 1 for
"tracking".

Wang's program stores one model per client, and those of clients not seen yet refer to the global
model itself: they count with the current theta.  Once all clients were seen it is FedADMM.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedadmm.algorithms.fed_admm import FedADMM
from fedadmm.algorithms.fed_admm_state import Broadcast, Client, Message, Server
from fedadmm.core.contracts import Cohort, LocalResult, Regularizer, Requirements
from fedadmm.core.parts import Positive, part
from fedadmm.core.schedules import PerWork, Piecewise, Schedule


@part("algorithm", "fedadmm-printed")
class FedADMMPrinted(FedADMM):
    """FedADMM whose schedule of rho enters the increment as Gong et al. print it.

    Args:
        rho: Schedule over rounds; the one of figure 9 by default.
        step: Server step: "tracking", a number, or a schedule over rounds.
        members: Fixed to "all".
        dual: Fixed to "zero".
    """

    title: ClassVar[str] = "FedADMM-printed"
    paper: ClassVar[str] = "Gong et al., FedADMM, ICDE 2022, (4) and figure 9"
    weighted = False

    rho: Schedule = Piecewise({0: 0.01, 60: 0.1})
    members: Literal["all"] = "all"
    dual: Literal["zero"] = "zero"

    @property
    def requirements(self) -> Requirements:
        return super().requirements._replace(default_start="own")

    @property
    def bias(self) -> str:
        return "using one rho in both u_i leaves an offset in the mean when rho changes"

    def client_update(
        self, broadcast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        new, _ = super().client_update(broadcast, client, result)
        before = client.w + client.y / broadcast.rho
        return new, Message(new.w + new.y / broadcast.rho - before)

    def remove_client(self, server: Server, past: Message, regularizer: Regularizer) -> None:
        """The server holds no mean of the u_i."""


@part("algorithm", "fedadmm-released")
class FedADMMReleased(FedADMM):
    """Gong's program: FedADMM that uploads 2 (w_i - theta).

    Args:
        rho: Penalty: a number, a schedule over rounds, or `PerWork`.  Default 0.01.
        step: Server step: "tracking", a number, or a schedule over rounds.
        members: Fixed to "all".
        dual: Fixed to "zero".
    """

    title: ClassVar[str] = "FedADMM-released"
    paper: ClassVar[str] = "the program of Gong et al., FedADMM, ICDE 2022"
    weighted = False

    rho: Positive | Schedule | PerWork = 0.01
    members: Literal["all"] = "all"
    dual: Literal["zero"] = "zero"

    @property
    def bias(self) -> str:
        return "2 (w - theta) pulls by (|S|/(n step)) (rho/2) (theta - theta^0) towards theta^0"

    def client_update(
        self, broadcast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        new, _ = super().client_update(broadcast, client, result)
        return new, Message(2 * (result.params - broadcast.theta))

    def remove_client(self, server: Server, past: Message, regularizer: Regularizer) -> None:
        """The server holds no mean of the u_i."""


@part("algorithm", "fedadmm-wang-released")
class FedADMMWangReleased(FedADMM):
    """Wang's program: FedADMM in which clients not seen yet count with the current theta.

    Args:
        rho: Penalty: a number, or `PerWork`.  Default 0.01.
        step: Fixed to "tracking".
        members: Fixed to "seen".
        dual: Fixed to "zero".
    """

    title: ClassVar[str] = "FedADMM-Wang-released"
    paper: ClassVar[str] = "the program of Wang et al., FedADMM, CDC 2022"

    rho: Positive | PerWork = 0.01
    step: Literal["tracking"] = "tracking"
    members: Literal["seen"] = "seen"
    dual: Literal["zero"] = "zero"

    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        new = super().server_update(server, total, cohort, regularizer)
        return self._include_unseen(server, new, regularizer)

    def remove_client(
        self, server: Server, past: Message, regularizer: Regularizer
    ) -> Server | None:
        left = super().remove_client(server, past, regularizer)
        return None if left is None else self._include_unseen(server, left, regularizer)

    def _include_unseen(self, old: Server, new: Server, regularizer: Regularizer) -> Server:
        """Return the new state with clients not seen yet counted at the previous theta."""
        mixed = new.members * new.mean + (1 - new.members) * old.theta
        return new._replace(theta=regularizer.prox(mixed, self.prox_step))
