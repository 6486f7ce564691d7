"""What people hand to scikit-learn, arrays and data frames, as the samples of clients."""

from __future__ import annotations

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
    """Columns, targets as they came, whose each sample is, and what it counts."""

    cells: dict[str, NDArray[Any]]
    y: NDArray[Any]
    owners: NDArray[np.int64]
    """The number of each sample's client, an index into `names`."""
    names: tuple[str, ...]
    weights: Weights | None

    def clients(self) -> list[Cells]:
        """The columns, client by client."""
        return [
            {name: column[self.owners == client] for name, column in self.cells.items()}
            for client in range(len(self.names))
        ]

    def of_clients(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """One number a sample, client by client."""
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
    """Checked samples; those of weight zero are left out.  `owner` is who refuses.

    Without groups the samples are dealt out: every client gets one where there are enough.
    """
    own = None if groups is None else groups_of(owner, groups, len(X))
    weights: Weights | None = None
    if sample_weight is not None:
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if bool((weights < 0).any()) or not bool((weights > 0).any()):
            least, most = weights.min(), weights.max()
            raise ParameterError(
                f"{owner}: sample_weight lies in {least:g} … {most:g}, but each weight must be at "
                "least zero, and one above it"
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


def groups_of(owner: str, groups: ArrayLike, samples: int) -> NDArray[Any]:
    """Whose each sample is: values of one kind, without a gap."""
    found = np.asarray(groups)
    if found.shape not in ((samples,), (samples, 1)):
        raise ParameterError(
            f"{owner}: groups has shape {found.shape}, but must hold one value for each of "
            f"{samples} samples"
        )
    own: NDArray[Any] = column_or_1d(found)
    if any(map(is_gap, own)):
        raise ParameterError(f"{owner}: groups has a gap, but must say whose every sample is")
    try:
        np.unique(own)
    except TypeError:
        kinds = " and ".join(sorted({type(one).__name__ for one in own}))
        raise ParameterError(
            f"{owner}: groups holds {kinds}, but must hold values of one kind"
        ) from None
    return own


def cells_of(X: NDArray[Any], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The columns, as `fedadmm.data.preparation` takes them."""
    return {str(name): _column(X[:, index], name) for index, name in enumerate(names)}


def categories(X: ArrayLike) -> set[str]:
    """The columns of a data frame whose type says that they hold categories."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(X, pandas.DataFrame):
        return set()
    kinds = X.dtypes.items()
    return {str(name) for name, kind in kinds if isinstance(kind, pandas.CategoricalDtype)}


def is_gap(value: object) -> bool:
    """Whether a cell is None, NaN, or pandas' NA, which is not even sure to differ from itself."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def _column(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Numbers with NaN in their gaps, or text with nothing in them."""
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
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
