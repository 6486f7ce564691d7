"""FedNova: local changes are normalised by the local work before they are averaged.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization, NeurIPS 2020, equation (4) with tau_eff as in section 4.

    client   w <- local steps on f_i, started at theta
             K = the sum of its steps' weights (lr times the number of steps for plain SGD)
             send  (w - theta) / K  and  K
    server   theta <- theta + (weighted mean over S of K) (weighted mean over S of (w - theta) / K)

In FedAvg a client that makes more or larger steps has more influence, so that FedAvg minimises
another objective than f.  Here the influence of a client depends on its weight only.  The paper's
||a_i||_1 counts steps and factors out the learning rate, which is the same recursion if all
clients have the same learning rate; with different ones, K keeps the objective consistent.
Momentum of the solver enters K as in section 4 of the paper.

If all clients do the same work it is FedAvg, and its limit has FedAvg's drift, which vanishes with
the learning rate.  Both this and the limit of FedAvg with unequal work are tested; the paper's
rates were not checked.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
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
from fedadmm.core.parts import part


class Message(NamedTuple):
    """The normalised change (w - theta) / K, and K."""

    direction: Tensor
    work: Tensor


@part("algorithm", "fednova")
class FedNova(LocalSteps[Theta, Message]):
    """FedNova: FedAvg with changes normalised by the local work (Wang et al., 2020).

        theta <- theta + (mean over S of K_i) (mean over S of (w_i - theta) / K_i)

    K_i is the sum of the client's learning rates over its steps.  It has no hyper-parameters of its
    own: see the solver and its stopping rule.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> work = dict(solver=fa.GradientDescent(0.01), stop=fa.Steps([5, 1, 1]))
        >>> round(fa.simulate(fa.FedNova(), problem, 200, **work).params.item(), 2)
        1.99
        >>> round(fa.simulate(fa.FedAvg(), problem, 200, **work).params.item(), 2)  # more biased
        3.57
    """

    paper: ClassVar[str] = "Wang et al., Tackling the Objective Inconsistency Problem, NeurIPS 2020"
    requirements: ClassVar[Requirements] = Requirements(local=LocalNeeds(step_sum=True))
    deltas: ClassVar[tuple[str, ...]] = ("direction",)

    def client_update(
        self, broadcast: Theta, client: Stateless, result: LocalResult
    ) -> tuple[Stateless, Message]:
        work = result.step_sum
        assert work is not None
        unit = torch.where(work > 0, work, torch.ones_like(work))
        return client, Message((result.params - broadcast.theta) / unit, work)

    def server_update(
        self, server: Theta, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Theta:
        work, direction = total.work / cohort.weight, total.direction / cohort.weight
        return Theta(server.theta + work * direction)
