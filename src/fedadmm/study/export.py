"""The records of one run, or of all runs below a folder, as one table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedadmm.core import files
from fedadmm.core.errors import ConfigError, DataError
from fedadmm.run.record import flat
from fedadmm.study.recorded import read_run
from fedadmm.study.rundir import RunDir, runs_below
from fedadmm.study.trackers import flattened

FORMATS = ("csv", "parquet")


def export(directory: Path, kind: str, out: Path | None = None) -> tuple[Path, int]:
    """Write the table and return its path and how many rows it has."""
    if kind not in FORMATS:
        raise ConfigError(f"--format is {kind!r}, but must be one of {', '.join(FORMATS)}")
    rows = [row for run in runs_below(directory) for row in _rows(run, directory)]
    if not rows:
        raise DataError(f"{directory}: holds no run with any round yet")
    path = out or directory / f"metrics.{kind}"
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if kind == "csv":
        _csv(path, columns, rows)
    else:
        _parquet(path, columns, rows)
    return path, len(rows)


def _rows(run: RunDir, root: Path) -> Iterator[dict[str, Any]]:
    """One row a round, with the run's name; tables in a record become columns with dots."""
    name = str(run.path.relative_to(root)) if run.path != root else run.path.name
    found = read_run(run.path)
    about = {"run": name, "label": found.label, "seed": found.seed}
    for record in found.records:
        yield about | flattened(flat(record, about))


def _csv(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writerow({key: _joined(key) for key in columns})
    for row in rows:
        writer.writerow({key: _joined(value) for key, value in row.items()})
    files.write(path, text.getvalue().encode())


def _joined(value: Any) -> Any:
    """Lists in one cell; a text that a spreadsheet would take for a formula gets an apostrophe."""
    if isinstance(value, list):
        value = " ".join(str(item) for item in value)
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if is_formula else value


def _parquet(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            "--format is 'parquet', which needs pyarrow; pip install 'fedadmm[parquet]'"
        ) from None
    table = pyarrow.table({key: [row.get(key) for row in rows] for key in columns})
    content = io.BytesIO()
    parquet.write_table(table, content)
    files.write(path, content.getvalue())
