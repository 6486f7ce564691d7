"""SGD on a stack whose parameters are kept in blocks, one a layer's tensor."""

from __future__ import annotations

import copy
from typing import Protocol

from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.objectives.kernels import Sink
from fedadmm.core.solvers.descent import LocalLoss
from fedadmm.core.solvers.first_order import OwnTerms, SGDStepper
from fedadmm.run.engines.stacked.objective import NetworkCore, StackedObjective, joined
from fedadmm.run.engines.stacked.rows import Batch


class StackStepper(Protocol):
    """One solver at work on a stack of clients."""

    @property
    def params(self) -> Tensor:
        """The current iterates (K, D)."""

    def step(self, rows: Batch | None) -> Tensor | None:
        """Make one step; return the gradients of f_i that it used, unless nobody wanted them."""

    def select(self, clients: Tensor | slice) -> StackStepper:
        """The stepper of some clients: of the same memory (slice) or a copy."""


class BlockStepper:
    """Plain SGD with hand-written passes: gradients go straight into the parameters.

    A matrix product can only be accumulated into contiguous memory, so the layers' parameters
    are kept apart while the solve lasts.
    """

    def __init__(self, objective: StackedObjective, core: NetworkCore, loss: LocalLoss, lr: float):
        self._objective = objective
        self._core = core
        self._lr = lr
        self._terms = OwnTerms.of(loss, lr)
        self._blocks = [block.clone() for block in core.blocks(loss.problem.start)]

    @property
    def params(self) -> Tensor:
        """The current iterates (K, D), as a copy."""
        return joined(self._blocks)

    def step(self, rows: Batch | None) -> None:
        """One step on the given rows."""
        if rows is not None:
            self._accumulate(rows)
            return
        parts = self._objective.rows.full()
        if len(parts) == 1:
            self._accumulate(parts[0])
            return
        gradient = self._objective.gradient(self.params)
        for index, (block, slot) in enumerate(zip(self._blocks, self._core.slots, strict=True)):
            self._pull(index)
            block.sub_(gradient[:, slot.begin : slot.end].view_as(block), alpha=self._lr)

    def select(self, clients: Tensor | slice) -> BlockStepper:
        """The stepper of some clients: of the same memory (slice) or a copy."""
        chosen = copy.copy(self)
        chosen._blocks = [block[clients] for block in self._blocks]
        chosen._terms = trees.select(self._terms, clients)
        if isinstance(clients, Tensor):
            chosen._objective = self._objective.select(clients.tolist())
        return chosen

    def _accumulate(self, batch: Batch) -> None:
        before = None if self._terms is None else self._pull
        sink = Sink(self._blocks, -self._lr, keep=True, before=before)
        self._core.network.differentiate(self._blocks, *batch, sink)

    def _pull(self, index: int) -> None:
        if self._terms is not None:
            slot, block = self._core.slots[index], self._blocks[index]
            self._terms.pull(block.view(len(block), -1), slot.begin, slot.end)


def make_stepper(
    objective: StackedObjective,
    loss: LocalLoss,
    lr: Tensor | float,
    momentum: float,
    wants_gradient: bool,
) -> StackStepper:
    """The fastest stepper for what is asked; passes into blocks have one rate for all clients."""
    plain = not momentum and not wants_gradient
    if isinstance(objective.core, NetworkCore) and plain and not isinstance(lr, Tensor):
        return BlockStepper(objective, objective.core, loss, lr)
    return SGDStepper(loss, lr, momentum, wants_gradient)
