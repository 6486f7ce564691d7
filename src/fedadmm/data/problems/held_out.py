"""The loss that fits a model, and what a parameter vector is worth on held-out rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedadmm.core.errors import DataError
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.objectives.losses import (
    Weighted,
    binary_cross_entropy,
    count_correct,
    cross_entropy,
    half_squared_error,
)
from fedadmm.core.objectives.model import Loss, ModelObjective, evaluation_parts, prepared
from fedadmm.core.problem import Evaluator, Metrics
from fedadmm.data.dataset import FederatedData, Prepare, Rows


def choose_loss(outputs: Tensor, num_classes: int | None, name: str) -> Loss:
    """The loss that fits a model's outputs for one row and the kind of targets."""
    width = outputs.shape[-1] if outputs.ndim == 2 else None
    if num_classes is None and width == 1:
        return half_squared_error
    if num_classes == 2 and width == 1:
        return binary_cross_entropy
    if num_classes is not None and width == num_classes:
        return cross_entropy
    wanted = "one number" if num_classes is None else f"{num_classes} scores"
    raise DataError(
        f"{name}: the model returns shape {tuple(outputs.shape)} for one row, but must return "
        f"{wanted} a row"
    )


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The mean loss and the accuracy of a vector on some rows, in evaluation mode.

    Metrics are `{prefix}_loss` and, for classes, `{prefix}_accuracy`; no rows, no metrics.
    """

    flat: FlatModule
    loss: Loss
    inputs: Tensor
    targets: Tensor
    prepare: Prepare | None = None
    prefix: str = "test"

    def __call__(self, params: Tensor) -> Metrics:
        """Evaluate in batches, so that memory stays bounded."""
        if len(self.targets) == 0:
            return {}
        live = self.flat.load(params)
        self.flat.module.eval()
        loss, correct = 0.0, 0
        with torch.no_grad():
            for part in evaluation_parts(self.inputs):
                targets = self.targets[part].to(live.device)
                inputs = prepared(self.inputs[part].to(live.device), self.prepare, self.flat)
                outputs = self.flat.module(inputs)
                loss += float(self.loss(outputs, targets)) * len(targets)
                correct += int(count_correct(outputs, targets))
        metrics = {f"{self.prefix}_loss": loss / len(self.targets)}
        if not self.targets.is_floating_point():
            metrics[f"{self.prefix}_accuracy"] = correct / len(self.targets)
        return metrics


@dataclass(frozen=True, eq=False)
class Split:
    """What the clients of a `FederatedData` share: its rows, one module around them, one loss."""

    data: FederatedData
    flat: FlatModule
    loss: Loss

    def objective(self, client: int) -> ModelObjective:
        """One client's loss, from views of its training rows."""
        inputs, targets = self.data.train(client)
        weights, loss = self.data.train_weights(client), self.loss
        if weights is not None:
            loss = Weighted(loss, classes=self.data.rows.num_classes is not None)
            targets = torch.stack([targets.to(weights), weights / weights.mean()], dim=1)
        return ModelObjective(self.flat, loss, inputs, targets, self.data.rows.prepare)

    def evaluation(self, validate: bool, tests: FederatedData | None, client: int) -> Evaluator:
        """What a client measures: on its validation rows, on its own test rows, or on both."""
        parts = []
        if validate:
            rows = self.data.validation(client)
            parts.append(self.held_out(rows, self.data.rows.prepare, "validation"))
        if tests is not None:
            parts.append(self.held_out(tests.train(client), tests.rows.prepare))
        return _Together(tuple(parts))

    def held_out(self, rows: Rows, prepare: Prepare | None, prefix: str = "test") -> HeldOut:
        """What a vector is worth on some rows."""
        return HeldOut(self.flat, self.loss, *rows, prepare, prefix)


@dataclass(frozen=True)
class _Together:
    """Several evaluations as one."""

    parts: tuple[HeldOut, ...]

    def __call__(self, params: Tensor) -> Metrics:
        return {name: value for part in self.parts for name, value in part(params).items()}
