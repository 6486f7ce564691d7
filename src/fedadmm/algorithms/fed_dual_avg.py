"""FedDualAvg: local steps and means in a dual state, whose prox is the model.

Yuan, Zaheer, Reddi: Federated Composite Optimization, ICML 2021, Algorithm 3, with the Euclidean
mirror map.

    client   from z_i = z and r_i = r, several times
             z_i <- z_i - lr g_i(prox_{r_i g}(z_i));   r_i <- r_i + lr
             send  z_i - z  and  r_i - r
    server   z <- z + step mean over S of (z_i - z);   r <- r + step mean over S of (r_i - r)
             theta = prox_{r g}(z)

r is the sum of the steps' weights so far, which is how often g has to be counted; the paper's
step K (rounds) lr for an equal number of steps.  z and r are broadcast, the clients form theta.

The means are taken where g has not yet bent anything, so that one local step with everybody is
dual averaging on f + g, whatever the clients' differences: its limit is the optimum, and so it is
for identical clients with any number of local steps.  Both are tests on a lasso, against the
optimum of FedDR.  Several steps of different clients leave the drift that FedAvg has.  With g = 0
it is FedAvg.  The paper's rates were not checked.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from torch import Tensor

from fedadmm.algorithms.fed_avg import KeepsNothing, Stateless
from fedadmm.core.contracts import (
    Cohort,
    LocalNeeds,
    LocalProblem,
    LocalResult,
    Regularizer,
    Requirements,
    Round,
)
from fedadmm.core.parts import Positive, part


class Server(NamedTuple):
    """The dual state, how often g has to be counted, and the global model."""

    z: Tensor
    reach: Tensor
    theta: Tensor


class Broadcast(NamedTuple):
    """The dual state, and how often g has to be counted."""

    z: Tensor
    reach: Tensor


class Message(NamedTuple):
    """How far the local steps moved the dual state, and the sum of their weights."""

    delta: Tensor
    work: Tensor


@part("algorithm", "feddualavg")
class FedDualAvg(KeepsNothing[Server, Broadcast, Message]):
    """FedDualAvg: federated dual averaging; clients average in the dual space, g acts last.

    Args:
        step: the server's step, in mean moves.
    """

    paper: ClassVar[str] = "Yuan et al., Federated Composite Optimization, ICML 2021"
    requirements: ClassVar[Requirements] = Requirements(
        local=LocalNeeds(step_sum=True, local_prox="dual"),
        regularizer=True,
        broadcasts_theta=False,  # clients compute it from the dual vector
    )
    deltas: ClassVar[tuple[str, ...]] = ("delta",)

    step: Positive = 1.0

    def init_server(self, params: Tensor) -> Server:
        """Z = theta = x^0; g has not been counted yet."""
        return Server(params, params.new_zeros(1), params)

    def broadcast(self, server: Server, round: Round) -> Broadcast:
        return Broadcast(server.z, server.reach)

    def local_problem(self, broadcast: Broadcast, client: Stateless) -> LocalProblem:
        return LocalProblem(broadcast.z, prox_step=broadcast.reach)

    def client_update(
        self, broadcast: Broadcast, client: Stateless, result: LocalResult
    ) -> tuple[Stateless, Message]:
        assert result.step_sum is not None
        return client, Message(result.params - broadcast.z, result.step_sum)

    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        z = server.z + self.step * total.delta / cohort.weight
        reach = server.reach + self.step * total.work / cohort.weight
        number = float(reach)
        return Server(z, reach, regularizer.prox(z, number) if number else z)
