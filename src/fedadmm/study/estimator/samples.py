"""Conversion of scikit-learn inputs, arrays and data frames, into samples grouped by client."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import column_or_1d
from sklearn.utils.validation import _check_sample_weight

from fedadmm.core.errors import ParameterError
from fedadmm.core.validation import Count, check
from fedadmm.data import partitions
from fedadmm.data.preparation import Cells, Weights


class GroupedSamples(NamedTuple):
    """Validated samples with the client and the weight of each."""

    cells: dict[str, NDArray[Any]]
    """The feature columns by name."""
    y: NDArray[Any]
    """The targets, unchanged."""
    owners: NDArray[np.int64]
    """The number of each sample's client, an index into `names`."""
    names: tuple[str, ...]
    """The clients' names."""
    weights: Weights | None
    """The sample weights; None for equal weights."""

    def clients(self) -> list[Cells]:
        """Return the feature columns of each client."""
        return [
            {name: column[self.owners == client] for name, column in self.cells.items()}
            for client in range(len(self.names))
        ]

    def of_clients(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Split an array with one value per sample into one array per client."""
        return [values[self.owners == client] for client in range(len(self.names))]


def samples_of(
    owner: str,
    X: NDArray[Any],
    y: NDArray[Any],
    names: Sequence[str],
    groups: ArrayLike | None,
    sample_weight: ArrayLike | None,
    clients: int,
    seed: int,
) -> GroupedSamples:
    """Validate the samples and assign each to a client; samples of weight zero are dropped.

    Args:
        owner: The name of the estimator, for error messages.
        X: The validated features.
        y: The targets.
        names: The names of the columns of `X`.
        groups: The client of each sample; None for a random split of equal sizes.
        sample_weight: The weight of each sample; None for equal weights.
        clients: The number of clients of a random split, at most one per sample.
        seed: The seed of a random split.

    Raises:
        ParameterError: Weights are negative or all zero, or `groups` is invalid.
    """
    own = None if groups is None else groups_of(owner, groups, len(X))
    weights: Weights | None = None
    if sample_weight is not None:
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if bool((weights < 0).any()) or not bool((weights > 0).any()):
            least, most = weights.min(), weights.max()
            raise ParameterError(
                f"{owner}: sample_weight: got values from {least:g} to {most:g}, expected values "
                "of at least 0, one of them positive."
            )
        kept = weights > 0
        X, y, weights = X[kept], y[kept], weights[kept]
        own = None if own is None else own[kept]
    if own is None:
        check(owner, "clients", clients, Count)
        dealt = partitions.iid(len(X), min(clients, len(X)), seed)
        own = np.empty(len(X), np.int64)
        own[dealt.indices] = dealt.owners
    known, owners = np.unique(own, return_inverse=True)
    return GroupedSamples(cells_of(X, names), y, owners, tuple(map(str, known)), weights)


def split_groups(owner: str, X: Any, groups: Any) -> tuple[Any, Any]:
    """Return features and groups; a column that `groups` names is taken out of the features.

    Args:
        owner: The name of the estimator, for error messages.
        X: The features.
        groups: The client of each sample, the name of a column of the data frame `X`, or None.

    Raises:
        ParameterError: `X` has no column of this name.
    """
    if not isinstance(groups, str):
        return X, groups
    columns = list(getattr(X, "columns", ()))
    if groups not in columns:
        named = ", ".join(map(str, columns)) or "without names"
        raise ParameterError(
            f"{owner}: groups: got {groups!r}, expected a label for each of {np.shape(X)[0]} "
            f"samples, or a column of the data frame X (its columns: {named})."
        )
    return X.drop(columns=[groups]), X[groups]


def groups_of(owner: str, groups: ArrayLike, samples: int) -> NDArray[Any]:
    """Return the validated group label of each sample.

    Args:
        owner: The name of the estimator, for error messages.
        groups: The client of each sample, as a vector or a column.
        samples: The number of samples.

    Raises:
        ParameterError: Wrong length, missing labels, or labels that cannot be ordered.
    """
    found = np.asarray(groups)
    if found.shape not in ((samples,), (samples, 1)):
        raise ParameterError(
            f"{owner}: groups: got shape {found.shape}, expected one label for each of "
            f"{samples} samples."
        )
    own: NDArray[Any] = column_or_1d(found)
    if any(map(is_gap, own)):
        raise ParameterError(f"{owner}: groups: got a missing value, expected a label per sample.")
    try:
        np.unique(own)
    except TypeError:
        kinds = " and ".join(sorted({type(one).__name__ for one in own}))
        raise ParameterError(
            f"{owner}: groups: got labels of the types {kinds}, expected labels of one type."
        ) from None
    return own


def cells_of(X: NDArray[Any], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the columns of an array in the format of `fedadmm.data.preparation`."""
    return {str(name): _column(X[:, index], name) for index, name in enumerate(names)}


def categories(X: ArrayLike) -> set[str]:
    """Return the names of the columns of a data frame that have a categorical dtype."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(X, pandas.DataFrame):
        return set()
    kinds = X.dtypes.items()
    return {str(name) for name, kind in kinds if isinstance(kind, pandas.CategoricalDtype)}


def is_gap(value: object) -> bool:
    """Return whether a value is None, NaN, or pandas' NA, whose comparisons have no truth value."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)
"""Types of dates and times; pandas' are derived from them."""


def reject_times(X: object) -> None:
    """Raise a TypeError for a column of dates or times of a data frame."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(X, pandas.DataFrame):
        return
    for name, kind in X.dtypes.items():
        if kind.kind in "mM":
            raise _times(name)


def _times(name: object) -> TypeError:
    return TypeError(
        f"X: {name!r}: got dates or times, expected a string or a number. Compute numbers from "
        f"them, such as (X[{name!r}] - X[{name!r}].min()).dt.days or X[{name!r}].dt.month, or "
        f"leave them out with X.drop(columns=[{name!r}])."
    )


def _column(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Return a column as numbers with NaN for missing values, or as text with empty strings."""
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    if values.dtype.kind in "mM" or any(isinstance(value, _TIMES) for value in values):
        raise _times(name)
    gaps = [is_gap(value) for value in values]
    there = [value for value, gap in zip(values, gaps, strict=True) if not gap]
    for value in there:
        if not isinstance(value, str | int | float | np.generic):
            raise TypeError(
                f"X: {name!r} holds a {type(value).__name__}, but every argument must be a string "
                "or a number"
            )
    if any(isinstance(value, str) for value in there):
        return np.where(gaps, "", [str(value) for value in values])
    return np.array([np.nan if gap else v for v, gap in zip(values, gaps, strict=True)], float)
