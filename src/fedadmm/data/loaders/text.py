"""Plays as data: every speaker is a client that predicts the next character."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedadmm.core.errors import DataError
from fedadmm.core.parts import Count, Probability, checked_arguments
from fedadmm.data.dataset import Dataset, TrainTest
from fedadmm.data.files import read_text
from fedadmm.data.sources import source

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
        _dataset(np.concatenate(rows), owner, tuple(names), len(alphabet), path)
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


def _dataset(
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
