"""The loss that fits a model, and what a parameter vector is worth on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedadmm.data.dataset import Prepare
from fedadmm.data.federated import FederatedData, Rows
from fedadmm.errors import DataError
from fedadmm.flat import FlatModule
from fedadmm.losses import (
    binary_cross_entropy,
    count_correct,
    cross_entropy,
    half_squared_error,
)
from fedadmm.objective import Loss, ModelObjective, evaluation_parts
from fedadmm.protocols import Evaluator, Metrics, Objective


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
                inputs = self.inputs[part].to(live.device)
                if self.prepare is not None:
                    inputs = self.prepare(inputs)
                outputs = self.flat.module(_in_precision_of(live, inputs))
                loss += float(self.loss(outputs, targets)) * len(targets)
                correct += int(count_correct(outputs, targets))
        metrics = {f"{self.prefix}_loss": loss / len(self.targets)}
        if not self.targets.is_floating_point():
            metrics[f"{self.prefix}_accuracy"] = correct / len(self.targets)
        return metrics


def _in_precision_of(live: Tensor, inputs: Tensor) -> Tensor:
    return inputs.to(live.dtype) if inputs.is_floating_point() else inputs


class DataClients(Sequence[Objective]):
    """The clients of a `FederatedData`: made when asked for, from views, around one module."""

    def __init__(self, data: FederatedData, flat: FlatModule, loss: Loss) -> None:
        self.data = data
        self.flat = flat
        self.loss = loss

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        inputs, targets = self.data.train(index % len(self))
        return ModelObjective(self.flat, self.loss, inputs, targets, self.data.rows.prepare)


class ClientEvaluations(Sequence[Evaluator]):
    """One evaluator a client: on its validation rows, its own test rows, or both."""

    def __init__(
        self, clients: DataClients, validate: bool, tests: FederatedData | None = None
    ) -> None:
        self._clients = clients
        self._validate = validate
        self._tests = tests

    def __len__(self) -> int:
        return len(self._clients)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        client, parts = index % len(self), []
        if self._validate:
            parts.append(self._evaluation(self._clients.data.validation(client), "validation"))
        if self._tests is not None:
            parts.append(self._evaluation(self._tests.train(client), "test"))
        return _Together(tuple(parts))

    def _evaluation(self, rows: Rows, prefix: str) -> HeldOut:
        clients = self._clients
        return HeldOut(clients.flat, clients.loss, *rows, clients.data.rows.prepare, prefix)


@dataclass(frozen=True)
class _Together:
    """Several evaluations as one."""

    parts: tuple[HeldOut, ...]

    def __call__(self, params: Tensor) -> Metrics:
        return {name: value for part in self.parts for name, value in part(params).items()}
