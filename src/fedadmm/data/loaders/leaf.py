"""FEMNIST with writers as natural clients, from the JSON files of LEAF or an npz file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedadmm.core.errors import DataError
from fedadmm.core.parts import checked_arguments
from fedadmm.data.checked_files import read_npz, read_text
from fedadmm.data.dataset import Dataset, Normalise, TrainTest
from fedadmm.data.download import source

Subset = Literal["all", "digits", "upper", "lower"]
_LABELS = {"all": (0, 62), "digits": (0, 10), "upper": (10, 36), "lower": (36, 62)}
_PREPARE = Normalise(invert=True)
"""LEAF stores dark ink on white paper; inversion makes the background zero as in MNIST."""
_PIXELS = 28 * 28

User = tuple[str, NDArray[np.uint8], NDArray[np.int64]]
"""A writer's name, pixels of shape (samples, 784), and labels."""


@checked_arguments
def femnist(path: str | Path | None = None, subset: Subset = "all") -> TrainTest:
    """Load FEMNIST: handwritten characters (samples, 1, 28, 28) with writers as natural clients.

    Args:
        path: An .npz file, or LEAF's `data` folder with `train` and `test`; None searches the
            folder of the data set for either.
        subset: The classes to keep: all 62, digits (10), or upper-case or lower-case letters (26).

    Raises:
        DataError: A file is damaged, or contains no training sample of the subset.
    """
    if path is None:
        files = source("femnist")
        path = files.stand_in() or files.locate("femnist_leaf_subset.npz")
    path = Path(path)
    rows = _from_leaf(path) if path.is_dir() else _from_npz(path)
    train = _keep(rows.train, subset)
    if train is None:
        raise DataError(f"{path}: has no training row of the subset {subset!r}")
    return TrainTest(train, None if rows.test is None else _keep(rows.test, subset))


def _from_npz(path: Path) -> TrainTest:
    arrays = read_npz(path, ("images", "labels", "writer", "split", "is_dup", "writer_ids"))
    images, labels, writer = arrays["images"], arrays["labels"], arrays["writer"]
    split, duplicate = arrays["split"], arrays["is_dup"]
    if images.shape[1:] != (28, 28) or images.dtype != np.uint8:
        raise DataError(f"{path}: images have shape {images.shape}, expected (rows, 28, 28)")
    for name in ("labels", "writer", "split", "is_dup"):
        if arrays[name].shape != (len(images),) or arrays[name].dtype.kind not in "iub":
            raise DataError(f"{path}: {name} must hold one whole number for each of the images")
    names = tuple(str(name) for name in arrays["writer_ids"])
    train, test = (np.flatnonzero((split == part) & ~duplicate.astype(bool)) for part in (0, 1))
    return TrainTest(
        _dataset(images[train], labels[train], writer[train], names, path),
        _dataset(images[test], labels[test], writer[test], names, path) if len(test) else None,
    )


def _dataset(
    pixels: NDArray[np.uint8],
    labels: NDArray[Any],
    writers: NDArray[Any],
    names: tuple[str, ...],
    path: Path,
) -> Dataset:
    return Dataset(
        torch.from_numpy(pixels.reshape(-1, 1, 28, 28)),
        torch.from_numpy(labels.astype(np.int64)),
        num_classes=62,
        groups=writers.astype(np.int64),
        group_names=names,
        prepare=_PREPARE,
        name=str(path),
    )


def _keep(rows: Dataset, subset: Subset) -> Dataset | None:
    """Return the samples of a subset of classes, renumbered from zero; None if there are none."""
    if subset == "all":
        return rows
    low, high = _LABELS[subset]
    kept = np.flatnonzero((rows.labels >= low) & (rows.labels < high))
    if len(kept) == 0:
        return None
    wanted = rows.take(kept)
    return replace(wanted, targets=wanted.targets - low, num_classes=high - low)


def _from_leaf(folder: Path) -> TrainTest:
    """Load LEAF's `train/*.json` and, if present, `test/*.json`."""
    train, test = (
        [user for path in sorted((folder / name).glob("*.json")) for user in read_leaf(path)]
        for name in ("train", "test")
    )
    if not train:
        raise DataError(f"{folder / 'train'}: holds no .json file")
    writers = tuple(sorted({user for user, _, _ in train + test}))
    return TrainTest(
        _together(train, writers, folder / "train"),
        _together(test, writers, folder / "test") if test else None,
    )


def _together(users: list[User], writers: tuple[str, ...], path: Path) -> Dataset:
    number = {user: index for index, user in enumerate(writers)}
    return _dataset(
        np.concatenate([x for _, x, _ in users]),
        np.concatenate([y for _, _, y in users]),
        np.concatenate([np.full(len(y), number[user]) for user, _, y in users]),
        writers,
        path,
    )


def read_leaf(path: str | Path) -> list[User]:
    """Return the writers in a LEAF file, with pixels as uint8; a DataError if it is damaged."""
    path = Path(path)
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is no JSON ({error})") from None
    if not isinstance(content, dict) or not isinstance(content.get("user_data"), dict):
        raise DataError(f"{path}: has no user_data, so that it is no LEAF file")
    users, data = content.get("users"), content["user_data"]
    counts = content.get("num_samples")
    if not isinstance(users, list) or not isinstance(counts, list) or len(users) != len(counts):
        raise DataError(f"{path}: users and num_samples must be equally long lists")
    return [_user(path, user, data, count) for user, count in zip(users, counts, strict=True)]


def _user(path: Path, user: Any, data: dict[str, Any], count: Any) -> User:
    entry = data.get(user) if isinstance(user, str) else None
    if not isinstance(entry, dict) or "x" not in entry or "y" not in entry:
        raise DataError(f"{path}: user {user!r} has no x and y")
    try:
        x = np.asarray(entry["x"], np.float64).reshape(len(entry["y"]), -1)
        y = np.asarray(entry["y"], np.float64)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{path}: x or y of user {user!r} is not a table of numbers") from None
    if y.ndim != 1 or y.size != count or y.size == 0 or x.shape[1] != _PIXELS:
        raise DataError(
            f"{path}: user {user!r} has x of shape {x.shape} and {y.size} labels, expected "
            f"{count!r} rows of {_PIXELS} pixels"
        )
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise DataError(f"{path}: user {user!r} has a pixel that is no number from 0 to 1")
    if not bool(((y >= 0) & (y < 62) & (y == np.floor(y))).all()):
        raise DataError(f"{path}: user {user!r} has a label that is none of 0 … 61")
    return user, np.rint(x * 255).astype(np.uint8), y.astype(np.int64)
