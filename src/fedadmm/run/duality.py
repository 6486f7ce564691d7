"""The dual of a federated problem, and the gap between both (Wang et al., (8) and (9)).

With duals y_i scaled as in the augmented Lagrangian, sum_i a_i [f_i(w_i) + <y_i, w_i - theta>]
+ g(theta), the dual value is

    D(y) = - sum_i a_i f_i*(-y_i) - g*(sum_i a_i y_i)  <=  F*,

with equality at the duals of a solution when F is convex.  ((9) is printed with g*(sum_i z_i):
there a factor 1/n is missing, and the dual value at the solution would be minus infinity for an
l1 norm.)  It is minus infinity unless sum_i a_i y_i lies in the domain of g*, which without g is
{0}: the duals of a run reach it in the limit only.  So their mean is moved, for everybody alike, to
the subgradient s of g at t = prox_{step g}(theta + step sum_i a_i y_i), where
g*(s) = <s, t> - g(t) needs no conjugate.  At a solution nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedadmm.core.errors import PairingError
from fedadmm.core.objectives import Objective
from fedadmm.core.objectives.closed_form import QuadraticObjective
from fedadmm.core.problem import Problem


class Duality(NamedTuple):
    """A primal and a dual value, between which F* lies when both are finite."""

    primal: float
    """F(theta)."""
    dual: float
    """D(y); minus infinity when a client's loss is unbounded below along its dual."""

    @property
    def gap(self) -> float:
        """F(theta) - D(y), an upper bound on F(theta) - F*."""
        return self.primal - self.dual


def check_conjugate(objective: Objective) -> None:
    """Refuse an objective whose conjugate has no closed form here."""
    if not isinstance(objective, QuadraticObjective):
        raise PairingError(
            "duality: the dual value needs losses with a known conjugate, but the clients' are "
            f"{type(objective).__name__}; use Quadratic or LeastSquares"
        )


def duality(problem: Problem, theta: Tensor, duals: Sequence[Tensor], step: float) -> Duality:
    """The primal value at `theta` and the dual value at `duals`, made feasible.

    Args:
        problem: clients that are quadratic: one eigendecomposition each.
        theta: a point in the domain of g.
        duals: y_i of every client.
        step: that of the prox which finds the subgradient of g; any is valid.
    """
    regularizer = problem.regularizer
    mean = torch.zeros_like(theta)
    for client, dual in enumerate(duals):
        mean.add_(dual, alpha=problem.weight(client))
    nearby = regularizer.prox(theta + step * mean, step)
    subgradient = (theta - nearby) / step + mean
    primal = float(problem.value(theta) + regularizer.value(theta))
    dual_value = float(regularizer.value(nearby) - subgradient @ nearby)
    for client, dual in enumerate(duals):
        objective = problem.clients[client]
        check_conjugate(objective)
        dual_value += problem.weight(client) * _least(objective, dual + subgradient - mean)
    return Duality(primal, dual_value)


def _least(objective: Objective, linear: Tensor) -> float:
    """min_w f(w) + <linear, w> = -f*(-linear), in double precision."""
    assert isinstance(objective, QuadraticObjective)
    curvatures, axes = torch.linalg.eigh(objective.hessian().double())
    slopes = axes.T @ (objective.offset() - linear).double()
    rounding = len(slopes) * torch.finfo(linear.dtype).eps
    flat = curvatures.abs() <= rounding * float(curvatures.abs().max())
    falling = slopes[flat].abs() > rounding * float(slopes.abs().max())
    if bool((curvatures[~flat] < 0).any()) or bool(falling.any()):
        return -math.inf
    constant = float(objective.value(torch.zeros_like(linear)))
    return constant - float((slopes[~flat].square() / curvatures[~flat]).sum()) / 2
