"""FedNova: moves are normalised by the local work before they are averaged.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization, NeurIPS 2020, equation (4) with tau_eff as in section 4.

    client   w <- local steps on f_i, started at theta
             K = the sum of its steps' weights (lr times the number of steps for plain SGD)
             send  (w - theta) / K  and  K
    server   theta <- theta + (weighted mean over S of K) (weighted mean over S of (w - theta) / K)

A client that makes more steps, or larger ones, moves further in FedAvg and counts more, so that
FedAvg minimises another objective than f.  Here every client counts by its weight alone.  The
paper's ||a_i||_1 counts steps and leaves the learning rate, the same for all, outside; with one
learning rate for all clients that is the same recursion, and with several this one stays
consistent.  Momentum of the solver enters K as in the paper's section 4.

When all clients do the same work it is FedAvg, and its limit has FedAvg's drift, which vanishes
with the learning rate.  That, and the limit of FedAvg with unequal work, are tests; the paper's
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
    """The normalised move, and what it was normalised by."""

    direction: Tensor
    work: Tensor


@part("algorithm", "fednova")
class FedNova(LocalSteps[Theta, Message]):
    """FedNova; all hyper-parameters are those of the solver and its stopping rule."""

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
