"""Conversion of torch datasets, Hugging Face datasets and partitioners to `Dataset`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset, TensorDataset

from fedadmm.core.errors import DataError
from fedadmm.data.dataset import Dataset
from fedadmm.data.loaders.tabular import Kind, make_dataset


def from_torch(
    clients: Sequence[TorchDataset[Any]],
    *,
    num_classes: int | None = None,
    names: Sequence[str] | None = None,
) -> Dataset:
    """Convert torch datasets of (input, target) pairs, each of which becomes a natural client.

    Args:
        clients: One dataset per client.
        num_classes: The number of classes; None if targets are numbers for a regression.
        names: One name per client; by default numbered.

    Raises:
        DataError: A dataset is empty, or shapes or numbers of names do not match.
    """
    if not clients:
        raise DataError("from_torch: no datasets, but at least one is needed")
    parts = [_stack(index, dataset) for index, dataset in enumerate(clients)]
    shapes = {tuple(inputs.shape[1:]) for inputs, _ in parts}
    if len(shapes) > 1:
        raise DataError(f"from_torch: datasets have inputs of different shapes {sorted(shapes)}")
    targets = torch.cat([targets for _, targets in parts])
    labels = tuple(names) if names is not None else tuple(f"client {i}" for i in range(len(parts)))
    if len(labels) != len(parts):
        raise DataError(f"from_torch: {len(labels)} names for {len(parts)} datasets")
    return Dataset(
        torch.cat([inputs for inputs, _ in parts]),
        targets.to(torch.float32) if num_classes is None else targets.to(torch.int64),
        num_classes,
        np.repeat(np.arange(len(parts)), [len(inputs) for inputs, _ in parts]),
        labels,
        name="torch datasets",
    )


def _stack(index: int, dataset: TorchDataset[Any]) -> tuple[Tensor, Tensor]:
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        inputs, targets = dataset.tensors
    else:
        pairs = [dataset[row] for row in range(len(dataset))]  # type: ignore[arg-type]
        if not pairs:
            raise DataError(f"from_torch: dataset {index} is empty")
        try:
            inputs = torch.stack([torch.as_tensor(pair[0]) for pair in pairs])
            targets = torch.stack([torch.as_tensor(pair[1]) for pair in pairs])
        except (TypeError, ValueError, RuntimeError, IndexError, KeyError) as error:
            raise DataError(
                f"from_torch: dataset {index} does not give (input, target) pairs of one shape "
                f"({error})"
            ) from None
    if len(inputs) == 0:
        raise DataError(f"from_torch: dataset {index} is empty")
    return inputs, targets


def from_hugging_face(
    dataset: Any,
    *,
    inputs: str | Sequence[str],
    target: str,
    client: str | None = None,
    kind: Kind = "classes",
) -> Dataset:
    """Convert a Hugging Face `datasets.Dataset`.

    The package `datasets` is not imported: any object with `column_names` and `with_format` works.

    Args:
        dataset: One split of a Hugging Face data set.
        inputs: One column of arrays or images, or several columns of numbers.
        target: The column of targets.
        client: The column of natural clients; None without natural clients.
        kind: Whether targets are class names ("classes") or numbers for a regression ("numbers").

    Raises:
        DataError: A column is missing, ragged or not numeric.
    """
    if not hasattr(dataset, "column_names") or not hasattr(dataset, "with_format"):
        raise DataError(
            f"from_hugging_face: got {type(dataset).__name__}, but needs a datasets.Dataset "
            "(of a DatasetDict, pick one split)"
        )
    several = [inputs] if isinstance(inputs, str) else list(inputs)
    wanted = [*several, target, *([client] if client else [])]
    missing = [name for name in wanted if name not in dataset.column_names]
    if missing:
        raise DataError(
            f"from_hugging_face: no column {', '.join(missing)} (there are "
            f"{', '.join(dataset.column_names)})"
        )
    view = dataset.with_format("numpy")
    columns = {name: _column(view, name) for name in wanted}
    if isinstance(inputs, str):
        rows = columns[inputs]
        rows = rows[:, None] if rows.ndim == 1 else rows
    else:
        rows = np.stack([columns[name] for name in several], axis=1)
    if rows.dtype.kind not in "uifb":
        raise DataError(f"from_hugging_face: {inputs!r} holds {rows.dtype}, expected numbers")
    if rows.dtype != np.uint8:
        rows = rows.astype(np.float32)
    return make_dataset(
        rows, columns[target], columns[client] if client else None, kind, "Hugging Face dataset"
    )


def _column(view: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        return np.stack([np.asarray(value) for value in view[name]])
    except ValueError as error:
        raise DataError(f"from_hugging_face: column {name!r} is ragged ({error})") from None


class _CombinedPartitions:
    """Concatenation of the partitions of a partitioner, with a column of partition ids."""

    NUMBER = "the number of the partition"

    def __init__(self, partitions: Sequence[Any]) -> None:
        self.partitions = partitions
        self.column_names = [*partitions[0].column_names, self.NUMBER]

    def with_format(self, kind: str) -> _CombinedPartitions:
        return _CombinedPartitions([one.with_format(kind) for one in self.partitions])

    def __getitem__(self, name: str) -> list[Any]:
        if name == self.NUMBER:
            first = self.column_names[0]
            return [i for i, one in enumerate(self.partitions) for _ in one[first]]
        return [value for one in self.partitions for value in one[name]]


def from_partitioner(
    partitioner: Any, *, inputs: str | Sequence[str], target: str, kind: Kind = "classes"
) -> Dataset:
    """Convert the partitions of a Flower Datasets partitioner, each of which is a natural client.

    The package `flwr-datasets` is not imported.

    Args:
        partitioner: Any object with `num_partitions` and `load_partition(i)`.
        inputs: As in `from_hugging_face`.
        target: As in `from_hugging_face`.
        kind: As in `from_hugging_face`.
    """
    for needed in ("num_partitions", "load_partition"):
        if not hasattr(partitioner, needed):
            raise DataError(
                f"from_partitioner: got {type(partitioner).__name__}, which has no {needed}"
            )
    count = range(partitioner.num_partitions)
    rows = _CombinedPartitions([partitioner.load_partition(i) for i in count])
    return from_hugging_face(rows, inputs=inputs, target=target, client=rows.NUMBER, kind=kind)
