"""FedADMM-In and FedADMM-InSa as the authors' program computes them.

    server   theta <- (theta_new + memory theta) / (1 + memory),  memory = 0.01
    InSa     an absent client counts with its new beta_i and its old (w_i, y_i), not with the
             beta_i of its last solve: both sums are updated after theta has been computed

The second difference costs one more uploaded vector.  It has no effect with full participation, and
the limit is always the same: all w_i equal theta there, and the duals add up to zero.  The program
also starts local training at theta and evaluates its criterion there: `start="global"` and
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
    """The authors' program of FedADMM-In: its server averages theta with the previous theta.

    Args:
        beta: Penalty of every client.  Default 1.
        members: Clients that the mean runs over: "all", or those "seen" so far.
        memory: Weight of the previous theta; the new one has weight 1.  Default 0.01.
    """

    title: ClassVar[str] = "FedADMM-In-released"
    paper: ClassVar[str] = "the program of Song, Wang, Zuazua, FedADMM-InSa, 2025"

    memory: NotNegative = 0.01

    def server_update(
        self, server: Server, total: Any, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        new = super().server_update(server, total, cohort, regularizer)
        return average_theta(new, server, self.memory)


class LongMessage(NamedTuple):
    """The increments of both sums before theta is computed, and those by the new beta_i after."""

    numerator: Tensor
    denominator: Tensor
    next_numerator: Tensor
    next_denominator: Tensor


@part("algorithm", "fedadmm-insa-released")
class FedADMMInSaReleased(FedADMMInSa):
    """The authors' program of FedADMM-InSa: absent clients count with their new penalty.

    Args:
        beta: Initial penalty of every client.  Default 1.
        members: Clients that the mean runs over: "all", or those "seen" so far.
        mu: Ratio of the residuals above which the penalty changes, greater than 1.  Default 5.
        tau: Factor by which it changes, greater than 1.  Default 2.
        beta_min: Lower bound of every beta_i.  Default 1e-4.
        beta_max: Upper bound of every beta_i.  Default 1e4.
        memory: Weight of the previous theta; the new one has weight 1.  Default 0.01.
    """

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
        new = average_theta(new, server, self.memory)
        return new._replace(
            numerator=new.numerator + total.next_numerator,
            denominator=new.denominator + total.next_denominator,
        )

    def remove_client(self, server: Server, past: Any, regularizer: Regularizer) -> Server:
        numerator = past.numerator + past.next_numerator
        denominator = past.denominator + past.next_denominator
        return super().remove_client(server, Message(numerator, denominator), regularizer)


def average_theta(new: Server, old: Server, memory: float) -> Server:
    """Return the new state with theta averaged over the new and the previous one."""
    return new._replace(theta=(new.theta + memory * old.theta) / (1 + memory))
