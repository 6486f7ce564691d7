"""FedADMM-In and FedADMM-InSa as the authors' program computes them.

    server   theta <- (theta_new + memory theta) / (1 + memory),  memory = 0.01
    InSa     an absent client counts with its new beta_i and its old (w_i, y_i), not with the
             beta_i of its last solve: after theta is made, both sums take over what changes

The second costs one more vector up.  With everybody in every round it makes no difference, and the
limit is always the same: all w_i are theta there, and the duals add up to zero.  The program also
starts local work at theta and measures its criterion there: `start="global"` and
`InSaCriterion(reference="global")`, for every method of its table.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedadmm.algorithms.fed_admm_in import Client, FedADMMIn, Message, Server
from fedadmm.algorithms.fed_admm_insa import FedADMMInSa
from fedadmm.core.contracts import Cohort, LocalResult, Regularizer, Theta
from fedadmm.core.parts import NotNegative, part


@part("algorithm", "fedadmm-in-released")
class FedADMMInReleased(FedADMMIn):
    """FedADMM-In whose server mixes theta with its last value (`memory`)."""

    title: ClassVar[str] = "FedADMM-In-released"
    paper: ClassVar[str] = "the program of Song, Wang, Zuazua, FedADMM-InSa, 2025"

    memory: NotNegative = 0.01

    def server_update(
        self, server: Server, total: Any, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        new = super().server_update(server, total, cohort, regularizer)
        return mixed(new, server, self.memory)


class LongMessage(NamedTuple):
    """The increments of both sums before theta is made, and what the new beta_i adds afterwards."""

    numerator: Tensor
    denominator: Tensor
    next_numerator: Tensor
    next_denominator: Tensor


@part("algorithm", "fedadmm-insa-released")
class FedADMMInSaReleased(FedADMMInSa):
    """FedADMM-InSa with `memory`, whose absent clients count with their new penalty."""

    title: ClassVar[str] = "FedADMM-InSa-released"
    paper: ClassVar[str] = "the program of Song, Wang, Zuazua, FedADMM-InSa, 2025"

    memory: NotNegative = 0.01

    def client_update(
        self, broadcast: Theta, client: Client, result: LocalResult
    ) -> tuple[Client, Any]:
        new, sent = super().client_update(broadcast, client, result)
        change = new.beta - client.beta
        return new._replace(sent=new.beta), LongMessage(*sent, change * new.w, change)

    def server_update(
        self, server: Server, total: Any, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        new = super().server_update(server, total, cohort, regularizer)
        new = mixed(new, server, self.memory)
        return new._replace(
            numerator=new.numerator + total.next_numerator,
            denominator=new.denominator + total.next_denominator,
        )

    def remove_client(self, server: Server, past: Any, regularizer: Regularizer) -> Server:
        numerator = past.numerator + past.next_numerator
        denominator = past.denominator + past.next_denominator
        return super().remove_client(server, Message(numerator, denominator), regularizer)


def mixed(new: Server, old: Server, memory: float) -> Server:
    """The new state with the theta that the program hands on."""
    return new._replace(theta=(new.theta + memory * old.theta) / (1 + memory))
