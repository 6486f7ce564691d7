"""Your own tables made ready for training, without a row's leaving its client.

Every client tells, about the columns of its training rows, which hold words; then of each column
of numbers how many there are, their mean and their squared deviations from it, and of each column
of words which words.  Joined, that scales the numbers as all rows together would, and spreads the
words over columns of zeros and ones.  What is missing becomes zero: the mean, or none of the words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedadmm.core.errors import DataError
from fedadmm.data.dataset import Dataset, TrainTest, hold_out
from fedadmm.data.loaders.tabular import (
    Kind,
    make_dataset,
    owners_of,
    read_columns,
    refuse_missing,
    table_files,
)

SENTENCE = (
    "numbers are scaled and words spread over columns, from what each client told of its training "
    "rows: counts, means, squared deviations and lists of words; no row was moved"
)
MOST_WORDS = 100
"""A column with more different words is a name or a text, and no category."""
_GAPS = ("", "?", "na", "n/a", "nan", "null", "none")

Cells = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Numbers:
    """What a client tells of a column of numbers."""

    count: int
    mean: float
    squares: float
    """The sum of the squared deviations from the mean."""

    def joined(self, other: Numbers) -> Numbers:
        """What both clients together would tell (Chan, Golub and LeVeque)."""
        count = self.count + other.count
        if count == 0:
            return self
        gap = other.mean - self.mean
        return Numbers(
            count,
            self.mean + gap * other.count / count,
            self.squares + other.squares + gap**2 * self.count * other.count / count,
        )


@dataclass(frozen=True)
class Scaled:
    """A column of numbers: (x - mean) / deviation, and zero where it is missing."""

    name: str
    mean: float
    deviation: float

    def apply(self, cells: NDArray[Any]) -> NDArray[np.float64]:
        """One column."""
        values = _values(cells, self.name)
        return np.nan_to_num((values - self.mean) / self.deviation)[:, None]


@dataclass(frozen=True)
class Spread:
    """A column of words: one column of zeros and ones for each word of the training rows."""

    name: str
    words: tuple[str, ...]

    def apply(self, cells: NDArray[Any]) -> NDArray[np.float64]:
        """A column per word."""
        same: NDArray[np.bool_] = cells[:, None] == np.array(self.words, dtype=str)[None, :]
        return same.astype(np.float64)


def words_in(cells: Cells) -> set[str]:
    """The first thing a client tells: which of its columns hold words."""
    return {name for name, column in cells.items() if not _is_numeric(column)}


def told(cells: Cells, wordy: set[str]) -> dict[str, Numbers | set[str]]:
    """The second thing a client tells: sums of its numbers, lists of its words."""
    return {
        name: set(column[~_gaps(column)].tolist()) if name in wordy else _sums(column, name)
        for name, column in cells.items()
    }


def fit(clients: Sequence[Cells], origin: str) -> list[Scaled | Spread]:
    """The columns from what every client tells, and from nothing else."""
    wordy = set[str]().union(*map(words_in, clients))
    answers = [told(cells, wordy) for cells in clients]
    columns: list[Scaled | Spread] = []
    for name in clients[0]:
        heard = [answer[name] for answer in answers]
        if name in wordy:
            words = sorted(set[str]().union(*(one for one in heard if isinstance(one, set))))
            _refuse_names(words, name, origin)
            columns.append(Spread(name, tuple(words)))
        else:
            columns.append(_scaled(name, (one for one in heard if isinstance(one, Numbers))))
    return columns


def _scaled(name: str, heard: Iterable[Numbers]) -> Scaled:
    total = Numbers(0, 0.0, 0.0)
    for one in heard:
        total = total.joined(one)
    deviation = math.sqrt(total.squares / total.count) if total.count else 0.0
    return Scaled(name, total.mean, deviation or 1.0)


def _refuse_names(words: Sequence[str], name: str, origin: str) -> None:
    if len(words) > MOST_WORDS:
        raise DataError(
            f"{origin}: {name!r} holds {len(words)} different words, as {words[0]!r}, but a "
            f"category has at most {MOST_WORDS}; leave it out: problem.leave_out = ['{name}']"
        )


def _gaps(column: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isin(np.char.lower(column), _GAPS)


def _is_numeric(column: NDArray[Any]) -> bool:
    try:
        np.where(_gaps(column), "nan", column).astype(np.float64)
    except ValueError:
        return False
    return True


def _values(column: NDArray[Any], name: str) -> NDArray[np.float64]:
    values = np.where(_gaps(column), "nan", column).astype(np.float64)
    if bool(np.isinf(values).any()):
        raise DataError(f"table: {name!r} holds an infinity, but must hold finite numbers or gaps")
    return values


def _sums(column: NDArray[Any], name: str) -> Numbers:
    values = _values(column, name)
    there = values[~np.isnan(values)]
    if len(there) == 0:
        return Numbers(0, 0.0, 0.0)
    mean = float(there.mean())
    return Numbers(len(there), mean, float(np.square(there - mean).sum()))


def prepared_table(
    path: str | Sequence[str],
    *,
    target: str,
    client: str | None,
    kind: Kind,
    leave_out: Sequence[str] = (),
    test_fraction: float = 0.2,
    seed: int = 0,
) -> TrainTest:
    """Rows of CSV or Parquet files with gaps and words in them, ready for a model.

    The held-out rows are chosen first, so that nothing is learnt from them.
    """
    files = table_files(path)
    origin = str(files[0]) if len(files) == 1 else f"{files[0]} …"
    tables = [_features(file, target, client, leave_out) for file in files]
    names = list(tables[0].cells)
    for file, one in zip(files, tables, strict=True):
        if set(one.cells) != set(names):
            odd = ", ".join(sorted(set(one.cells) ^ set(names)))
            raise DataError(f"{file}: differs from {files[0]} in the columns {odd}")
    cells = {name: np.concatenate([one.cells[name] for one in tables]) for name in names}
    targets = np.concatenate([one.targets for one in tables])
    rows = make_dataset(
        np.arange(len(targets)),  # which row, until the held-out ones are known
        targets,
        np.concatenate([one.owners for one in tables]),
        kind,
        origin,
    )
    _refuse_measurements(rows, kind, target)
    split = hold_out(rows, test_fraction, seed) if test_fraction else TrainTest(rows)
    return _apply(split, cells, origin)


def _apply(split: TrainTest, cells: Cells, origin: str) -> TrainTest:
    train, test = split
    assert train.groups is not None
    owners, index = train.groups, train.inputs.numpy()
    own = [index[owners == group] for group in np.unique(owners)]
    columns = fit([{n: column[rows] for n, column in cells.items()} for rows in own], origin)
    table = np.hstack([column.apply(cells[column.name]) for column in columns]).astype(np.float32)
    made = {"how": SENTENCE, "columns": [vars(column) for column in columns]}

    def ready(rows: Dataset) -> Dataset:
        return replace(rows, inputs=torch.from_numpy(table[rows.inputs.numpy()]), preparation=made)

    return TrainTest(ready(train), None if test is None else ready(test))


class _Table(NamedTuple):
    cells: dict[str, NDArray[Any]]
    targets: NDArray[Any]
    owners: NDArray[Any]


def _features(file: Path, target: str, client: str | None, leave_out: Sequence[str]) -> _Table:
    if file.name.endswith(".npz"):
        raise DataError(f"{file}: holds arrays, which are taken problem.preparation = 'as-is' only")
    columns, client = read_columns(file, [target, *leave_out], client, gaps=True)
    for name in (target, *([client] if client else [])):
        refuse_missing(columns[name], file, name)
    aside = {target, client, *leave_out}
    cells = {name: column for name, column in columns.items() if name not in aside}
    if not cells:
        raise DataError(f"{file}: has no feature column besides target and client")
    owners = owners_of(columns[client] if client else None, len(columns[target]), file)
    return _Table(cells, columns[target], owners)


def _refuse_measurements(rows: Dataset, kind: Kind, target: str) -> None:
    """A column of measurements is no column of classes."""
    classes = rows.num_classes
    if kind == "classes" and classes is not None and classes > max(50, len(rows) // 2):
        raise DataError(
            f"{rows.name}: {target!r} has {classes} different values in {len(rows)} rows, too many "
            "for classes; for numbers: problem.kind = 'numbers', problem.model = 'linear'"
        )
