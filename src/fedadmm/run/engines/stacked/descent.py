"""The loop of `fedadmm.core.solvers.descent` for many clients at once.

All clients of a stack begin an epoch together.  They are kept in order of falling work, so that
those still at work are the first k of the stack: a client that has fewer steps in this epoch, or
has met its stopping rule, costs nothing and is waited for by nobody.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.protocols import (
    LocalProblem,
    LocalResult,
    Progress,
    SolveContext,
    SolveInfo,
    StoppingRule,
    norm,
)
from fedadmm.core.rng import Key, derive
from fedadmm.core.schedules import at, of_clients
from fedadmm.core.solvers import SGD
from fedadmm.core.solvers.descent import (
    LocalLoss,
    asked_gradients,
    origin,
    reference_point,
    steps_per_epoch,
)
from fedadmm.run.engines.stacked.objective import StackedObjective
from fedadmm.run.engines.stacked.steppers import StackStepper, make_stepper


class _Work(NamedTuple):
    """What one client still has to do."""

    place: int
    """Its position in the results."""
    client: int
    key: Key
    size: int
    per_epoch: int
    budget: int


def solve_stack(
    objective: StackedObjective,
    problem: LocalProblem,
    stop: StoppingRule,
    keys: Sequence[Key],
    context: SolveContext,
    solver: SGD,
) -> tuple[LocalResult, list[SolveInfo]]:
    """Solve the local problems of clients that come in order of falling size."""
    descent = _Descent(objective, problem, stop, keys, context, solver)
    start_gradient = None
    if context.needs.start_gradient:
        start_gradient = objective.gradient(descent.loss.problem.start)
    epoch = 0
    while descent.end_finished():
        descent.run_epoch(epoch)
        epoch += 1
    mean_gradient = descent.mean_gradient(objective)
    return LocalResult(descent.params, start_gradient, mean_gradient), descent.infos()


class _Descent:
    """Clients at work, and the results of those that have finished."""

    def __init__(
        self,
        objective: StackedObjective,
        problem: LocalProblem,
        stop: StoppingRule,
        keys: Sequence[Key],
        context: SolveContext,
        solver: SGD,
    ) -> None:
        self._stop = stop
        self._context = context
        self._batch_size = solver.batch_size
        self._work = []
        clients = zip(context.clients, keys, objective.rows.sizes, strict=True)
        for place, (client, key, size) in enumerate(clients):
            per_epoch = steps_per_epoch(size, solver.batch_size)
            budget = stop.budget(per_epoch, derive(key, "budget"), client)
            self._work.append(_Work(place, client, key, size, per_epoch, budget))
        self._all = list(self._work)
        start = problem.start.expand(len(keys), -1)
        self.objective = objective
        self.loss = _loss(objective, problem._replace(start=start))
        self._stepper: StackStepper = make_stepper(
            objective,
            self.loss,
            _rate(solver, context, start),
            solver.momentum,
            context.needs.mean_gradient,
        )
        self.params = torch.empty_like(start, memory_format=torch.contiguous_format)
        wanted = context.needs.mean_gradient
        self._gradient_sum = torch.zeros_like(self.params) if wanted else None
        self._gradient_sums = torch.zeros_like(self.params) if wanted else None
        self._reference_norm: Tensor | None = None
        self._own = None if context.own is None else context.own.expand_as(start)
        self._asked = [0] * len(keys)
        if stop.needs_gradient:
            reference = reference_point(stop, self.loss.problem, context)
            if reference is not None:
                point = reference.expand_as(start)
                self._reference_norm = norm(self.loss.gradient(point))
                self._asked = (point != start).any(dim=-1).long().tolist()
        self._start = start
        self._steps = [0] * len(keys)
        self._rows = [0] * len(keys)
        self._reached = [False] * len(keys)
        self._accuracy = [float("nan")] * len(keys)

    def end_finished(self) -> bool:
        """Let those leave that met the rule or spent their budget; whether anybody stays."""
        reached = self._ask()
        stays = [
            not met and self._steps[work.place] < work.budget
            for work, met in zip(self._work, reached, strict=True)
        ]
        if not all(stays):
            gone = [index for index, stay in enumerate(stays) if not stay]
            places = torch.tensor([self._work[index].place for index in gone])
            self.params[places] = self._stepper.params[gone]
            if self._gradient_sum is not None and self._gradient_sums is not None:
                self._gradient_sums[places] = self._gradient_sum[gone]
            if any(stays):
                self._keep([index for index, stay in enumerate(stays) if stay])
            else:
                self._work = []
        return bool(self._work)

    def _ask(self) -> list[bool]:
        """The stopping rule's answers."""
        if not self._stop.needs_gradient:
            return [False] * len(self._work)
        self._arrange([work.size for work in self._work])
        params = self._stepper.params
        gradient_norm = norm(self.loss.gradient(params))
        if self._reference_norm is None:
            self._reference_norm = gradient_norm
        move = norm(params - origin(self._stop, self.loss, self._own))
        progress = Progress(
            gradient_norm,
            self._reference_norm,
            move,
            self.loss.weight,
            self._context.round_index,
            [work.client for work in self._work],
        )
        reached: list[bool] = self._stop.reached(progress).reshape(-1).tolist()
        for work, met, accuracy in zip(
            self._work, reached, gradient_norm.reshape(-1).tolist(), strict=True
        ):
            self._reached[work.place] = met
            self._asked[work.place] += 1
            self._accuracy[work.place] = accuracy
        return reached

    def run_epoch(self, epoch: int) -> None:
        """One pass over the data of everybody at work, or what their budgets leave of it."""
        size = self._batch_size
        if size is None or size >= max(self.objective.rows.sizes):
            self._arrange([work.size for work in self._work])
            self._step(len(self._work), None)
            left = [1] * len(self._work)
        else:
            left = [min(w.per_epoch, w.budget - self._steps[w.place]) for w in self._work]
            left = self._arrange(left)
            keys = [work.key for work in self._work]
            for batch in self.objective.rows.epoch(keys, epoch, size, left):
                self._step(batch.clients, batch)
        for work, steps in zip(self._work, left, strict=True):
            self._steps[work.place] += steps
            self._rows[work.place] += work.size if size is None else min(steps * size, work.size)

    def _step(self, clients: int, batch: Any) -> None:
        whole = clients == len(self._work)
        stepper = self._stepper if whole else self._stepper.select(slice(clients))
        gradient = stepper.step(batch)
        if self._gradient_sum is not None:
            assert gradient is not None
            self._gradient_sum[:clients] += gradient

    def _arrange(self, amounts: list[int]) -> list[int]:
        """Put the clients in order of falling amounts."""
        if any(a < b for a, b in itertools.pairwise(amounts)):
            order = sorted(range(len(amounts)), key=lambda index: -amounts[index])
            self._keep(order)
            return [amounts[index] for index in order]
        return amounts

    def _keep(self, order: list[int]) -> None:
        """Keep the given clients, in the given order."""
        index = torch.tensor(order, device=self.params.device)
        self._work = [self._work[position] for position in order]
        self.objective = self.objective.select(order)
        self.loss = _loss(self.objective, trees.select(self.loss.problem, index))
        self._stepper = self._stepper.select(index)
        if self._gradient_sum is not None:
            self._gradient_sum = self._gradient_sum[index]
        if self._reference_norm is not None:
            self._reference_norm = self._reference_norm[index]
        if self._own is not None and self._stop.needs_gradient:
            self._own = self._own[index]

    def mean_gradient(self, objective: StackedObjective) -> Tensor | None:
        """The mean of the gradients that the steps used; the one at the start without steps."""
        if self._gradient_sums is None:
            return None
        steps = self.params.new_tensor(self._steps).unsqueeze(1)
        if min(self._steps) > 0:
            return self._gradient_sums / steps
        own = objective.gradient(self._start)
        return torch.where(steps > 0, self._gradient_sums / steps.clamp(min=1), own)

    def infos(self) -> list[SolveInfo]:
        """How each solve went."""
        infos = []
        for place, work in enumerate(self._all):
            steps = self._steps[place]
            full = self._asked[place] + asked_gradients(self._context.needs, steps)
            passes = self._rows[place] / work.size + full
            sentence = self._stop.sentence(self._reached[place])
            infos.append(
                SolveInfo(steps, steps / work.per_epoch, passes, sentence, self._accuracy[place])
            )
        return infos


def _rate(solver: SGD, context: SolveContext, start: Tensor) -> Tensor | float:
    """The learning rate of all clients, or a column of their own ones."""
    if isinstance(solver.lr, Sequence):
        return of_clients(solver.lr, context.clients, start[:, :1])
    return at(solver.lr, context.round_index)


def _loss(objective: StackedObjective, problem: LocalProblem) -> LocalLoss:
    stacked: Any = objective  # a stack has batches where an objective has rows
    return LocalLoss(stacked, problem)
