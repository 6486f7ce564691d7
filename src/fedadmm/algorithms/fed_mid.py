"""FedMid: federated mirror descent, which is FedAvg with proximal local steps.

Yuan, Zaheer, Reddi: Federated Composite Optimization, ICML 2021, Algorithm 2, with the Euclidean
mirror map.

    client   w <- prox_{lr g}(w - lr g_i(w)), several times, started at theta
             K = the sum of its steps' weights;  send  w - theta  and  K
    server   theta <- prox_{step K g}(theta + step mean over S of (w - theta)),  K its mean over S

It is the paper's baseline: the mean of sparse models is not sparse (the curse of primal averaging),
and the server's prox, which restores sparsity, applies g a second time.  With one local step,
identical clients and step = 1 the limit therefore minimises f + 2 g, which is tested.
server_prox = "none" omits the server's prox: identical clients then converge to the optimum of
f + g with any number of local steps.  With different clients and several steps both variants are
biased.  With g = 0 it is FedAvg.  The server's line is our interpretation of Algorithm 2; the
paper's rates were not checked.
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
    """The change of the model by local training, and the sum of the steps' weights."""

    delta: Tensor
    work: Tensor


@part("algorithm", "fedmid")
class FedMid(LocalSteps[Theta, Message]):
    """FedMid: federated mirror descent for f + g (Yuan et al., 2021).

        w_i <- prox_{lr g}(w_i - lr g_i(w_i)), several times, started at theta
        theta <- prox_{step K g}(theta + step * weighted mean over S of (w_i - theta))

    Args:
        step: Server step as a multiple of the mean change.  Default 1.
        server_prox: Whether the server applies the prox in addition to the clients ("printed", as
            in the paper) or not ("none").

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, fa.L1(1.0), initial=torch.zeros(1))  # optimum 1.5
        >>> work = dict(solver=fa.GradientDescent(0.1), stop=fa.Steps(1))
        >>> round(fa.simulate(fa.FedMid(), problem, 100, **work).params.item(), 2)  # f + 2 g
        1.0
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
