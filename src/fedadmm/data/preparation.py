"""Federated preparation of tables: standardisation, one-hot encoding, imputation.

Each client first reports which columns of its training samples contain text.  Then it sends, for a
column of numbers, their count, mean and sum of squared deviations, and for a column of text, the
list of categories; no sample leaves its client.  Combined, these statistics give the scale of the
pooled samples and one indicator column per category.  A missing value becomes zero: the mean, or
none of the categories.  Samples may have weights: weight two is equivalent to two samples.

A column is an array of text, in which words such as "nan" mark missing values, or an array of
numbers with NaN for missing values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fedadmm.core.config_tree import from_config
from fedadmm.core.errors import ConfigError, DataError
from fedadmm.core.parts import Positive, checked

SENTENCE = (
    "numbers are standardised and text columns one-hot encoded, from counts, means, squared "
    "deviations and lists of categories of each client's training rows; no row left its client"
)
MOST_CATEGORIES = 100
"""Largest number of categories of a column; columns with more are names or free text."""
_FEW_CATEGORIES = 10
"""Up to this number of different values, a column is categorical even in a short table."""
_NAMES_ROWS = re.compile(r"(^|[_. -])(id|no|nr|num|number|index|key|code)$", re.IGNORECASE)
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\b")
_GAPS = ("", "?", "na", "n/a", "nan", "null", "none")
LARGEST = float(np.finfo(np.float32).max)
"""Largest magnitude of a number in a table; sums of squares of larger ones would overflow."""

Cells = Mapping[str, NDArray[Any]]
"""Columns of equal length by name."""
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Numbers:
    """Statistics of a column of numbers that a client sends."""

    count: float
    """The number of values, or the sum of their weights."""
    mean: float
    squares: float
    """The sum of the squared deviations from the mean."""

    def joined(self, other: Numbers) -> Numbers:
        """Return the statistics of the pooled values of two clients (Chan, Golub and LeVeque)."""
        count = self.count + other.count
        if count == 0:
            return self
        gap = other.mean - self.mean
        return Numbers(
            count,
            self.mean + gap * other.count / count,
            self.squares + other.squares + gap**2 * self.count * other.count / count,
        )


@checked
class Standardised:
    """Standardisation of a column of numbers: (x - mean) / deviation, and 0 for missing values."""

    name: str
    mean: Annotated[float, Ge(-LARGEST), Le(LARGEST)]
    deviation: Positive

    def apply(self, cells: NDArray[Any]) -> NDArray[np.float64]:
        values = _values(cells, self.name)
        return np.nan_to_num((values - self.mean) / self.deviation)[:, None]


@checked
class OneHot:
    """One-hot encoding of a column of text by the categories of the training samples."""

    name: str
    categories: tuple[str, ...]

    def apply(self, cells: NDArray[Any]) -> NDArray[np.float64]:
        same: NDArray[np.bool_] = (
            _text(cells)[:, None] == np.array(self.categories, dtype=str)[None, :]
        )
        return same.astype(np.float64)

    def reject_unknown(self, cells: NDArray[Any]) -> None:
        """Raise a DataError for a category that is not among the training samples."""
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
    """Return the statistics that a client sends: moments of numbers, lists of categories.

    Args:
        cells: The client's columns.
        text: The names of the columns of text.
        weights: The weights of its samples; None for equal weights.
    """
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
    """Fit the preparation of each column from the statistics that the clients send.

    Args:
        clients: The columns of each client's training samples.
        origin: The name of the data in error messages.
        weights: The sample weights of each client; None for equal weights.
        categories: Columns to encode as categories even if they contain numbers.
        remedy: Advice in the error message on leaving out a column, with a placeholder.

    Raises:
        DataError: A column of text has too many categories.
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
        if dates := [n for n, words in texts.items() if all(map(_DATE.match, words))]:
            aside += (
                f", or turn the dates in {', '.join(map(repr, dates))} into numbers, such as days"
            )
        raise DataError(
            f"{origin}: {'; '.join(named)}, but a category has at most {MOST_CATEGORIES}; leave "
            f"{'it' if len(texts) == 1 else 'them'} out: {aside}"
        )
    return columns


def fit_numbers(
    name: str, clients: Sequence[NDArray[Any]], weights: Sequence[Weights] | None = None
) -> Standardised:
    """Fit the standardisation of one column of numbers, such as the targets of a regression."""
    own = [None] * len(clients) if weights is None else weights
    return _scaled(name, (_sums(x, name, mass) for x, mass in zip(clients, own, strict=True)))


def apply(columns: Sequence[Column], cells: Cells) -> NDArray[np.float64]:
    """Return the model's inputs, one row per sample."""
    return np.hstack([column.apply(cells[column.name]) for column in columns])


def from_document(document: Any, origin: object) -> tuple[list[Column], Standardised | None]:
    """Read the columns and the scale of the target from what `described` returned.

    Args:
        document: The description, from a file that others may have edited.
        origin: The name of the file in error messages.

    Raises:
        DataError: An entry is missing or has another type; the message names it.
    """
    listed = document.get("columns") if isinstance(document, Mapping) else None
    if not isinstance(listed, list) or not listed:
        raise DataError(f"{origin}: preparation.columns: expected a list of at least one column.")
    try:
        columns = list[Column]()
        for index, one in enumerate(listed):
            kind: Any = OneHot if isinstance(one, Mapping) and "categories" in one else Standardised
            columns.append(from_config(kind, one, f"preparation.columns[{index}]"))
        scale = document.get("target")
        target = None if scale is None else from_config(Standardised, scale, "preparation.target")
    except ConfigError as error:
        raise DataError(f"{origin}: {error}") from None
    return columns, target


def reject_huge(cells: Cells, origin: object) -> None:
    """Raise a DataError for a column of numbers with one that is infinite or above `LARGEST`."""
    for name, column in cells.items():
        huge = np.abs(_numbers(column)) > LARGEST if _is_numeric(column) else np.array([False])
        if bool(huge.any()):
            row = int(huge.argmax())
            raise DataError(
                f"{origin}: {name}: got {column[row]} in row {row + 1}, expected finite numbers of "
                f"at most {LARGEST:.2g} in magnitude, or gaps."
            )


def described(columns: Sequence[Column], target: Standardised | None = None) -> dict[str, Any]:
    """Return the preparation as stored in partition.json, with that of the target if it has one."""
    described = {"how": SENTENCE, "columns": [vars(column) for column in columns]}
    return described if target is None else described | {"target": vars(target)}


def identifiers(clients: Sequence[Cells]) -> list[str]:
    """Return the columns that seem to identify samples: consecutive numbers, names, dates.

    Such a column contains different integers at each client, which are consecutive unless its name
    is similar to id, patient_no or number; or it contains text, each value of which occurs less
    than five times on average over all clients.
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
    """Return a column as text; integers among numbers have no decimal point."""
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
    except ValueError as error:  # only test or new samples can contain text here
        raise DataError(
            f"table: {name!r} held numbers in all training rows, and must hold numbers or gaps "
            f"here too ({error})"
        ) from None
    if bool(np.isinf(values).any()):
        raise DataError(f"table: {name!r} holds an infinity, expected finite numbers or gaps")
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
