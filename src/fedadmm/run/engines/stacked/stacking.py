"""From clients to a stack: which jobs can run stacked, and how their objectives are joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedadmm.core.errors import PairingError
from fedadmm.core.objectives.closed_form import LeastSquares, LogisticRegression, Quadratic
from fedadmm.core.objectives.model import ModelObjective
from fedadmm.core.solvers.first_order import IterativeSolver
from fedadmm.run.client import Job
from fedadmm.run.engines.stacked.objective import (
    Core,
    LeastSquaresCore,
    LogisticCore,
    ModuleCore,
    NetworkCore,
    QuadraticCore,
    StackedObjective,
)
from fedadmm.run.engines.stacked.rows import Batch, StackedRows

Stackable = Quadratic | LeastSquares | LogisticRegression | ModelObjective
KINDS = (Quadratic, LeastSquares, LogisticRegression, ModelObjective)


def refusal(job: Job) -> str | None:
    """Why a job's clients cannot run stacked, or None when they can."""
    stacks = isinstance(job.solver, IterativeSolver) and job.solver.stacks
    if job.algorithm.needs.local_solve and not stacks:
        return (
            f"the solver is {type(job.solver).__name__}, but must be SGD, DPSGD or GradientDescent"
        )
    client: Any = job.problem.clients[0]
    if type(client) not in KINDS:
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        return f"the clients' objectives are {type(client).__name__}, but must be one of {kinds}"
    if not isinstance(client, ModelObjective):
        return None
    if client.flat.buffers() is not None:
        return "the model has buffers, but must have none (BatchNorm statistics do not stack)"
    if client.is_random:
        return "the model draws random numbers in training, but must not (dropout does not stack)"
    return _trial(client, job.initial)


def _trial(client: ModelObjective, initial: Tensor) -> str | None:
    """Whether torch.func can run the model, and the loss of two rows is the mean of theirs."""
    core = _model_core(client)
    if isinstance(core, NetworkCore):
        return None
    rows = torch.arange(min(2, client.num_samples), device=initial.device)
    inputs, targets = client.prepared(client.inputs[rows]), client.targets[rows]
    batch = Batch(inputs.unsqueeze(0), targets.unsqueeze(0), 1.0 / len(rows))
    try:
        found = core.gradient(initial.unsqueeze(0), batch)[0]
    except Exception as error:  # whatever a user's module does under vmap
        return f"the model does not run under torch.func.vmap ({_first_line(error)})"
    expected = client.gradient(initial, rows)
    precision = torch.finfo(initial.dtype).eps ** 0.5
    scale = float(expected.abs().max())
    if not torch.allclose(found, expected, rtol=precision, atol=precision * scale):
        return "the loss of some rows is not the mean of the rows' losses, but must be"
    return None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _model_core(client: ModelObjective) -> Core:
    network = client.flat.network(client.loss)
    if network is not None and network.stacks and network.accepts(client.inputs, client.targets):
        return NetworkCore(network, client.flat.slots)
    return ModuleCore(client.flat, client.loss)


class Stacker:
    """Joins clients' objectives; all of them must be of the first one's kind."""

    def __init__(self, job: Job) -> None:
        self._dtype = job.initial.dtype
        self._first: Any = job.problem.clients[0]
        self._core = self._make_core()

    def _make_core(self) -> Core:
        if isinstance(self._first, ModelObjective):
            return _model_core(self._first)
        if isinstance(self._first, LeastSquares):
            return LeastSquaresCore()
        return LogisticCore() if isinstance(self._first, LogisticRegression) else QuadraticCore()

    def join(self, clients: Sequence[int], objectives: Sequence[Any]) -> StackedObjective:
        """The stack of these clients' objectives, in the given order."""
        for client, objective in zip(clients, objectives, strict=True):
            self._check(client, objective)
        if isinstance(self._first, ModelObjective):
            rows = StackedRows.gather([(o.inputs, o.targets) for o in objectives], self._dtype)
            return StackedObjective(self._core, rows.prepared(self._first.prepared))
        if isinstance(self._first, Quadratic):
            parts = [(o.A.unsqueeze(0), o.b.unsqueeze(0)) for o in objectives]
            return StackedObjective(self._core, StackedRows.gather(parts, self._dtype))
        rows = StackedRows.gather([(o.features, o.targets) for o in objectives], self._dtype)
        ridges = rows.column([o.ridge for o in objectives])
        return StackedObjective(self._core, rows, ridges if bool(ridges.any()) else None)

    def _check(self, client: int, objective: Any) -> None:
        same = type(objective) is type(self._first)
        if same and isinstance(objective, ModelObjective):
            same = (
                objective.flat is self._first.flat
                and objective.loss == self._first.loss
                and objective.prepare == self._first.prepare
            )
        if not same:
            raise PairingError(
                f"Vectorised: client {client} has another kind of objective, module, loss or "
                "preparation than client 0, but all clients must share them"
            )
