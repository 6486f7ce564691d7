"""Gradient solvers: mini-batch SGD, full-batch gradient descent, accelerated gradient, L-BFGS."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Count, Positive, Probability, part
from fedadmm.core.protocols import (
    IN_NO_ROUND,
    LocalProblem,
    LocalResult,
    LocalSolver,
    Objective,
    SolveContext,
    SolveInfo,
    StoppingRule,
)
from fedadmm.core.rng import Key
from fedadmm.core.schedules import Schedule, at, check_floor
from fedadmm.core.solvers.descent import LocalLoss, Stepper, descend


class OwnTerms(NamedTuple):
    """What the terms of the local problem beside f_i do in one gradient step.

    With a quadratic term w moves by `rate` = lr * weight of the way to `target`, where the terms
    are stationary; with a linear term alone it moves by -`shift`.
    """

    rate: Tensor | float
    target: Tensor | None
    shift: Tensor | None

    @classmethod
    def of(cls, loss: LocalLoss, lr: Tensor | float) -> OwnTerms | None:
        """The terms of a local problem, or None when there are none."""
        if loss.target is not None:
            return cls(lr * loss.weight, loss.target, None)
        linear = loss.problem.linear
        return None if linear is None else cls(0.0, None, lr * linear)

    def pull(self, part: Tensor, begin: int, end: int) -> None:
        """Move the parameters [begin, end) in place."""
        if self.target is not None:
            part.lerp_(self.target[..., begin:end], self.rate)
        elif self.shift is not None:
            part.sub_(self.shift[..., begin:end])

    def step(self, params: Tensor) -> Tensor:
        """How far the terms push `params` back: lr times their gradient."""
        if self.target is not None:
            return self.rate * (params - self.target)
        assert self.shift is not None
        return self.shift


class _Vectors(NamedTuple):
    """What a step reads and writes; vectors are (D,) or (K, D), numbers may be (K, 1)."""

    params: Tensor
    lr: Tensor | float
    terms: OwnTerms | None
    velocity: Tensor | None


class SGDStepper:
    """w <- w - lr (g + the gradient of the local problem's own terms), with optional momentum.

    Works on one client (D,) and on a stack of clients (K, D), given objectives of either kind.
    An objective that offers `descend` makes plain steps without forming the gradient.
    """

    extra_gradients = 0

    def __init__(
        self, loss: LocalLoss, lr: Tensor | float, momentum: float, wants_gradient: bool = True
    ) -> None:
        self._objective: Any = loss.objective
        self._momentum = momentum
        self._fused = None
        if not momentum and not wants_gradient:
            self._fused = loss.objective.descend if loss.objective.descends else None
        params = loss.objective.workspace(loss.problem.start)
        velocity = torch.zeros_like(params) if momentum else None
        self._vectors = _Vectors(params, lr, OwnTerms.of(loss, lr), velocity)

    @property
    def params(self) -> Tensor:
        """The current iterate, live."""
        return self._vectors.params

    def step(self, rows: Any) -> Tensor | None:
        """One step on the given rows; the gradient of f_i, unless nobody wanted it."""
        params, lr, terms, velocity = self._vectors
        if self._fused is not None:
            self._fused(params, rows, float(lr), None if terms is None else terms.pull)
            return None
        gradient: Tensor = self._objective.gradient(params, rows)
        if velocity is None:
            if terms is not None:
                terms.pull(params, 0, params.shape[-1])
            _add(params, gradient, -lr)
            return gradient
        _add(velocity.mul_(self._momentum), gradient, lr)
        if terms is not None:
            velocity.add_(terms.step(params))
        params.sub_(velocity)
        return gradient

    def select(self, clients: Tensor | slice) -> SGDStepper:
        """The stepper of some clients of a stack: of the same memory (slice) or a copy."""
        chosen = copy.copy(self)
        chosen._vectors = trees.select(self._vectors, clients)
        if isinstance(clients, Tensor):
            chosen._objective = self._objective.select(clients.tolist())
        return chosen


def _add(into: Tensor, gradient: Tensor, factor: Tensor | float) -> None:
    """into += factor * gradient in place; a factor per client is a column."""
    if isinstance(factor, Tensor):
        into.addcmul_(gradient, factor)
    else:
        into.add_(gradient, alpha=factor)


@dataclass(frozen=True)
class _Rated(LocalSolver):
    """A solver with a learning rate: a number, a schedule over rounds, or one number per client."""

    averages_gradients = True
    per_client = ("lr",)

    lr: Positive | Schedule | Sequence[Positive]

    def __post_init__(self) -> None:
        check_floor(self, "lr", self.lr)

    def rate(self, context: SolveContext) -> float:
        """The learning rate of the one client that works."""
        (client,) = context.clients
        return at(self.lr, context.round_index, client)


@part("solver", "sgd")
class SGD(_Rated):
    """Mini-batch SGD with optional momentum; `batch_size=None` takes all rows.

    `lr` is a number, a schedule over rounds, or one number per client.
    """

    batch_size: Count | None = 32
    momentum: Probability = 0.0

    def solve(
        self,
        objective: Objective,
        problem: LocalProblem,
        stop: StoppingRule,
        key: Key,
        context: SolveContext = IN_NO_ROUND,
    ) -> tuple[LocalResult, SolveInfo]:
        """Run SGD from the problem's start."""

        def make(loss: LocalLoss) -> Stepper:
            wants = context.needs.mean_gradient
            return SGDStepper(loss, self.rate(context), self.momentum, wants)

        return descend(objective, problem, stop, key, context, make, self.batch_size)


@part("solver", "gradient-descent")
class GradientDescent(_Rated):
    """Full-batch gradient descent; one epoch is one step.

    `lr` is a number, a schedule over rounds, or one number per client.
    """

    def solve(
        self,
        objective: Objective,
        problem: LocalProblem,
        stop: StoppingRule,
        key: Key,
        context: SolveContext = IN_NO_ROUND,
    ) -> tuple[LocalResult, SolveInfo]:
        """Run gradient descent from the problem's start."""
        return SGD(self.lr, batch_size=None).solve(objective, problem, stop, key, context)


class _AcceleratedStepper:
    """FISTA's extrapolation with the gradient restart of O'Donoghue and Candes."""

    extra_gradients = 0

    def __init__(self, loss: LocalLoss, lr: float) -> None:
        self.params = loss.problem.start.clone()
        self._loss = loss
        self._lr = lr
        self._ahead = self.params.clone()
        self._t = 1.0

    def step(self, rows: Tensor | None) -> Tensor:
        own = self._loss.objective.gradient(self._ahead, rows).clone()
        gradient = self._loss.complete(self._ahead, own)
        following = self._ahead - self._lr * gradient
        way = following - self.params
        if float((gradient * way).sum()) > 0:
            self._t = 1.0
        t = (1 + math.sqrt(1 + 4 * self._t**2)) / 2
        self._ahead = following + ((self._t - 1) / t) * way
        self.params, self._t = following, t
        return own


@part("solver", "accelerated-gradient")
class AcceleratedGradient(_Rated):
    """Full-batch Nesterov acceleration with restarts; one epoch is one step.

    `lr`, a number, a schedule over rounds, or one number per client, must not exceed
    1 / (L + weight).
    """

    def solve(
        self,
        objective: Objective,
        problem: LocalProblem,
        stop: StoppingRule,
        key: Key,
        context: SolveContext = IN_NO_ROUND,
    ) -> tuple[LocalResult, SolveInfo]:
        """Run accelerated gradient descent from the problem's start."""

        def make(loss: LocalLoss) -> Stepper:
            return _AcceleratedStepper(loss, self.rate(context))

        return descend(objective, problem, stop, key, context, make, None)


class _LBFGSStepper:
    """One iteration of torch.optim.LBFGS with a strong Wolfe line search per step."""

    def __init__(self, loss: LocalLoss, lr: float, history: int) -> None:
        self.params = loss.problem.start.clone()
        self._loss = loss
        self._variable = torch.nn.Parameter(self.params, requires_grad=True)
        self._optimizer = torch.optim.LBFGS(
            [self._variable],
            lr=lr,
            max_iter=1,
            max_eval=25,
            history_size=history,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )
        self.extra_gradients = 0

    def step(self, rows: Tensor | None) -> Tensor:
        def closure() -> float:
            point = self._variable.detach()
            self._variable.grad = self._loss.gradient(point)
            self.extra_gradients += 1
            return float(self._loss.value(point))

        if float(torch.linalg.vector_norm(self._loss.gradient(self.params))) > 0:
            self._optimizer.step(closure)  # type: ignore[no-untyped-call]
        self.params = self._variable.detach()
        return self.params


@part("solver", "lbfgs")
class LBFGS(LocalSolver):
    """L-BFGS (`torch.optim.LBFGS`, strong Wolfe); one epoch is one iteration."""

    lr: Positive = 1.0
    history: Count = 10

    def solve(
        self,
        objective: Objective,
        problem: LocalProblem,
        stop: StoppingRule,
        key: Key,
        context: SolveContext = IN_NO_ROUND,
    ) -> tuple[LocalResult, SolveInfo]:
        """Run L-BFGS from the problem's start."""
        if context.needs.mean_gradient:
            raise ParameterError("LBFGS: its steps have no mean gradient, but one was asked for")

        def make(loss: LocalLoss) -> Stepper:
            return _LBFGSStepper(loss, self.lr, self.history)

        return descend(objective, problem, stop, key, context, make, None)
