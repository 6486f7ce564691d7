"""What modules of other libraries call their loss, for `BatchObjective`, and their metrics.

None of these libraries is imported here: a module that has what is asked for will do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fedadmm.core.errors import DataError


@dataclass(frozen=True)
class PairLoss:
    """`loss(outputs, targets)` on batches that are pairs of inputs and targets."""

    loss: Callable[[Any, Any], Tensor]

    def __call__(self, module: nn.Module, batch: Any) -> Tensor:
        """The loss of the module's outputs."""
        inputs, targets = batch
        return self.loss(module(inputs), targets)


def hugging_face_loss(module: nn.Module, batch: Any) -> Tensor:
    """`module(**batch).loss`: a model of transformers computes it where a batch has `labels`."""
    loss: Tensor | None = module(**batch).loss
    if loss is None:
        raise DataError(
            f"hugging_face_loss: {type(module).__name__} returns no loss for a batch of "
            f"{', '.join(batch)}, but must; it does where the batch has labels"
        )
    return loss


def lightning_loss(module: Any, batch: Any) -> Tensor:
    """What `training_step` returns; the module's optimisers, hooks and logs are not used."""
    if not module.automatic_optimization:
        raise DataError(
            f"lightning_loss: {type(module).__name__} has automatic_optimization=False, but must "
            "leave the steps to the solver"
        )
    with _logs(module):
        found = _step(module.training_step, batch)
    loss = found.get("loss") if isinstance(found, dict) else found
    if not isinstance(loss, Tensor):
        raise DataError(
            f"lightning_loss: training_step returns {found!r:.80}, expected the loss, or a "
            "dict with it"
        )
    return loss


def lightning_metrics(module: Any, batch: Any) -> dict[str, float]:
    """Metrics that `validation_step` logs, for `BatchMetrics`: means over the batch's samples."""
    with _logs(module) as logged:
        _step(module.validation_step, batch)
    if not logged:
        raise DataError(
            f"lightning_metrics: validation_step of {type(module).__name__} logs nothing, "
            "expected its metrics with self.log"
        )
    return {name: _number(name, value) for name, value in logged.items()}


def _step(step: Callable[..., Any], batch: Any) -> Any:
    """One step, with the batch's number where it is asked for, as Lightning does it."""
    wants_number = len(inspect.signature(step).parameters) > 1
    return step(batch, 0) if wants_number else step(batch)


@contextmanager
def _logs(module: Any) -> Iterator[dict[str, Any]]:
    """What the module logs inside; without a trainer Lightning would warn instead."""
    logged: dict[str, Any] = {}

    def log(name: str, value: Any, *args: Any, **options: Any) -> None:
        logged[name] = value

    module.__dict__["log"] = log
    try:
        yield logged
    finally:
        del module.__dict__["log"]


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DataError(
            f"lightning_metrics: {name}: got a {type(value).__name__}, expected one number, that "
            "of the batch"
        ) from None
