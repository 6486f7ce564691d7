"""One dataset stored client by client, so that handing a client its rows copies nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedadmm.core.errors import DataError, check_range
from fedadmm.data.dataset import Dataset
from fedadmm.data.partitions import Indices, Partition

Rows = tuple[Tensor, Tensor]
"""Inputs and targets."""


@dataclass(frozen=True, eq=False)
class FederatedData:
    """A dataset in the order of a partition: each client is a slice of `rows`.

    The first `train_sizes[i]` rows of client i are for training, the others for validation.
    """

    rows: Dataset
    partition: Partition
    train_sizes: Indices

    @classmethod
    def gather(
        cls, dataset: Dataset, partition: Partition, validation: float = 0.0
    ) -> FederatedData:
        """Sort the rows by client; a part `validation` of each client's rows is set aside.

        A client with a single row keeps it for training and has nothing to validate on.
        """
        check_range("problem", "validation", validation, 0.0, 1.0, open_high=True)
        if len(partition.indices) and int(partition.indices.max()) >= len(dataset):
            raise DataError(
                f"partition: names row {int(partition.indices.max())}, but {dataset.name} has only "
                f"{len(dataset)} rows"
            )
        aside = np.minimum(np.ceil(partition.sizes * validation), partition.sizes - 1)
        train_sizes = partition.sizes - aside.clip(min=0).astype(np.int64)
        return cls(dataset.take(partition.indices), partition, train_sizes)

    def __len__(self) -> int:
        return len(self.partition)

    def train(self, client: int) -> Rows:
        """The training rows of a client, as views."""
        begin = int(self.partition.offsets[client])
        return self._slice(begin, begin + int(self.train_sizes[client]))

    def validation(self, client: int) -> Rows:
        """The rows of a client that are kept from training, as views; there may be none."""
        begin = int(self.partition.offsets[client]) + int(self.train_sizes[client])
        return self._slice(begin, int(self.partition.offsets[client + 1]))

    def _slice(self, begin: int, end: int) -> Rows:
        return self.rows.inputs[begin:end], self.rows.targets[begin:end]

    def label_counts(self) -> NDArray[np.int64]:
        """How many rows of each label each client holds; shape (labels, clients)."""
        return count_labels(
            self.rows.labels, self.partition.owners, self.rows.num_classes, len(self)
        )

    def client_names(self) -> list[str]:
        """The natural clients' names, else their numbers."""
        groups = self.rows.groups
        if groups is None:
            return [str(client) for client in range(len(self))]
        first = self.partition.offsets[:-1]
        return [self.rows.group_names[group] for group in groups[first]]

    def share_memory(self) -> FederatedData:
        """Move the rows to shared memory, so that worker processes read the same bytes."""
        for tensor in (self.rows.inputs, self.rows.targets):
            tensor.share_memory_()  # type: ignore[no-untyped-call]
        return self


def count_labels(
    labels: NDArray[np.int64], owners: Indices, num_classes: int | None, clients: int
) -> NDArray[np.int64]:
    """The (labels, clients) table of counts, from one label and one owner a row."""
    classes = int(labels.max()) + 1 if num_classes is None else num_classes
    flat = np.bincount(labels * clients + owners, minlength=classes * clients)
    return flat.reshape(classes, clients)


def align(groups: Indices, chosen: Indices) -> Partition:
    """The rows of each chosen group, in order; a group without rows gets an empty client."""
    order = np.argsort(groups, kind="stable")
    sorted_groups = groups[order]
    begins = np.searchsorted(sorted_groups, chosen, "left")
    ends = np.searchsorted(sorted_groups, chosen, "right")
    parts = [order[begin:end] for begin, end in zip(begins, ends, strict=True)]
    offsets = np.concatenate([[0], np.cumsum(ends - begins)]).astype(np.int64)
    return Partition(np.concatenate(parts), offsets)
