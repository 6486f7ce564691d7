"""Data sets in memory: inputs and targets with the natural client of each sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedadmm.core.errors import DataError, ParameterError
from fedadmm.core.parts import checked_arguments
from fedadmm.core.rng import derive, numpy_generator
from fedadmm.core.validation import Probability, check
from fedadmm.data.partitions import Indices, Partition

Prepare = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Normalise:
    """Convert stored pixels to (pixel / scale - mean) / std, as float32.

    Args:
        mean: One number, or one per channel (the second dimension).
        std: As many numbers as `mean`.
        scale: The largest stored value.
        invert: Whether to convert dark ink on white paper to bright ink on black, as in MNIST.

    Raises:
        ParameterError: `mean` and `std` differ in length, or `std` or `scale` is not positive.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 255.0
    invert: bool = False

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ParameterError(
                f"Normalise: mean: got {self.mean} and std {self.std}, expected equal lengths"
            )
        if min(self.std) <= 0 or self.scale <= 0:
            raise ParameterError(
                f"Normalise: std: got {self.std} and scale {self.scale}, expected > 0"
            )

    def __call__(self, batch: Tensor) -> Tensor:
        """Return a normalised batch, with one multiplication and one addition per pixel."""
        sign = -1.0 if self.invert else 1.0
        offset = 1.0 if self.invert else 0.0
        slope = [sign / (self.scale * s) for s in self.std]
        shift = [(offset - m) / s for m, s in zip(self.mean, self.std, strict=True)]
        if len(slope) == 1:
            return batch.to(torch.float32).mul(slope[0]).add_(shift[0])
        shape = (1, -1) + (1,) * (batch.ndim - 2)
        factors = torch.tensor(slope, device=batch.device).view(shape)
        return (
            batch.to(torch.float32)
            .mul(factors)
            .add_(torch.tensor(shift, device=batch.device).view(shape))
        )


def _kind(values: object) -> str:
    """Return the class of a value, with its dtype if it has one."""
    dtype = getattr(values, "dtype", None)
    return f"{type(values).__name__}" + (f" of {dtype}" if dtype is not None else "")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples with their targets.

    Args:
        inputs: The stored samples, along the first dimension.
        targets: One target per sample: int64 class labels, or numbers for a regression.
        num_classes: The number of classes; None for a regression.
        groups: The natural client (writer, hospital, speaker) of each sample, as an index into
            `group_names`; None without natural clients.
        group_names: The names of the natural clients.
        prepare: Function from stored samples to the model's input; None for the identity.
        name: The name of the data in error messages.
        preparation: Description of the preparation (see `fedadmm.data.preparation`).
        weights: The weight of each sample in its client's loss; None for equal weights.
        class_names: The names of the classes, if any.

    Raises:
        DataError: The parts do not fit together, or contain NaN or infinity.
    """

    inputs: Tensor
    targets: Tensor
    num_classes: int | None = None
    groups: NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()
    prepare: Prepare | None = None
    name: str = "data"
    preparation: Mapping[str, Any] | None = None
    weights: Tensor | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part, values in (("inputs", self.inputs), ("targets", self.targets)):
            if not isinstance(values, Tensor):
                raise DataError(
                    f"{self.name}: {part}: got {_kind(values)}, expected a tensor, as "
                    "torch.as_tensor makes of an array"
                )
        samples = len(self.inputs)
        if samples == 0:
            raise DataError(f"{self.name}: holds no samples, but at least one is needed")
        if len(self.targets) != samples:
            raise DataError(
                f"{self.name}: {samples} inputs and {len(self.targets)} targets, but there must be "
                "one target an input"
            )
        for part, values in (("inputs", self.inputs), ("targets", self.targets)):
            if values.is_floating_point() and not bool(torch.isfinite(values).all()):
                raise DataError(f"{self.name}: {part} hold a NaN or an infinity")
        self._check_labels()
        self._check_groups()
        weights = self.weights
        if weights is not None and (weights.shape != (samples,) or not bool((weights > 0).all())):
            raise DataError(
                f"{self.name}: weights must hold a number > 0 for each of {samples} samples"
            )

    def _check_labels(self) -> None:
        if self.num_classes is None:
            return
        if self.targets.dtype != torch.int64 or self.targets.ndim != 1:
            raise DataError(
                f"{self.name}: class labels are {self.targets.dtype} of shape "
                f"{tuple(self.targets.shape)}, expected int64 of shape (samples,)"
            )
        low, high = int(self.targets.min()), int(self.targets.max())
        if low < 0 or high >= self.num_classes:
            raise DataError(
                f"{self.name}: labels run from {low} to {high}, but must lie in "
                f"0 … {self.num_classes - 1}"
            )

    def _check_groups(self) -> None:
        if self.groups is None:
            return
        if not isinstance(self.groups, np.ndarray) or self.groups.dtype.kind not in "iu":
            raise DataError(
                f"{self.name}: groups: got {_kind(self.groups)}, expected an array of whole "
                "numbers that index group_names, as np.unique(groups, return_inverse=True) gives"
            )
        if self.groups.shape != (len(self),):
            raise DataError(
                f"{self.name}: groups must hold one number for each of {len(self)} samples"
            )
        low, high = int(self.groups.min()), int(self.groups.max())
        if low < 0 or high >= len(self.group_names):
            raise DataError(
                f"{self.name}: groups run from {low} to {high}, but {len(self.group_names)} group "
                "names are given"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class labels as an array; a DataError for a regression."""
        if self.num_classes is None:
            raise DataError(f"{self.name}: has no class labels, because it is a regression")
        labels: NDArray[np.int64] = self.targets.numpy()
        return labels

    def take(self, samples: NDArray[np.int64]) -> Dataset:
        """Return a copy of the samples with the given indices, in that order."""
        index = torch.from_numpy(np.ascontiguousarray(samples))
        groups = None if self.groups is None else self.groups[samples]
        weights = None if self.weights is None else self.weights[index]
        inputs, targets = self.inputs[index], self.targets[index]
        return replace(self, inputs=inputs, targets=targets, groups=groups, weights=weights)

    def prepared(self) -> Dataset:
        """Return the data set with `prepare` applied to all samples at once."""
        if self.prepare is None:
            return self
        return replace(self, inputs=self.prepare(self.inputs), prepare=None)


class TrainTest(NamedTuple):
    """Training and test samples; `test` is None without a test set."""

    train: Dataset
    test: Dataset | None = None


@checked_arguments
def hold_out(samples: Dataset, fraction: Probability = 0.2, seed: int = 0) -> TrainTest:
    """Hold out a random fraction of the samples, of each natural client if there are any.

    A client with a single sample keeps it for training.

    Args:
        samples: The samples to split.
        fraction: The held-out fraction; 0 holds out nothing.
        seed: The seed of the choice.

    Raises:
        DataError: No client has two samples.
    """
    if fraction == 0:
        return TrainTest(samples)
    groups = np.zeros(len(samples), np.int64) if samples.groups is None else samples.groups
    shuffled = numpy_generator(derive(seed, "hold-out")).permutation(len(samples))
    order = shuffled[np.argsort(groups[shuffled], kind="stable")]
    sizes = np.bincount(groups)
    begins = np.cumsum(sizes) - sizes
    rank = np.arange(len(samples)) - np.repeat(begins, sizes)
    aside = np.minimum(np.ceil(sizes * fraction), np.maximum(sizes - 1, 0))
    test = rank < np.repeat(aside, sizes)
    if not bool(test.any()):
        raise DataError(f"{samples.name}: no client has two samples, so that none can be held out")
    return TrainTest(samples.take(np.sort(order[~test])), samples.take(np.sort(order[test])))


Samples = tuple[Tensor, Tensor]
"""A pair of inputs and targets."""


@dataclass(frozen=True, eq=False)
class FederatedData:
    """A data set sorted by client, so that each client is a slice of `samples`.

    The first `train_sizes[i]` samples of client i are for training, the others for validation.
    """

    samples: Dataset
    partition: Partition
    train_sizes: Indices

    @classmethod
    def gather(
        cls, dataset: Dataset, partition: Partition, validation: float = 0.0
    ) -> FederatedData:
        """Sort the samples of a data set by client.

        Args:
            dataset: The samples.
            partition: The samples of each client.
            validation: The fraction of each client's samples for validation.  A client with a
                single sample has no validation sample.

        Raises:
            DataError: The partition contains an index beyond the data set.
        """
        check("problem", "validation", validation, Probability)
        if len(partition.indices) and int(partition.indices.max()) >= len(dataset):
            raise DataError(
                f"partition: names sample {int(partition.indices.max())}, but {dataset.name} has "
                f"only {len(dataset)} samples"
            )
        aside = np.minimum(np.ceil(partition.sizes * validation), partition.sizes - 1)
        train_sizes = partition.sizes - aside.clip(min=0).astype(np.int64)
        return cls(dataset.take(partition.indices), partition, train_sizes)

    def __len__(self) -> int:
        return len(self.partition)

    def train(self, client: int) -> Samples:
        """Return the training samples of a client, as views."""
        begin = int(self.partition.offsets[client])
        end = begin + int(self.train_sizes[client])
        return self.samples.inputs[begin:end], self.samples.targets[begin:end]

    def train_masses(self) -> Tensor:
        """Return the number of each client's training samples, or the sum of their weights."""
        weights = self.samples.weights
        if weights is None:
            return torch.from_numpy(self.train_sizes)
        slices = zip(self.partition.offsets, self.train_sizes, strict=False)
        return torch.stack([weights[begin : begin + size].sum() for begin, size in slices])

    def validation(self, client: int) -> Samples:
        """Return the validation samples of a client, as views; they may be empty."""
        begin = int(self.partition.offsets[client]) + int(self.train_sizes[client])
        end = int(self.partition.offsets[client + 1])
        return self.samples.inputs[begin:end], self.samples.targets[begin:end]

    def label_counts(self) -> NDArray[np.int64]:
        """Return the number of samples by label and client, with shape (labels, clients)."""
        classes, clients = self.samples.num_classes or 0, len(self)
        cells = self.samples.labels * clients + self.partition.owners
        return np.bincount(cells, minlength=classes * clients).reshape(classes, clients)

    def client_names(self) -> list[str]:
        """Return the names of the natural clients; without natural clients, the client ids."""
        groups = self.samples.groups
        if groups is None:
            return [str(client) for client in range(len(self))]
        first = self.partition.offsets[:-1]
        return [self.samples.group_names[group] for group in groups[first]]


def align(groups: Indices, chosen: Indices) -> Partition:
    """Return the partition with one client for each chosen group, in the order of `chosen`.

    A group without samples becomes an empty client.
    """
    order = np.argsort(groups, kind="stable")
    sorted_groups = groups[order]
    begins = np.searchsorted(sorted_groups, chosen, "left")
    ends = np.searchsorted(sorted_groups, chosen, "right")
    parts = [order[begin:end] for begin, end in zip(begins, ends, strict=True)]
    offsets = np.concatenate([[0], np.cumsum(ends - begins)]).astype(np.int64)
    return Partition(np.concatenate(parts), offsets)
