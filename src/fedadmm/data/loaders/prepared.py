"""Your own tables with gaps and words in them, read and made ready (`fedadmm.data.preparation`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedadmm.core.errors import DataError
from fedadmm.data import preparation
from fedadmm.data.dataset import Dataset, TrainTest, hold_out
from fedadmm.data.loaders.tabular import (
    Kind,
    make_dataset,
    owners_of,
    read_columns,
    refuse_missing,
    table_files,
)
from fedadmm.data.preparation import Cells


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
    return _apply(split, cells, target, origin)


def _apply(split: TrainTest, cells: Cells, target: str, origin: str) -> TrainTest:
    train, test = split
    assert train.groups is not None
    owners, index = train.groups, train.inputs.numpy()
    theirs = [owners == group for group in np.unique(owners)]
    answers = [{name: column[index[own]] for name, column in cells.items()} for own in theirs]
    columns = preparation.fit(answers, origin)
    table = preparation.apply(columns, cells).astype(np.float32)
    scale = None
    if train.num_classes is None:
        numbers = train.targets.numpy()
        scale = preparation.fit_numbers(target, [numbers[own] for own in theirs])
    made = preparation.said(columns, scale)

    def ready(rows: Dataset) -> Dataset:
        inputs, targets = torch.from_numpy(table[rows.inputs.numpy()]), rows.targets
        if scale is not None:
            targets = torch.from_numpy(scale.apply(targets.numpy())[:, 0].astype(np.float32))
        return replace(rows, inputs=inputs, targets=targets, preparation=made)

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
