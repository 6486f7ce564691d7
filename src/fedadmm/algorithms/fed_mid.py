"""FedMid: FedAvg whose local steps take the prox of g, federated mirror descent.

Yuan, Zaheer, Reddi: Federated Composite Optimization, ICML 2021, Algorithm 2, with the Euclidean
mirror map.

    client   w <- prox_{lr g}(w - lr g_i(w)), several times, started at theta
             K = the sum of its steps' weights;  send  w - theta  and  K
    server   theta <- prox_{step K g}(theta + step mean over S of (w - theta)),  K its mean over S

The baseline that the paper argues against: the mean of sparse models is not sparse (the curse of
primal averaging), and the server's prox, which repairs that, counts g a second time.  With one
local step, identical clients and step = 1 the limit therefore minimises f + 2 g; that is a test.
server_prox = "none" leaves the server's prox out, and identical clients then reach the optimum of
f + g with any number of local steps; with different ones neither does.  With g = 0 it is FedAvg.
The server's line is our reading of Algorithm 2; the paper's rates were not checked.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from fedadmm.algorithms.fed_avg import LocalSteps, Stateless
from fedadmm.core.contracts import (
    Cohort,
    LocalNeeds,
    LocalResult,
    Regularizer,
    Requirements,
    Theta,
)
from fedadmm.core.parts import Positive, part


class Message(NamedTuple):
    """How far the local steps moved the model, and the sum of their weights."""

    delta: Tensor
    work: Tensor


@part("algorithm", "fedmid")
class FedMid(LocalSteps[Theta, Message]):
    """FedMid with the prox of g in every local step.

    Args:
        step: the server's step, in mean moves.
        server_prox: the server takes the prox as well ("printed"), or the clients alone ("none").
    """

    paper: ClassVar[str] = "Yuan et al., Federated Composite Optimization, ICML 2021"
    requirements: ClassVar[Requirements] = Requirements(
        local=LocalNeeds(step_sum=True, local_prox="primal"), regularizer=True
    )
    deltas: ClassVar[tuple[str, ...]] = ("delta",)

    step: Positive = 1.0
    server_prox: Literal["printed", "none"] = "printed"

    def client_update(
        self, broadcast: Theta, client: Stateless, result: LocalResult
    ) -> tuple[Stateless, Message]:
        assert result.step_sum is not None
        return client, Message(result.params - broadcast.theta, result.step_sum)

    def server_update(
        self, server: Theta, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Theta:
        theta = server.theta + self.step * total.delta / cohort.weight
        reach = self.step * float(total.work) / cohort.weight
        printed = self.server_prox == "printed" and reach > 0
        return Theta(regularizer.prox(theta, reach) if printed else theta)
