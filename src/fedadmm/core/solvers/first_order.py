"""Gradient solvers: mini-batch SGD, full-batch gradient descent, accelerated gradient, L-BFGS."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

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
    norm,
)
from fedadmm.core.rng import Key
from fedadmm.core.schedules import Schedule, at, check_floor, of_clients
from fedadmm.core.solvers.descent import descend
from fedadmm.core.solvers.local_loss import (
    LocalLoss,
    Objectives,
    OneObjective,
    OwnTerms,
    Stepper,
)


class _Vectors(NamedTuple):
    """What a step reads and writes; vectors are (D,) or (K, D), numbers may be (K, 1)."""

    params: Tensor
    lr: Tensor | float
    terms: OwnTerms | None
    velocity: Tensor | None


class SGDStepper(Stepper):
    """w <- w - lr (g + the gradient of the local problem's own terms), with optional momentum."""

    def __init__(self, loss: LocalLoss, lr: Tensor | float, momentum: float) -> None:
        self._objectives = loss.objectives
        self._momentum = momentum
        params = loss.objectives.workspace(loss.problem.start)
        velocity = torch.zeros_like(params) if momentum else None
        self._vectors = _Vectors(params, lr, OwnTerms.of(loss, lr), velocity)

    @property
    def params(self) -> Tensor:
        """The current iterate, live."""
        return self._vectors.params

    def step(self, rows: Any) -> Tensor:
        """One step on the given rows; the gradient of f_i."""
        params, lr, terms, velocity = self._vectors
        gradient = self._objectives.gradient(params, rows)
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
            chosen._objectives = self._objectives.select(clients.tolist())
        return chosen


def _add(into: Tensor, gradient: Tensor, factor: Tensor | float) -> None:
    """into += factor * gradient in place; a factor per client is a column."""
    if isinstance(factor, Tensor):
        into.addcmul_(gradient, factor)
    else:
        into.add_(gradient, alpha=factor)


class IterativeSolver(LocalSolver):
    """A solver that makes steps until its stopping rule or its budget ends it."""

    stacks: ClassVar[bool] = False
    """Whether its steppers work on a stack of clients too."""

    @abstractmethod
    def stepper(self, loss: LocalLoss, context: SolveContext) -> Stepper:
        """The solver at work on a local problem."""

    def solve(
        self,
        objective: Objective,
        problem: LocalProblem,
        stop: StoppingRule,
        key: Key,
        context: SolveContext = IN_NO_ROUND,
    ) -> tuple[LocalResult, SolveInfo]:
        """Run from the problem's start."""
        result, (info,) = self.descend(OneObjective(objective), problem, stop, [key], context)
        return result, info

    def descend(
        self,
        objectives: Objectives,
        problem: LocalProblem,
        stop: StoppingRule,
        keys: Sequence[Key],
        context: SolveContext,
    ) -> tuple[LocalResult, list[SolveInfo]]:
        """Solve for all clients of `objectives` at once."""
        make = partial(self.stepper, context=context)
        return descend(objectives, problem, stop, keys, context, make, self.batch_size)


@dataclass(frozen=True)
class _Rated(IterativeSolver):
    """A solver with a learning rate: a number, a schedule over rounds, or one number per client."""

    averages_gradients = True
    per_client = ("lr",)

    lr: Positive | Schedule | Sequence[Positive]

    def __post_init__(self) -> None:
        check_floor(self, "lr", self.lr)

    def rate(self, loss: LocalLoss, context: SolveContext) -> Tensor | float:
        """The learning rate of all who work, or a column of a stack's own ones."""
        start = loss.problem.start
        if isinstance(self.lr, Sequence) and start.ndim == 2:
            return of_clients(self.lr, context.clients, start[:, :1])
        return at(self.lr, context.round_index, context.clients[0])


@part("solver", "sgd")
class SGD(_Rated):
    """Mini-batch SGD with optional momentum; `batch_size=None` takes all rows.

    `lr` is a number, a schedule over rounds, or one number per client.
    """

    stacks = True

    batch_size: Count | None = 32
    momentum: Probability = 0.0

    def stepper(self, loss: LocalLoss, context: SolveContext) -> Stepper:
        """The fastest stepper for what is asked."""
        lr = self.rate(loss, context)
        plain = None
        if not self.momentum and not context.needs.mean_gradient:
            plain = loss.objectives.plain_stepper(loss, lr)
        return plain or SGDStepper(loss, lr, self.momentum)


@part("solver", "gradient-descent")
class GradientDescent(_Rated):
    """Full-batch gradient descent; one epoch is one step.

    `lr` is a number, a schedule over rounds, or one number per client.
    """

    stacks = True

    def stepper(self, loss: LocalLoss, context: SolveContext) -> Stepper:
        """That of SGD, without momentum."""
        return SGD(self.lr, batch_size=None).stepper(loss, context)


class _AcceleratedStepper(Stepper):
    """FISTA's extrapolation with the gradient restart of O'Donoghue and Candes."""

    def __init__(self, loss: LocalLoss, lr: float) -> None:
        self._params = loss.problem.start.clone()
        self._loss = loss
        self._lr = lr
        self._ahead = self._params.clone()
        self._t = 1.0

    @property
    def params(self) -> Tensor:
        return self._params

    def step(self, rows: Tensor | None) -> Tensor:
        own = self._loss.objectives.gradient(self._ahead, rows).clone()
        gradient = self._loss.complete(self._ahead, own)
        following = self._ahead - self._lr * gradient
        way = following - self._params
        if float((gradient * way).sum()) > 0:
            self._t = 1.0
        t = (1 + math.sqrt(1 + 4 * self._t**2)) / 2
        self._ahead = following + ((self._t - 1) / t) * way
        self._params, self._t = following, t
        return own


@part("solver", "accelerated-gradient")
class AcceleratedGradient(_Rated):
    """Full-batch Nesterov acceleration with restarts; one epoch is one step.

    `lr`, a number, a schedule over rounds, or one number per client, must not exceed
    1 / (L + weight).
    """

    def stepper(self, loss: LocalLoss, context: SolveContext) -> Stepper:
        """Nesterov's steps."""
        return _AcceleratedStepper(loss, float(self.rate(loss, context)))


class _LBFGSStepper(Stepper):
    """One iteration of torch.optim.LBFGS with a strong Wolfe line search per step."""

    def __init__(self, loss: LocalLoss, lr: float, history: int) -> None:
        assert isinstance(loss.objectives, OneObjective)  # it does not stack
        self._value = loss.objectives.value
        self._loss = loss
        self._variable = torch.nn.Parameter(loss.problem.start.clone(), requires_grad=True)
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
        self._tried = 0

    @property
    def params(self) -> Tensor:
        return self._variable.detach()

    def step(self, rows: Tensor | None) -> None:
        def closure() -> float:
            point = self.params
            self._variable.grad = self._loss.gradient(point)
            self._tried += 1
            return float(self._loss.complete_value(point, self._value(point)))

        if float(norm(self._loss.gradient(self.params))) > 0:
            self._optimizer.step(closure)  # type: ignore[no-untyped-call]

    def passes(self, stepped: float) -> float:
        """One for each step, and those of the line searches."""
        return stepped + self._tried


@part("solver", "lbfgs")
class LBFGS(IterativeSolver):
    """L-BFGS (`torch.optim.LBFGS`, strong Wolfe); one epoch is one iteration."""

    lr: Positive = 1.0
    history: Count = 10

    def stepper(self, loss: LocalLoss, context: SolveContext) -> Stepper:
        """Iterations with a line search."""
        if context.needs.mean_gradient:
            raise ParameterError("LBFGS: its steps have no mean gradient, but one was asked for")
        return _LBFGSStepper(loss, self.lr, self.history)
