"""The one loop that all iterative solvers share: epochs, batches, stopping, reporting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fedadmm.core.errors import PairingError
from fedadmm.core.objectives.closed_form import evaluation_gradient
from fedadmm.core.protocols import (
    LocalProblem,
    LocalResult,
    Needs,
    Objective,
    Progress,
    SolveContext,
    SolveInfo,
    StoppingRule,
    norm,
)
from fedadmm.core.rng import Key, derive, permutation


class LocalLoss:
    """L(w) = f_i(w) + <linear, w> + (weight/2) ||w - centre||^2 and its gradient.

    grad L(w) = grad f_i(w) + weight * w + offset, with offset = linear - weight * centre computed
    once; `offset` is None and `weight` 0.0 for the bare f_i.  A tensor of weights is positive.
    """

    def __init__(self, objective: Objective, problem: LocalProblem) -> None:
        self.objective = objective
        self.problem = problem
        self.weight = _number(problem.weight) if problem.centre is not None else 0.0

    @cached_property
    def offset(self) -> Tensor | None:
        """linear - weight * centre."""
        if self.problem.centre is None or _is_zero(self.weight):
            return self.problem.linear
        pull = -self.weight * self.problem.centre
        return pull if self.problem.linear is None else self.problem.linear + pull

    @cached_property
    def target(self) -> Tensor | None:
        """centre - linear / weight, the minimiser of the terms beside f_i; None without weight."""
        if self.problem.centre is None or _is_zero(self.weight):
            return None
        if self.problem.linear is None:
            return self.problem.centre
        return self.problem.centre - self.problem.linear / self.weight

    def gradient(self, params: Tensor) -> Tensor:
        """The gradient of `value` over all data as a new tensor, for measuring."""
        return self.complete(params, evaluation_gradient(self.objective, params))

    def complete(self, params: Tensor, gradient: Tensor) -> Tensor:
        """From the gradient of f_i to the gradient of L, as a new tensor."""
        if _is_zero(self.weight):
            return gradient.clone() if self.offset is None else gradient + self.offset
        total = gradient + self.weight * params
        return total if self.offset is None else total.add_(self.offset)

    def value(self, params: Tensor) -> Tensor:
        """L up to the constant (weight/2) ||centre||^2."""
        total = self.objective.value(params)
        if self.offset is not None:
            total = total + (self.offset * params).sum()
        return total + (self.weight * params.square()).sum() / 2


def _number(weight: Tensor | float) -> Tensor | float:
    """A weight that all clients share as a plain number, which is faster to work with."""
    return float(weight) if isinstance(weight, Tensor) and weight.numel() == 1 else weight


def _is_zero(weight: Tensor | float) -> bool:
    return not isinstance(weight, Tensor) and weight == 0.0


class Stepper(Protocol):
    """One solver at work on one local problem."""

    @property
    def params(self) -> Tensor:
        """The current iterate, live."""

    @property
    def extra_gradients(self) -> int:
        """The full gradients evaluated so far besides the one of every step."""

    def step(self, rows: Tensor | None) -> Tensor | None:
        """Make one step; return the gradient of f_i that it used, unless nobody wanted it."""


def batches(samples: int, batch_size: int | None, key: Key, epoch: int) -> Iterator[Tensor | None]:
    """The rows of one epoch's mini-batches; None stands for all rows."""
    if batch_size is None or batch_size >= samples:
        yield None
        return
    yield from torch.split(permutation(key, epoch, samples), batch_size)


def steps_per_epoch(samples: int, batch_size: int | None) -> int:
    """How many mini-batches one epoch has; the last one may be smaller."""
    return 1 if batch_size is None else -(-samples // batch_size)


def descend(
    objective: Objective,
    problem: LocalProblem,
    stop: StoppingRule,
    key: Key,
    context: SolveContext,
    make: Callable[[LocalLoss], Stepper],
    batch_size: int | None,
) -> tuple[LocalResult, SolveInfo]:
    """Run a stepper until its stopping rule or its budget ends it."""
    loss, needs = LocalLoss(objective, problem), context.needs
    per_epoch = steps_per_epoch(objective.num_samples, batch_size)
    (client,) = context.clients
    budget = stop.budget(per_epoch, derive(key, "budget"), client)
    start_gradient = objective.gradient(problem.start).clone() if needs.start_gradient else None
    gradient_sum = torch.zeros_like(problem.start) if needs.mean_gradient else None
    watch = _Watch(loss, stop, context)
    stepper = make(loss)
    steps, epoch, rows_seen = 0, 0, 0
    while not watch.reached(stepper.params) and steps < budget:
        for rows in batches(objective.num_samples, batch_size, key, epoch):
            gradient = stepper.step(rows)
            if gradient_sum is not None:
                assert gradient is not None
                gradient_sum.add_(gradient)
            steps += 1
            rows_seen += objective.num_samples if rows is None else len(rows)
            if steps == budget:
                break
        epoch += 1
    mean_gradient = None
    if gradient_sum is not None:
        mean_gradient = gradient_sum.div_(steps) if steps else objective.gradient(problem.start)
        mean_gradient = mean_gradient.clone()
    result = LocalResult(stepper.params.clone(), start_gradient, mean_gradient)
    full = watch.gradients + stepper.extra_gradients + asked_gradients(needs, steps)
    passes = rows_seen / objective.num_samples + full
    return result, SolveInfo(steps, steps / per_epoch, passes, watch.sentence(), watch.accuracy)


def asked_gradients(needs: Needs, steps: int) -> int:
    """The full gradients taken because the method needs them: a mean of no steps is one too."""
    return needs.start_gradient + (needs.mean_gradient and steps == 0)


def reference_point(
    stop: StoppingRule, problem: LocalProblem, context: SolveContext
) -> Tensor | None:
    """Where a rule takes its reference norm, if not at the start, whose gradient is known anyway.

    Equality decides, not identity, so that every engine counts the same gradients.
    """
    point = context.own if stop.reference == "own" else None
    if stop.reference == "global":
        point = context.theta
        assert point is not None  # pairing refuses methods that do not always send it
    if point is None or torch.equal(point.expand_as(problem.start), problem.start):
        return None
    return point


def origin(stop: StoppingRule, loss: LocalLoss, own: Tensor | None) -> Tensor:
    """Where a rule measures the way from."""
    if stop.origin == "own":
        return loss.problem.start if own is None else own
    if loss.target is None:
        raise PairingError(
            f"{type(stop).__name__}: origin is {stop.origin!r}, but the local problem has no "
            "quadratic term, and so is not the prox of anything"
        )
    return loss.target


class _Watch:
    """Asks the stopping rule between epochs and remembers the accuracy it saw last."""

    def __init__(self, loss: LocalLoss, stop: StoppingRule, context: SolveContext) -> None:
        self._loss = loss
        self._stop = stop
        self._context = context
        self._reference_norm: Tensor | None = None
        self._reached = False
        self.accuracy = float("nan")
        self.gradients = 0
        """The full gradients evaluated so far."""

    def reached(self, params: Tensor) -> bool:
        if not self._stop.needs_gradient:
            return False
        if self._reference_norm is None:
            reference = reference_point(self._stop, self._loss.problem, self._context)
            if reference is not None:
                point = params.clone()
                self._reference_norm = norm(self._loss.gradient(reference))
                self.gradients += 1
                params.copy_(point)  # a model's gradient elsewhere moved the live vector there
        gradient_norm = norm(self._loss.gradient(params))
        self.gradients += 1
        if self._reference_norm is None:
            self._reference_norm = gradient_norm
        move = norm(params - origin(self._stop, self._loss, self._context.own))
        progress = Progress(
            gradient_norm,
            self._reference_norm,
            move,
            self._loss.weight,
            self._context.round_index,
            self._context.clients,
        )
        self.accuracy = float(gradient_norm)
        self._reached = bool(self._stop.reached(progress))
        return self._reached

    def sentence(self) -> str:
        return self._stop.sentence(self._reached)
