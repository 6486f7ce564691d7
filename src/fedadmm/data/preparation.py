"""Standardise numbers, one-hot encode text and impute missing values; no row leaves its client.

Every client first says which columns of its training rows hold text.  Then it sends, for a column
of numbers, their count, mean and squared deviations; for a column of text, the list of categories.
Joined, these give the scale that all rows together would give, and one column of zeros and ones a
category.  A missing value becomes zero: the mean, or none of the categories.  Rows may have
weights: one of weight two counts as two rows.

A column is an array of text, where some words mean that a value is missing, or one of numbers,
where NaN does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedadmm.core.errors import DataError

SENTENCE = (
    "numbers are standardised and text columns one-hot encoded, from counts, means, squared "
    "deviations and lists of categories of each client's training rows; no row left its client"
)
MOST_CATEGORIES = 100
"""A column with more different values is a name or a text, and no category."""
_FEW_CATEGORIES = 10
"""A column with no more different values is a category, also in a short table."""
_NAMES_ROWS = re.compile(r"(^|[_. -])(id|no|nr|num|number|index|key|code)$", re.IGNORECASE)
_GAPS = ("", "?", "na", "n/a", "nan", "null", "none")

Cells = Mapping[str, NDArray[Any]]
"""Name -> column; all columns are equally long."""
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Numbers:
    """What a client sends about a column of numbers."""

    count: float
    """How many there are, or the sum of their weights."""
    mean: float
    squares: float
    """The sum of the squared deviations from the mean."""

    def joined(self, other: Numbers) -> Numbers:
        """What both clients together would send (Chan, Golub and LeVeque)."""
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
class Standardised:
    """A column of numbers: (x - mean) / deviation, and zero where a value is missing."""

    name: str
    mean: float
    deviation: float

    def apply(self, cells: NDArray[Any]) -> NDArray[np.float64]:
        values = _values(cells, self.name)
        return np.nan_to_num((values - self.mean) / self.deviation)[:, None]


@dataclass(frozen=True)
class OneHot:
    """A column of text: one column of zeros and ones for each category of the training rows."""

    name: str
    categories: tuple[str, ...]

    def apply(self, cells: NDArray[Any]) -> NDArray[np.float64]:
        same: NDArray[np.bool_] = (
            _text(cells)[:, None] == np.array(self.categories, dtype=str)[None, :]
        )
        return same.astype(np.float64)

    def refuse_unknown(self, cells: NDArray[Any]) -> None:
        """Refuse a category that no training row had; a missing value is allowed."""
        unknown = sorted(_categories(cells) - set(self.categories))
        if unknown:
            raise DataError(
                f"{self.name!r} is {unknown[0]!r} in some row, which no training row had; it must "
                f"be one of {', '.join(self.categories)}, or empty"
            )


Column = Standardised | OneHot


def statistics(
    cells: Cells, text: Collection[str], weights: Weights | None = None
) -> dict[str, Numbers | set[str]]:
    """What a client sends: sums of its numbers, lists of its categories."""
    return {
        name: _categories(column) if name in text else _sums(column, name, weights)
        for name, column in cells.items()
    }


def fit(
    clients: Sequence[Cells],
    origin: str,
    *,
    weights: Sequence[Weights] | None = None,
    categories: Collection[str] = (),
    remedy: str = '--set problem.leave_out="[{}]"',
) -> list[Column]:
    """The columns from what every client sends, and from nothing else.

    `categories` names columns of text, even if it looks like numbers.  `origin` and
    `remedy` say, in a refusal, where a column comes from and how to leave it out.
    """
    columns_of_text = ({n for n, one in cells.items() if not _is_numeric(one)} for cells in clients)
    text = set(categories).union(*columns_of_text)
    own = [None] * len(clients) if weights is None else weights
    answers = [statistics(cells, text, mass) for cells, mass in zip(clients, own, strict=True)]
    columns: list[Column] = []
    texts: dict[str, list[str]] = {}
    for name in clients[0]:
        heard = [answer[name] for answer in answers]
        if name in text:
            words = sorted(set[str]().union(*(one for one in heard if isinstance(one, set))))
            if len(words) > MOST_CATEGORIES:
                texts[name] = words
            columns.append(OneHot(name, tuple(words)))
        else:
            columns.append(_scaled(name, (one for one in heard if isinstance(one, Numbers))))
    if texts:
        named = [f"{n!r} holds {len(w)} different words, as {w[0]!r}" for n, w in texts.items()]
        aside = remedy.format(", ".join(map(repr, texts)))
        raise DataError(
            f"{origin}: {'; '.join(named)}, but a category has at most {MOST_CATEGORIES}; leave "
            f"{'it' if len(texts) == 1 else 'them'} out: {aside}"
        )
    return columns


def fit_numbers(
    name: str, clients: Sequence[NDArray[Any]], weights: Sequence[Weights] | None = None
) -> Standardised:
    """One column of numbers alone, as the targets of a regression."""
    own = [None] * len(clients) if weights is None else weights
    return _scaled(name, (_sums(x, name, mass) for x, mass in zip(clients, own, strict=True)))


def apply(columns: Sequence[Column], cells: Cells) -> NDArray[np.float64]:
    """The model's inputs, one row a row."""
    return np.hstack([column.apply(cells[column.name]) for column in columns])


def described(columns: Sequence[Column], target: Standardised | None = None) -> dict[str, Any]:
    """The preparation for partition.json; `target` where the model learns a standardised one."""
    described = {"how": SENTENCE, "columns": [vars(column) for column in columns]}
    return described if target is None else described | {"target": vars(target)}


def identifiers(clients: Sequence[Cells]) -> list[str]:
    """The columns that look as if they only identify rows: running numbers, names, dates.

    At every client they hold whole numbers, none twice, and these leave no gap, or the column has a
    name such as id, patient_no or number; or they are text, and a value occurs less than five times
    in the mean over all clients.
    """

    def numbers_rows(name: str, column: NDArray[Any]) -> bool:
        values = _numbers(column)
        if len(np.unique(values)) < len(values) or not bool((values == np.round(values)).all()):
            return False
        return bool(_NAMES_ROWS.search(name)) or values.max() - values.min() + 1 == len(values)

    def names_rows(name: str) -> bool:
        found = len(set[str]().union(*(_categories(cells[name]) for cells in clients)))
        return found > _FEW_CATEGORIES and 5 * found > sum(len(cells[name]) for cells in clients)

    several = [cells for cells in clients if len(next(iter(cells.values()))) > 2]
    return [
        name
        for name in clients[0]
        if (several and all(_is_numeric(c[name]) and numbers_rows(name, c[name]) for c in several))
        or (not all(_is_numeric(cells[name]) for cells in clients) and names_rows(name))
    ]


def _scaled(name: str, heard: Iterable[Numbers]) -> Standardised:
    total = Numbers(0, 0.0, 0.0)
    for one in heard:
        total = total.joined(one)
    deviation = math.sqrt(total.squares / total.count) if total.count else 0.0
    return Standardised(name, total.mean, deviation or 1.0)


def _categories(column: NDArray[Any]) -> set[str]:
    return set(_text(column[~_gaps(column)]).tolist())


def _text(column: NDArray[Any]) -> NDArray[np.str_]:
    """Text as it is; numbers that are categories without a point where they need none."""
    if column.dtype.kind == "U":
        return column
    return np.array([np.format_float_positional(one, trim="-") for one in column], dtype=str)


def _gaps(column: NDArray[Any]) -> NDArray[np.bool_]:
    if column.dtype.kind != "U":
        return np.asarray(np.isnan(column))
    return np.isin(np.char.lower(column), _GAPS)


def _is_numeric(column: NDArray[Any]) -> bool:
    try:
        _numbers(column)
    except ValueError:
        return False
    return True


def _numbers(column: NDArray[Any]) -> NDArray[np.float64]:
    text = column.dtype.kind == "U"
    return (np.where(_gaps(column), "nan", column) if text else column).astype(np.float64)


def _values(column: NDArray[Any], name: str) -> NDArray[np.float64]:
    try:
        values = _numbers(column)
    except ValueError as error:  # only held-out or new rows can hold text here
        raise DataError(
            f"table: {name!r} held numbers in all training rows, and must hold numbers or gaps "
            f"here too ({error})"
        ) from None
    if bool(np.isinf(values).any()):
        raise DataError(f"table: {name!r} holds an infinity, but must hold finite numbers or gaps")
    return values


def _sums(column: NDArray[Any], name: str, weights: Weights | None) -> Numbers:
    values = _values(column, name)
    there = ~np.isnan(values)
    if not bool(there.any()):
        return Numbers(0, 0.0, 0.0)
    mass = np.ones(len(values)) if weights is None else weights
    found, counted = values[there], mass[there]
    mean = float(np.average(found, weights=counted))
    return Numbers(float(counted.sum()), mean, float((counted * np.square(found - mean)).sum()))
