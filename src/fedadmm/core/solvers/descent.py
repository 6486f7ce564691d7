"""The one loop that all iterative solvers share: epochs, batches, stopping, reporting.

It runs for one client and for a stack of clients alike.  All clients of a stack begin an epoch
together.  They are kept in order of falling work, so that those still at work are the first k of
the stack: a client that has fewer steps in this epoch, or has met its stopping rule, costs nothing
and no client waits for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.contracts import LocalProblem, LocalResult, norm
from fedadmm.core.local_work import SolveContext, SolveInfo
from fedadmm.core.rng import Key, derive
from fedadmm.core.solvers.local_loss import LocalLoss, Objectives, Stepper
from fedadmm.core.stopping import Progress, StoppingRule


class _Work(NamedTuple):
    """Local work of one client."""

    place: int
    """Position of the client in the results."""
    client: int
    key: Key
    size: int
    per_epoch: int
    budget: int

    def samples(self, steps: int, batch_size: int | None) -> int:
        """Return the number of samples in this many steps."""
        epochs, rest = divmod(steps, self.per_epoch)
        return epochs * self.size + min(rest * (batch_size or 0), self.size)


class Descent:
    """Active clients of a stack, and the results of those that have finished.

    The clients of a stack come in order of falling size.
    """

    def __init__(
        self,
        objectives: Objectives,
        problem: LocalProblem,
        stop: StoppingRule,
        keys: Sequence[Key],
        context: SolveContext,
        make: Callable[[LocalLoss], Stepper],
        batch_size: int | None,
    ) -> None:
        self._stop = stop
        self._context = context
        self._batch_size = batch_size
        self._work = []
        clients = zip(context.clients, keys, objectives.sizes, strict=True)
        for place, (client, key, size) in enumerate(clients):
            per_epoch = 1 if batch_size is None else -(-size // batch_size)
            budget = problem.steps
            if budget is None:
                budget = stop.budget(per_epoch, derive(key, "budget"), client)
            self._work.append(_Work(place, client, key, size, per_epoch, budget))
        self._all = self._work
        self._first = self._loss = LocalLoss(objectives, problem)
        self._steps = [0] * len(keys)
        self._asked = [0] * len(keys)
        self._reached = [False] * len(keys)
        self._accuracy = [float("nan")] * len(keys)
        start, needs = problem.start, context.needs
        self._start_gradient = None
        if needs.start_gradient:
            self._start_gradient = objectives.gradient(start).clone()
        self._own = None if context.own is None else context.own.expand_as(start)
        # The rule's reference, if it is not the start, whose gradient is known anyway.  Equality
        # decides, not identity, so that every engine counts the same gradients.
        self._reference_norm: Tensor | None = None
        point = self._own
        if stop.reference == "global" and stop.needs_gradient:
            assert context.theta is not None  # methods that may not send it are incompatible
            point = context.theta.expand_as(start)
        measures = stop.needs_gradient and stop.reference is not None
        if measures and point is not None and not torch.equal(point, start):
            self._asked = (point != start).any(dim=-1).reshape(-1).long().tolist()
            self._reference_norm = norm(self._loss.gradient(point))
        # Last, because a stepper may work in place where a model's gradients are taken.
        self._stepper = make(self._loss)
        self._params = torch.empty_like(start, memory_format=torch.contiguous_format)
        self._gradient_sum = torch.zeros_like(self._params) if needs.mean_gradient else None
        self._gradient_sums = torch.zeros_like(self._params) if needs.mean_gradient else None
        self._memory: tuple[Tensor, ...] | None = None

    def run(self) -> tuple[LocalResult, list[SolveInfo]]:
        """Make steps until the stopping rule or the budget ends every client's solve."""
        epoch = 0
        while self._end_finished(epoch):
            self._run_epoch(epoch)
            epoch += 1
        result = LocalResult(self._params, self._start_gradient, self._mean_gradient())
        needs, infos = self._context.needs, []
        sentences = {met: self._stop.sentence(met) for met in set(self._reached)}
        for place, work in enumerate(self._all):
            steps, sentence = self._steps[place], sentences[self._reached[place]]
            # A mean of no steps is one gradient too.
            asked = self._asked[place] + needs.start_gradient + (needs.mean_gradient and not steps)
            samples = work.samples(steps, self._batch_size)
            passes = self._stepper.passes(samples / work.size) + asked
            epochs, accuracy = steps / work.per_epoch, self._accuracy[place]
            infos.append(SolveInfo(steps, epochs, passes, sentence, accuracy))
        return result._replace(memory=self._memory), infos

    def _end_finished(self, epoch: int) -> bool:
        """Remove finished clients, and return whether clients are left."""
        stays, gone = list[int](), list[int]()
        for index, (work, met) in enumerate(zip(self._work, self._ask(), strict=True)):
            made = epoch * work.per_epoch
            (gone if met or made >= work.budget else stays).append(index)
            self._steps[work.place] = min(made, work.budget)
        if gone:
            self._keep_results(gone)
            if stays:
                self._keep(stays)
        return bool(stays)

    def _keep_results(self, gone: list[int]) -> None:
        """Store the results of finished clients at their positions."""
        places, memory = [self._work[index].place for index in gone], self._stepper.memory
        if places == list(range(len(self._all))):  # all clients, in order
            self._params, self._gradient_sums = self._stepper.result(), self._gradient_sum
            self._memory = memory
            return
        self._params[places] = self._stepper.params[gone]
        if memory is not None:
            if self._memory is None:
                self._memory = tuple(m.new_empty(len(self._all), m.shape[-1]) for m in memory)
            for into, one in zip(self._memory, memory, strict=True):
                into[places] = one[gone]
        if self._gradient_sum is not None and self._gradient_sums is not None:
            self._gradient_sums[places] = self._gradient_sum[gone]

    def _ask(self) -> list[bool]:
        """Return for each active client whether its stopping rule is met."""
        if not self._stop.needs_gradient:
            return [False] * len(self._work)
        self._arrange([work.size for work in self._work])
        params = self._stepper.params
        gradient_norm = norm(self._loss.gradient(params))
        if self._reference_norm is None:
            self._reference_norm = gradient_norm
        progress = Progress(
            gradient_norm,
            self._reference_norm,
            norm(params - (self._loss.problem.start if self._own is None else self._own)),
            self._loss.weight,
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

    def _run_epoch(self, epoch: int) -> None:
        """Make one pass over the data of all active clients, within their budgets."""
        size, objectives = self._batch_size, self._loss.objectives
        if size is None or (size >= max(objectives.sizes) and not objectives.draws_samples):
            self._arrange([work.size for work in self._work])
            self._step(len(self._work), None)
        else:
            left = [min(w.per_epoch, w.budget - self._steps[w.place]) for w in self._work]
            left = self._arrange(left)
            keys = [work.key for work in self._work]
            for clients, samples in self._loss.objectives.batches(keys, epoch, size, left):
                self._step(clients, samples)

    def _step(self, clients: int, samples: Any) -> None:
        whole = clients == len(self._work)
        stepper = self._stepper if whole else self._stepper.select(slice(clients))
        gradient = stepper.step(samples)
        if self._gradient_sum is not None:
            assert gradient is not None
            (self._gradient_sum if whole else self._gradient_sum[:clients]).add_(gradient)

    def _arrange(self, amounts: list[int]) -> list[int]:
        """Sort the active clients by decreasing amounts."""
        if any(a < b for a, b in itertools.pairwise(amounts)):
            order = sorted(range(len(amounts)), key=lambda index: -amounts[index])
            self._keep(order)
            return [amounts[index] for index in order]
        return amounts

    def _keep(self, order: list[int]) -> None:
        """Restrict the active clients to the given ones, in the given order."""
        index = torch.tensor(order, device=self._params.device)
        self._work = [self._work[position] for position in order]
        objectives = self._loss.objectives.select(order)
        self._loss = LocalLoss(objectives, trees.select(self._loss.problem, index))
        self._stepper = self._stepper.select(index)
        if self._gradient_sum is not None:
            self._gradient_sum = self._gradient_sum[index]
        if self._reference_norm is not None:
            self._reference_norm = self._reference_norm[index]
        if self._own is not None and self._stop.needs_gradient:
            self._own = self._own[index]

    def _mean_gradient(self) -> Tensor | None:
        """Return the mean gradient of all steps, or the gradient at the start without steps."""
        if self._gradient_sums is None:
            return None
        start = self._first.problem.start
        steps = self._params.new_tensor(self._steps).view(*start.shape[:-1], 1)
        if min(self._steps) > 0:
            return self._gradient_sums / steps
        own = self._first.objectives.gradient(start)
        return torch.where(steps > 0, self._gradient_sums / steps.clamp(min=1), own)
