"""Gradient solvers: mini-batch SGD, full-batch gradient descent, accelerated gradient, L-BFGS."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedadmm.errors import ParameterError, check_count, check_range
from fedadmm.protocols import (
    IN_NO_ROUND,
    LocalProblem,
    LocalResult,
    Objective,
    SolveContext,
    SolveInfo,
    StoppingRule,
)
from fedadmm.rng import Key
from fedadmm.schedules import Schedule, at, check_schedule
from fedadmm.solvers.descent import LocalLoss, Stepper, descend


class SGDStepper:
    """w <- (1 - lr weight) w - lr (g + offset): one fused update on the flat vector.

    Works on one client (D,) and on a stack of clients (K, D), given objectives of either kind.
    """

    def __init__(self, loss: LocalLoss, lr: float, momentum: float) -> None:
        self.params = loss.objective.workspace(loss.problem.start)
        self._loss = loss
        self._lr = lr
        self._momentum = momentum
        self._decay = 1.0 - lr * loss.weight
        self._shift = None if loss.offset is None else lr * loss.offset
        self._velocity = torch.zeros_like(self.params) if momentum else None

    def step(self, rows: Tensor | None) -> Tensor:
        """One step on the given rows."""
        gradient = self._loss.objective.gradient(self.params, rows)
        if self._velocity is not None:
            full = gradient if self._loss.is_bare else self._loss.complete(self.params, gradient)
            self._velocity.mul_(self._momentum).add_(full)
            self.params.add_(self._velocity, alpha=-self._lr)
            return gradient
        if not (isinstance(self._decay, float) and self._decay == 1.0):
            self.params.mul_(self._decay)
        self.params.add_(gradient, alpha=-self._lr)
        if self._shift is not None:
            self.params.sub_(self._shift)
        return gradient


@dataclass(frozen=True)
class SGD:
    """Mini-batch SGD with optional momentum; `batch_size=None` takes all rows.

    `lr` is a number or a schedule over rounds.
    """

    lr: float | Schedule
    batch_size: int | None = 32
    momentum: float = 0.0

    averages_gradients = True

    def __post_init__(self) -> None:
        check_schedule(self, "lr", self.lr)
        check_range(self, "momentum", self.momentum, 0.0, 1.0, open_high=True)
        if self.batch_size is not None:
            check_count(self, "batch_size", self.batch_size)

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
            return SGDStepper(loss, at(self.lr, context.round_index), self.momentum)

        return descend(objective, problem, stop, key, context, make, self.batch_size)


@dataclass(frozen=True)
class GradientDescent:
    """Full-batch gradient descent; one epoch is one step."""

    lr: float | Schedule

    averages_gradients = True

    def __post_init__(self) -> None:
        check_schedule(self, "lr", self.lr)

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


@dataclass(frozen=True)
class AcceleratedGradient:
    """Full-batch Nesterov acceleration with restarts; one epoch is one step.

    `lr` must not exceed 1 / (L + weight).
    """

    lr: float | Schedule

    averages_gradients = True

    def __post_init__(self) -> None:
        check_schedule(self, "lr", self.lr)

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
            return _AcceleratedStepper(loss, at(self.lr, context.round_index))

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

    def step(self, rows: Tensor | None) -> Tensor:
        def closure() -> float:
            point = self._variable.detach()
            self._variable.grad = self._loss.gradient(point)
            return float(self._loss.value(point))

        if float(torch.linalg.vector_norm(self._loss.gradient(self.params))) > 0:
            self._optimizer.step(closure)  # type: ignore[no-untyped-call]
        self.params = self._variable.detach()
        return self.params


@dataclass(frozen=True)
class LBFGS:
    """L-BFGS (`torch.optim.LBFGS`, strong Wolfe); one epoch is one iteration."""

    lr: float = 1.0
    history: int = 10

    averages_gradients = False

    def __post_init__(self) -> None:
        check_range(self, "lr", self.lr, 0.0, open_low=True)
        check_count(self, "history", self.history)

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
