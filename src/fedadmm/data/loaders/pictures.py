"""Image data sets: MNIST and others in idx format, CIFAR-10, and scikit-learn's digits.

An idx file consists of a magic number, big-endian sizes, and the values.  A CIFAR-10 batch contains
one byte of label and 3,072 bytes of pixels per image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedadmm.core.errors import DataError
from fedadmm.core.rng import derive, numpy_generator
from fedadmm.data.checked_files import (
    check_promise,
    open_plain_or_gz,
    read_bytes,
    read_exactly,
    read_npz,
    reject_more,
)
from fedadmm.data.dataset import Dataset, Normalise, TrainTest
from fedadmm.data.download import SHIPPED, source

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_WRITER_COLUMN = 2
_PREFIXES = ("train", "t10k")


def read_idx(path: str | Path) -> NDArray[Any]:
    """Read the array of an idx file, plain or .gz; sizes are validated before allocation."""
    path = Path(path)
    with open_plain_or_gz(path) as stream:
        magic = read_exactly(stream, 4, path, "magic number")
        kind, dimensions = int(magic[2]), int(magic[3])
        if magic[0] or magic[1] or kind not in _TYPES or dimensions == 0:
            raise DataError(f"{path}: its magic number {magic.tobytes().hex()} is not that of idx")
        sizes = read_exactly(stream, 4 * dimensions, path, "header").view(">u4").tolist()
        dtype = np.dtype(_TYPES[kind])
        count = math.prod(sizes) * dtype.itemsize
        check_promise(path, count)
        data = read_exactly(stream, count, path, "values")
        reject_more(stream, path)
    return data.view(dtype).reshape(sizes).astype(dtype.newbyteorder("="), copy=False)


def read_images(images: Path, labels: Path, num_classes: int, prepare: Normalise) -> Dataset:
    """Read images (samples, 1, height, width) and their labels from two idx files.

    Raises:
        DataError: A file is damaged, or the files differ in the number of samples.
    """
    pixels, classes = read_idx(images), read_idx(labels)
    if pixels.ndim != 3 or pixels.dtype != np.uint8:
        raise DataError(f"{images}: holds {pixels.dtype} of {pixels.ndim} dimensions, no images")
    if classes.ndim != 1 or classes.dtype.kind not in "iu":
        raise DataError(f"{labels}: holds {classes.dtype} of {classes.ndim} dimensions, no labels")
    if len(pixels) != len(classes):
        raise DataError(
            f"{labels}: {len(classes)} labels, but {images.name} holds {len(pixels)} images"
        )
    return Dataset(
        torch.from_numpy(pixels).unsqueeze(1),
        torch.from_numpy(classes.astype(np.int64)),
        num_classes=num_classes,
        prepare=prepare,
        name=str(labels),
    )


def idx_folder(
    folder: str | Path, num_classes: int = 10, prepare: Normalise | None = None
) -> TrainTest:
    """Load a folder of four idx files with the names of MNIST's, plain or .gz.

    Args:
        folder: The folder.
        num_classes: The number of classes.
        prepare: The normalisation; by default, pixels are scaled to 0 … 1.
    """

    def find(name: str) -> Path:
        for path in (Path(folder) / name, Path(folder) / f"{name}.gz"):
            if path.is_file():
                return path
        raise DataError(f"{folder}: holds neither {name} nor {name}.gz")

    return _four(find, num_classes, prepare or Normalise())


def _four(find: Callable[[str], Path], num_classes: int, prepare: Normalise) -> TrainTest:
    """Load training and test samples from four idx files, which `find` locates by MNIST's names."""
    paths = ((find(f"{p}-images-idx3-ubyte"), find(f"{p}-labels-idx1-ubyte")) for p in _PREFIXES)
    return TrainTest(*(read_images(*both, num_classes, prepare) for both in paths))


def _known(name: str, prepare: Normalise) -> TrainTest:
    return _four(lambda file: source(name).locate(f"{file}.gz"), 10, prepare)


def mnist() -> TrainTest:
    """Load MNIST: 60,000 + 10,000 digits, normalised by (0.1307, 0.3081)."""
    return _known("mnist", Normalise((0.1307,), (0.3081,)))


def fashion_mnist() -> TrainTest:
    """Load Fashion-MNIST: 60,000 + 10,000 images, normalised by (0.2860, 0.3530)."""
    return _known("fashion-mnist", Normalise((0.2860,), (0.3530,)))


def mnist_writers() -> TrainTest:
    """Load MNIST with the writer of each training digit as its natural client.

    The test digits are from other writers; test samples have no groups.
    """
    rows = mnist()
    path = source("mnist-writers").locate("qmnist-train-labels-idx2-int.gz")
    return TrainTest(with_writers(rows.train, read_idx(path), path), rows.test)


def with_writers(rows: Dataset, table: NDArray[Any], path: Path) -> Dataset:
    """Add writers as groups to MNIST samples, from a QMNIST label table.

    Raises:
        DataError: The classes in the table are not those of the samples.
    """
    if table.ndim != 2 or table.shape[1] <= _WRITER_COLUMN or len(table) < len(rows):
        raise DataError(f"{path}: has shape {table.shape}, expected (≥ {len(rows)}, > 2)")
    table = table[: len(rows)]
    if not np.array_equal(table[:, 0], rows.labels):
        raise DataError(f"{path}: its classes are not those of {rows.name}, row by row")
    writers, groups = np.unique(table[:, _WRITER_COLUMN], return_inverse=True)
    return replace(
        rows,
        groups=groups.astype(np.int64),
        group_names=tuple(f"writer {writer}" for writer in writers),
    )


NORMALISE = Normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
"""Standardisation of CIFAR-10 by the mean and standard deviation of each channel."""
HALVES = Normalise((0.5,), (0.5,))
"""Scaling of pixels to -1 … 1, as in the published program of Gong et al."""

_ROW = 1 + 3 * 32 * 32


def read_batch(path: str | Path) -> NDArray[np.uint8]:
    """Read the rows (label, pixels) of a CIFAR-10 batch, plain or .gz."""
    path = Path(path)
    values = np.frombuffer(read_bytes(path), np.uint8)
    if len(values) == 0 or len(values) % _ROW:
        raise DataError(
            f"{path}: holds {len(values)} bytes, but a CIFAR-10 batch holds rows of {_ROW}; it is "
            "truncated or another file"
        )
    rows: NDArray[np.uint8] = values.reshape(-1, _ROW)
    if int(rows[:, 0].max()) > 9:
        raise DataError(f"{path}: has label {int(rows[:, 0].max())}, but CIFAR-10 has 0 … 9")
    return rows


def read_batches(paths: list[Path], prepare: Normalise = NORMALISE) -> Dataset:
    """Read several CIFAR-10 batches as one data set of images (samples, 3, 32, 32)."""
    rows = np.concatenate([read_batch(path) for path in paths])
    return Dataset(
        torch.from_numpy(np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, 32, 32)),
        torch.from_numpy(rows[:, 0].astype(np.int64)),
        num_classes=10,
        prepare=prepare,
        name=str(paths[0]),
    )


def cifar10(prepare: Normalise = NORMALISE) -> TrainTest:
    """Load CIFAR-10: 50,000 + 10,000 colour images."""
    files = source("cifar10")
    paths = [files.locate(file.name) for file in files.files]
    return TrainTest(read_batches(paths[:-1], prepare), read_batches(paths[-1:], prepare))


def cifar10_small(path: str | Path | None = None, prepare: Normalise = NORMALISE) -> TrainTest:
    """Load a subset of CIFAR-10 with 500 + 100 images per class.

    Args:
        path: An npz file with x_train, y_train, x_test, y_test (NHWC); None searches for it.
        prepare: The normalisation.
    """
    path = Path(path or source("cifar10-small").locate("cifar10_small.npz"))
    arrays = read_npz(path, ("x_train", "y_train", "x_test", "y_test"))
    return TrainTest(
        *(
            _images(arrays[f"x_{part}"], arrays[f"y_{part}"], path, prepare)
            for part in ("train", "test")
        )
    )


def _images(
    pixels: NDArray[np.uint8], labels: NDArray[np.uint8], path: Path, prepare: Normalise
) -> Dataset:
    if pixels.shape[1:] != (32, 32, 3) or pixels.dtype != np.uint8 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{path}: holds images of shape {pixels.shape[1:]} and type {pixels.dtype}, "
            "expected (32, 32, 3) of uint8 with whole-number labels"
        )
    return Dataset(
        torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))),
        torch.from_numpy(labels.astype(np.int64).reshape(-1)),
        num_classes=10,
        prepare=prepare,
        name=str(path),
    )


_TEST_ROWS = 360
"""Number of test samples, a fifth; the split is fixed, so that results can be compared."""


def digits() -> TrainTest:
    """Load scikit-learn's digits: 1,437 + 360 images (samples, 1, 8, 8) with values 0 … 16."""
    with np.load(SHIPPED / "digits" / "digits.npz") as stored:
        images, labels = stored["images"], stored["labels"]
    order = numpy_generator(derive(0, "digits/test")).permutation(len(labels))
    everything = Dataset(
        torch.from_numpy(images.reshape(-1, 1, 8, 8)),
        torch.from_numpy(labels.astype(np.int64)),
        num_classes=10,
        prepare=Normalise(scale=16.0),
        name="digits",
    )
    return TrainTest(everything.take(order[_TEST_ROWS:]), everything.take(order[:_TEST_ROWS]))
