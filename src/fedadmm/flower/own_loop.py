"""A training loop that is somebody's own as a local solver: its optimiser's steps are corrected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedadmm.core.errors import PairingError
from fedadmm.core.objectives.flat import FlatModule
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


class Correction:
    """Adds the local problem's terms to the gradients of every optimiser step, and counts them."""

    def __init__(self, flat: FlatModule, problem: LocalProblem) -> None:
        self._slots = flat.slots
        self._problem = problem
        self.steps = 0
        self.gradients = torch.zeros_like(flat.vector)

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Before a step: keep the raw gradient, then add the terms."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        shapes = [parameter.shape for parameter in trained]
        if shapes != [slot.shape for slot in self._slots]:
            raise PairingError(
                "the optimiser steps other parameters than the model's, in their order; make it "
                "with model.parameters() of the model that DropIn was given"
            )
        self.steps += 1
        for slot, parameter in zip(self._slots, trained, strict=True):
            part = slice(slot.begin, slot.end)
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self.gradients[part] += parameter.grad.reshape(-1).to(self.gradients)
            parameter.grad.add_(self._terms(part, parameter.detach()).to(parameter.grad))

    def _terms(self, part: slice, values: Tensor) -> Tensor:
        terms = torch.zeros_like(values)
        if self._problem.linear is not None:
            terms += self._problem.linear[part].view_as(values)
        if self._problem.centre is not None:
            weight = float(self._problem.weight)
            terms += weight * (values - self._problem.centre[part].view_as(values))
        return terms

    @contextmanager
    def active(self) -> Iterator[None]:
        """Every optimiser of this process is corrected inside."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        handle = register_optimizer_step_pre_hook(self)
        try:
            yield
        finally:
            handle.remove()


@dataclass(frozen=True)
class OwnLoop(LocalSolver):
    """A local solver that is somebody's own train function."""

    train: Callable[[dict[str, Tensor], int], Mapping[str, Tensor]] | None = None

    averages_gradients = True

    def solve(
        self,
        objective: Objective,
        problem: LocalProblem,
        stop: StoppingRule,
        key: Key,
        context: SolveContext = IN_NO_ROUND,
    ) -> tuple[LocalResult, SolveInfo]:
        assert self.train is not None
        flat = objective.flat
        assert flat is not None
        flat.load(problem.start)
        correction = Correction(flat, problem)
        state = {name: value.clone() for name, value in flat.module.state_dict().items()}
        with torch.enable_grad(), correction.active():
            returned = self.train(state, context.round_index + 1)
        if correction.steps == 0:
            raise PairingError(
                "the train function made no step of a torch optimiser, but must, because the "
                "method's terms are added to the gradients there"
            )
        flat.module.load_state_dict(dict(returned))
        mean = correction.gradients / correction.steps
        sentence, unknown = f"{correction.steps} steps of the app's own loop", float("nan")
        info = SolveInfo(correction.steps, unknown, unknown, sentence, unknown)
        return LocalResult(flat.vector.clone(), mean_gradient=mean), info
