"""LEAF's tasks: FEMNIST by writer, from its JSON or an npz, and plays by speaker."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedadmm.core.errors import DataError
from fedadmm.core.parts import Count, Probability, checked_arguments
from fedadmm.data.dataset import Dataset, Normalise, TrainTest
from fedadmm.data.download import source
from fedadmm.data.files import read_npz, read_text

Subset = Literal["all", "digits", "upper", "lower"]
_LABELS = {"all": (0, 62), "digits": (0, 10), "upper": (10, 36), "lower": (36, 62)}
_PREPARE = Normalise(invert=True)
"""LEAF stores dark ink on white paper; inverted, the background is zero as in MNIST."""
_PIXELS = 28 * 28

User = tuple[str, NDArray[np.uint8], NDArray[np.int64]]
"""A writer with pixels (rows, 784) and labels."""


@checked_arguments
def femnist(path: str | Path | None = None, subset: Subset = "all") -> TrainTest:
    """Handwritten characters (rows, 1, 28, 28) by writer, training and test rows of each.

    `path` is an .npz or LEAF's `data` folder with `train` and `test`; without it, the data set's
    folder is searched for either.  `subset` keeps digits (10 classes) or letters (26).
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
        raise DataError(f"{path}: images have shape {images.shape}, but must be (rows, 28, 28)")
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
    """Only some classes, counted from zero; None when no row is left."""
    if subset == "all":
        return rows
    low, high = _LABELS[subset]
    kept = np.flatnonzero((rows.labels >= low) & (rows.labels < high))
    if len(kept) == 0:
        return None
    wanted = rows.take(kept)
    return replace(wanted, targets=wanted.targets - low, num_classes=high - low)


def _from_leaf(folder: Path) -> TrainTest:
    """LEAF's `train/*.json` and, if there, `test/*.json`."""
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
    """The users of one LEAF file: name, pixels as uint8 (rows, 784), labels."""
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
            f"{path}: user {user!r} has x of shape {x.shape} and {y.size} labels, but must have "
            f"{count!r} rows of {_PIXELS} pixels"
        )
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise DataError(f"{path}: user {user!r} has a pixel that is no number from 0 to 1")
    if not bool(((y >= 0) & (y < 62) & (y == np.floor(y))).all()):
        raise DataError(f"{path}: user {user!r} has a label that is none of 0 … 61")
    return user, np.rint(x * 255).astype(np.uint8), y.astype(np.int64)


Codes = NDArray[np.uint8]


@checked_arguments
def shakespeare(
    path: str | Path | None = None,
    *,
    length: Count = 80,
    stride: Count = 1,
    test_fraction: Probability = 0.2,
    min_rows: Count = 2,
) -> TrainTest:
    """Rows of `length` characters and the character that follows, by speaker.

    The last part of each speaker's text is for testing; no test row overlaps the text of a
    training row.  Speakers with fewer than `min_rows` training rows are left out.
    """
    path = Path(path or source("shakespeare").locate("tinyshakespeare.txt"))
    text = read_text(path)
    alphabet = sorted(set(text))
    if len(alphabet) > 256:
        raise DataError(f"{path}: has {len(alphabet)} different characters, but at most 256 fit")
    number = {character: code for code, character in enumerate(alphabet)}
    windows: tuple[list[Codes], list[Codes]] = ([], [])
    owners: tuple[list[int], list[int]] = ([], [])
    names: list[str] = []
    for speaker, speech in speeches(text).items():
        codes = np.array([number[character] for character in speech], np.uint8)
        cut = len(codes) - int(len(codes) * test_fraction)
        train = _windows(codes[:cut], length, stride)
        if len(train) < min_rows:
            continue
        for part, rows in enumerate((train, _windows(codes[cut:], length, stride))):
            windows[part].append(rows)
            owners[part].extend([len(names)] * len(rows))
        names.append(speaker)
    if not names:
        raise DataError(
            f"{path}: no speaker says enough for {min_rows} rows of {length} characters"
        )
    parts = [
        _speech_rows(np.concatenate(rows), owner, tuple(names), len(alphabet), path)
        for rows, owner in zip(windows, owners, strict=True)
        if owner
    ]
    return TrainTest(*parts)


def speeches(text: str) -> dict[str, str]:
    """What each speaker says in the whole text; a speech is `NAME:` and lines up to a blank one."""
    spoken: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        name, _, speech = block.strip("\n").partition("\n")
        if name.endswith(":") and speech:
            spoken.setdefault(name[:-1], []).append(speech)
    return {name: "\n".join(parts) for name, parts in spoken.items()}


def _windows(codes: Codes, length: int, stride: int) -> Codes:
    """Rows of length + 1 codes: the input and the code that follows."""
    if len(codes) <= length:
        return np.empty((0, length + 1), np.uint8)
    return np.lib.stride_tricks.sliding_window_view(codes, length + 1)[::stride]


def _speech_rows(
    rows: Codes, owners: list[int], names: tuple[str, ...], characters: int, path: Path
) -> Dataset:
    return Dataset(
        torch.from_numpy(np.ascontiguousarray(rows[:, :-1])),
        torch.from_numpy(rows[:, -1].astype(np.int64)),
        num_classes=characters,
        groups=np.array(owners, np.int64),
        group_names=names,
        name=str(path),
    )
