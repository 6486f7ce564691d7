"""The idx format of MNIST: a magic number, big-endian sizes, and the values."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedadmm.core.errors import DataError
from fedadmm.data.dataset import Dataset, Normalise, TrainTest
from fedadmm.data.files import check_promise, open_plain_or_gz, read_exactly, refuse_more
from fedadmm.data.sources import source

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_WRITER_COLUMN = 2
_PREFIXES = ("train", "t10k")


def read_idx(path: str | Path) -> NDArray[Any]:
    """The array of an idx file, plain or .gz; sizes are checked before anything is allocated."""
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
        refuse_more(stream, path)
    return data.view(dtype).reshape(sizes).astype(dtype.newbyteorder("="), copy=False)


def read_images(images: Path, labels: Path, num_classes: int, prepare: Normalise) -> Dataset:
    """Images (rows, 1, height, width) with their labels, from two idx files that must agree."""
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
    """Your own folder of four idx files named as MNIST's, plain or .gz, without checksums."""
    return TrainTest(
        *(
            read_images(
                _either(Path(folder), f"{prefix}-images-idx3-ubyte"),
                _either(Path(folder), f"{prefix}-labels-idx1-ubyte"),
                num_classes,
                prepare or Normalise(),
            )
            for prefix in _PREFIXES
        )
    )


def _either(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{folder}: holds neither {name} nor {name}.gz")


def _known(name: str, prepare: Normalise) -> TrainTest:
    files = source(name)
    return TrainTest(
        *(
            read_images(
                files.locate(f"{prefix}-images-idx3-ubyte.gz"),
                files.locate(f"{prefix}-labels-idx1-ubyte.gz"),
                10,
                prepare,
            )
            for prefix in _PREFIXES
        )
    )


def mnist() -> TrainTest:
    """MNIST: 60,000 + 10,000 digits, normalised by (0.1307, 0.3081)."""
    return _known("mnist", Normalise((0.1307,), (0.3081,)))


def fashion_mnist() -> TrainTest:
    """Fashion-MNIST: 60,000 + 10,000 images, normalised by (0.2860, 0.3530)."""
    return _known("fashion-mnist", Normalise((0.2860,), (0.3530,)))


def mnist_writers() -> TrainTest:
    """MNIST with the writer of each training digit as its natural client.

    The writers of the test digits are other people, so that the test rows have no groups.
    """
    rows = mnist()
    path = source("mnist-writers").locate("qmnist-train-labels-idx2-int.gz")
    return TrainTest(with_writers(rows.train, read_idx(path), path), rows.test)


def with_writers(rows: Dataset, table: NDArray[Any], path: Path) -> Dataset:
    """The rows with groups from a QMNIST label table, whose classes must agree with the labels."""
    if table.ndim != 2 or table.shape[1] <= _WRITER_COLUMN or len(table) < len(rows):
        raise DataError(f"{path}: has shape {table.shape}, but must be (≥ {len(rows)}, > 2)")
    table = table[: len(rows)]
    if not np.array_equal(table[:, 0], rows.labels):
        raise DataError(f"{path}: its classes are not those of {rows.name}, row by row")
    writers, groups = np.unique(table[:, _WRITER_COLUMN], return_inverse=True)
    return replace(
        rows,
        groups=groups.astype(np.int64),
        group_names=tuple(f"writer {writer}" for writer in writers),
    )
