"""Tabular data from CSV or npz files, with an optional column of clients.

Numbers are used unchanged, or columns are prepared by `fedadmm.data.preparation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedadmm.core.errors import DataError
from fedadmm.core.parts import checked_arguments
from fedadmm.data import preparation
from fedadmm.data.checked_files import read_csv, read_npz
from fedadmm.data.dataset import Dataset, TrainTest, hold_out

Kind = Literal["classes", "numbers"]
AUTO = "auto"
"""Value of `client` for the column `client` if a file has one, otherwise one client per file."""
_REMEDY = "; for gaps and words in a CSV file: problem.preparation = 'from-sums'"
_SUFFIXES = (".csv", ".csv.gz", ".npz")


class _Table(NamedTuple):
    """A file: feature columns (of an npz: one array), and target and client per sample."""

    cells: dict[str, NDArray[Any]]
    targets: NDArray[Any]
    owners: NDArray[Any]


@checked_arguments
def tabular(
    path: str | Path | Sequence[str],
    *,
    target: str = "target",
    client: str | None = "client",
    inputs: str | Sequence[str] | None = None,
    kind: Kind = "classes",
) -> Dataset:
    """Load samples from CSV or npz files.

    Args:
        path: A file, a folder (all its files in the order of their names), or a list of both.
        target: The column (in an npz: array) of targets.
        client: The column (in an npz: array) of clients.  None makes each file one client with
            the name of the file; "auto" does so for files without a column `client`.
        inputs: The feature columns, by default all others; in an npz one array of any shape, by
            default `inputs`.
        kind: Whether targets are class names ("classes") or numbers for a regression ("numbers").

    Raises:
        DataError: A file is damaged, a column is missing, or a value is missing or not finite.
    """
    files = table_files(path)
    root = path if isinstance(path, str | Path) else f"{files[0]} …"
    wanted = [inputs] if isinstance(inputs, str) else inputs
    tables = [_read(file, target, client, wanted) for file in files]
    rows = []
    for file, table in zip(files, tables, strict=True):
        columns = [_numbers(cells, str(file), name) for name, cells in table.cells.items()]
        rows.append(columns[0] if columns[0].ndim > 1 else np.stack(columns, axis=1))
    shapes = {inputs.shape[1:] for inputs in rows}
    if len(shapes) > 1:
        raise DataError(f"{root}: its files hold rows of different shapes {sorted(shapes)}")
    return make_dataset(
        np.concatenate(rows),
        np.concatenate([table.targets for table in tables]),
        np.concatenate([table.owners for table in tables]),
        kind,
        str(root),
    )


def table_files(path: str | Path | Sequence[str]) -> list[Path]:
    """Return the table files behind a path: a file, a folder, a pattern, or a list."""
    if not isinstance(path, str | Path):
        return [file for one in path for file in table_files(one)]
    root = Path(path)
    if root.is_file():
        return [root]
    files = sorted(file for file in root.glob("*") if file.name.endswith(_SUFFIXES))
    files = files or sorted(Path(file) for file in glob(str(root)) if Path(file).is_file())
    if not files:
        raise DataError(
            f"{root}: is neither a file nor a folder with files {', '.join(_SUFFIXES)}; name yours "
            "by problem.path, or by --csv FILE … --target COLUMN"
        )
    return files


def make_dataset(
    inputs: NDArray[Any], targets: NDArray[Any], clients: NDArray[Any] | None, kind: Kind, name: str
) -> Dataset:
    """Convert arrays to a data set, with classes numbered in the order of their names.

    Args:
        inputs: The features.
        targets: One target per sample.
        clients: The natural client of each sample; None without natural clients.
        kind: Whether targets are class names or numbers.
        name: The name of the data in error messages.
    """
    num_classes, called = None, tuple[str, ...]()
    if kind == "numbers":
        values = torch.from_numpy(_numbers(targets, name, "target"))
    else:
        classes, codes = np.unique(_whole_numbers(targets), return_inverse=True)
        called = tuple(map(str, classes))
        num_classes, values = len(classes), torch.from_numpy(codes.reshape(-1).astype(np.int64))
        if num_classes < 2:
            raise DataError(f"{name}: has one class only ({classes[0]}), but needs two")
    groups, names = None, tuple[str, ...]()
    if clients is not None:
        unique, owners = np.unique(clients, return_inverse=True)
        groups, names = owners.reshape(-1).astype(np.int64), tuple(str(u) for u in unique)
    rows = torch.from_numpy(np.ascontiguousarray(inputs))
    return Dataset(rows, values, num_classes, groups, names, name=name, class_names=called)


def _whole_numbers(classes: NDArray[Any]) -> NDArray[Any]:
    """Convert class names to integers if all are integers, so that 2 sorts before 10."""
    try:
        return classes.astype(np.int64) if classes.dtype.kind in "UO" else classes
    except (TypeError, ValueError, OverflowError):
        return classes.astype(str)


def _read(
    path: Path,
    target: str,
    client: str | None,
    inputs: Sequence[str] | None = None,
    leave_out: Sequence[str] = (),
    gaps: bool = False,
) -> _Table:
    if path.name.endswith(".npz"):
        inputs = inputs or ["inputs"]
    cells, client = read_columns(path, [target, *(inputs or ()), *leave_out], client, gaps)
    aside = {target, client, *leave_out}
    names = inputs or [name for name in cells if name not in aside]
    if not names:
        raise DataError(f"{path}: has no feature column, only target and client")
    for name in (target, *([client] if client else [])):
        if cells[name].shape != cells[names[0]].shape[:1]:
            raise DataError(
                f"{path}: {names[0]} has shape {cells[names[0]].shape} and {name} "
                f"{cells[name].shape}, expected (rows, …) and (rows,)"
            )
        _reject_missing(cells[name], path, name)
    owners = np.full(len(cells[target]), path.name.split(".")[0])
    owners = cells[client].astype(str) if client else owners
    return _Table({name: cells[name] for name in names}, cells[target], owners)


def read_columns(
    path: Path, wanted: Sequence[str], client: str | None, gaps: bool = False
) -> tuple[dict[str, NDArray[Any]], str | None]:
    """Read the columns of a CSV file, or the arrays of an npz file.

    Args:
        path: The file.
        wanted: Columns that must exist.
        client: The column of clients, None, or "auto".
        gaps: Whether missing cells are allowed, which requires a CSV file.

    Returns:
        The columns by name, and the name of the column of clients or None.
    """
    if path.name.endswith(".npz"):
        if gaps:
            raise DataError(f"{path}: holds arrays, expected CSV here")
        cells = read_npz(path, [])
    else:
        cells = _read_csv(path)
    if client == AUTO:
        client = "client" if "client" in cells else None
    for name in [*wanted, *([client] if client else [])]:
        if name not in cells:
            hint = "; client=None makes every file one client, as without --client"
            hint = hint if name == client else ""
            raise DataError(f"{path}: has no column {name!r} (it has {', '.join(cells)}){hint}")
    if gaps:
        preparation.reject_huge(cells, path)
    return cells, client


def _read_csv(path: Path) -> dict[str, NDArray[Any]]:
    """Read the columns of a CSV file as text."""
    lines = read_csv(path)
    if len(lines) < 2:
        raise DataError(f"{path}: must have a line of column names and at least one row")
    header = [name.strip() for name in lines[0]]
    if len(set(header)) != len(header):
        raise DataError(f"{path}: two columns have the same name")
    for number, row in enumerate(lines[1:], 2):
        if len(row) != len(header):
            raise DataError(
                f"{path}: line {number} has {len(row)} values, but the header has {len(header)}"
            )
    columns = zip(*lines[1:], strict=True)
    return {
        name: np.array([cell.strip() for cell in column])
        for name, column in zip(header, columns, strict=True)
    }


def _numbers(values: NDArray[Any], name: str, column: str) -> NDArray[np.float32]:
    """Convert a column to finite numbers; a DataError names the first invalid row."""
    try:
        with np.errstate(over="ignore"):  # overflow becomes infinity, which is rejected below
            numbers = values.astype(np.float32)
    except (TypeError, ValueError):
        raise DataError(
            f"{name}: {column!r} holds {_first_bad(values)}, which is no number{_REMEDY}"
        ) from None
    bad = ~np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1)
    if bool(bad.any()):
        raise DataError(
            f"{name}: {column!r} is missing or not finite in row {int(bad.argmax()) + 1}{_REMEDY}"
        )
    return numbers


def _first_bad(values: NDArray[Any]) -> str:
    for row, value in enumerate(values.reshape(-1).tolist(), 1):
        try:
            float(value)
        except (TypeError, ValueError):
            return f"{value!r} in row {row}"
    return "something"


def _reject_missing(values: NDArray[Any], path: Path, column: str) -> None:
    """Raise a DataError if a column of targets or clients has a missing value."""
    if values.dtype.kind == "f":
        missing = ~np.isfinite(values)
    else:
        missing = np.array([value is None or str(value) == "" for value in values.tolist()])
    if bool(missing.any()):
        raise DataError(f"{path}: {column!r} is missing in row {int(missing.argmax()) + 1}")


def prepared_table(
    path: str | Sequence[str],
    target: str,
    client: str | None,
    kind: Kind,
    leave_out: Sequence[str] = (),
    test_fraction: float = 0.2,
    seed: int = 0,
) -> TrainTest:
    """Load and prepare CSV files with missing values and text columns.

    The test samples are chosen first, so that the preparation is fitted on training samples only.

    Args:
        path: As in `tabular`.
        target: As in `tabular`.
        client: As in `tabular`.
        kind: As in `tabular`.
        leave_out: Columns that are not features.
        test_fraction: The held-out fraction of each client's samples.
        seed: The seed of the choice.
    """
    files = table_files(path)
    origin = str(files[0]) if len(files) == 1 else f"{files[0]} …"
    tables = [_read(file, target, client, None, leave_out, gaps=True) for file in files]
    names = list(tables[0].cells)
    for file, one in zip(files, tables, strict=True):
        if set(one.cells) != set(names):
            odd = ", ".join(sorted(set(one.cells) ^ set(names)))
            raise DataError(f"{file}: differs from {files[0]} in the columns {odd}")
    cells = {name: np.concatenate([one.cells[name] for one in tables]) for name in names}
    targets = np.concatenate([one.targets for one in tables])
    rows = make_dataset(
        np.arange(len(targets)),  # indices of samples, in place of features until after the split
        targets,
        np.concatenate([one.owners for one in tables]),
        kind,
        origin,
    )
    classes = rows.num_classes
    if classes is not None and classes > max(50, len(rows) // 2):
        raise DataError(
            f"{origin}: {target!r} has {classes} different values in {len(rows)} rows, too many "
            "for classes; for numbers: problem.kind = 'numbers', problem.model = 'linear'"
        )
    train, test = hold_out(rows, test_fraction, seed)
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
    made = preparation.described(columns, scale)
    assert rows.groups is not None
    sites = [rows.groups == group for group in np.unique(rows.groups)]
    whole = [{name: column[own] for name, column in cells.items()} for own in sites]
    made |= {"identifiers": alike} if (alike := preparation.identifiers(whole)) else {}

    def ready(rows: Dataset) -> Dataset:
        inputs, targets = torch.from_numpy(table[rows.inputs.numpy()]), rows.targets
        if scale is not None:
            targets = torch.from_numpy(scale.apply(targets.numpy())[:, 0].astype(np.float32))
        return replace(rows, inputs=inputs, targets=targets, preparation=made)

    return TrainTest(ready(train), None if test is None else ready(test))
