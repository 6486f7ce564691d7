"""The records of one run, or of all runs below a folder, as one table."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedadmm.core import files
from fedadmm.core.errors import ConfigError, DataError
from fedadmm.run.record import flat
from fedadmm.study.recorded import read_run
from fedadmm.study.rundir import RunDir, runs_below
from fedadmm.study.tables import csv_text
from fedadmm.study.trackers import flattened

FORMATS = ("csv", "parquet")


def export(
    directory: Path, kind: str, out: Path | None = None, besides: Iterable[str] = ()
) -> tuple[Path, int]:
    """Write the table and return its path and how many rows it has.

    `besides` are formats that somebody else writes, for whom they must be told of.
    """
    if kind not in FORMATS:
        allowed = ", ".join((*FORMATS, *besides))
        raise ConfigError(f"--format is {kind!r}, but must be one of {allowed}")
    rows = [row for run in runs_below(directory) for row in _rows(run, directory)]
    if not rows:
        raise DataError(f"{directory}: holds no run with any round yet")
    path = out or directory / f"metrics.{kind}"
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if kind == "csv":
        values = [[row.get(key) for key in columns] for row in rows]
        files.write(path, csv_text(columns, values).encode())
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
