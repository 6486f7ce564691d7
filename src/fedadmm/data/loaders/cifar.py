"""CIFAR-10: canonical binary batches (a byte of label, 3,072 of pixels a row), and a small npz."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedadmm.core.errors import DataError
from fedadmm.data.dataset import Dataset, Normalise, TrainTest
from fedadmm.data.files import read_bytes, read_npz
from fedadmm.data.sources import source

NORMALISE = Normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
HALVES = Normalise((0.5,), (0.5,))
"""Gong's program maps pixels to -1 … 1."""

_ROW = 1 + 3 * 32 * 32


def read_batch(path: str | Path) -> NDArray[np.uint8]:
    """The rows (label, pixels) of a batch, plain or .gz."""
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
    """One dataset of images (rows, 3, 32, 32) from several batches."""
    rows = np.concatenate([read_batch(path) for path in paths])
    return Dataset(
        torch.from_numpy(np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, 32, 32)),
        torch.from_numpy(rows[:, 0].astype(np.int64)),
        num_classes=10,
        prepare=prepare,
        name=str(paths[0]),
    )


def cifar10(prepare: Normalise = NORMALISE) -> TrainTest:
    """CIFAR-10: 50,000 + 10,000 colour images."""
    files = source("cifar10")
    paths = [files.locate(file.name) for file in files.files]
    return TrainTest(read_batches(paths[:-1], prepare), read_batches(paths[-1:], prepare))


def cifar10_small(path: str | Path | None = None, prepare: Normalise = NORMALISE) -> TrainTest:
    """500 + 100 images a class, from an npz with x_train, y_train, x_test, y_test (NHWC)."""
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
            f"{path}: holds images of shape {pixels.shape[1:]} and type {pixels.dtype}, but must "
            "hold (32, 32, 3) of uint8 with whole-number labels"
        )
    return Dataset(
        torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))),
        torch.from_numpy(labels.astype(np.int64).reshape(-1)),
        num_classes=10,
        prepare=prepare,
        name=str(path),
    )
