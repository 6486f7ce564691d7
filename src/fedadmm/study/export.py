"""The records of one run, or of all runs below a folder, as one table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedadmm.errors import ConfigError, DataError
from fedadmm.study import rundir as files

FORMATS = ("csv", "parquet")


def export(directory: Path, kind: str, out: Path | None = None) -> tuple[Path, int]:
    """Write the table and return its path and how many rows it has."""
    if kind not in FORMATS:
        raise ConfigError(f"--format is {kind!r}, but must be one of {', '.join(FORMATS)}")
    rows = [row for run in _runs(directory) for row in _rows(run, directory)]
    if not rows:
        raise DataError(f"{directory}: holds no run with any round yet")
    path = out or directory / f"metrics.{kind}"
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if kind == "csv":
        _csv(path, columns, rows)
    else:
        _parquet(path, columns, rows)
    return path, len(rows)


def _runs(directory: Path) -> Iterator[Path]:
    if not directory.is_dir():
        raise DataError(f"{directory}: no such folder")
    for config in sorted(directory.rglob(files.CONFIG)):
        yield config.parent


def _rows(run: Path, root: Path) -> Iterator[dict[str, Any]]:
    """One row a round, with the run's name and, for lists, the values in one field."""
    summary = files.read_json(run / files.SUMMARY) if (run / files.SUMMARY).is_file() else {}
    name = str(run.relative_to(root)) if run != root else run.name
    known = {"run": name, "label": summary.get("label"), "seed": summary.get("seed")}
    for record in files.read_metrics(run):
        yield known | record


def _csv(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _joined(value) for key, value in row.items()})
    files.write_text(path, text.getvalue())


def _joined(value: Any) -> Any:
    return " ".join(str(item) for item in value) if isinstance(value, list) else value


def _parquet(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            "--format is 'parquet', which needs pyarrow; pip install 'fedadmm[parquet]'"
        ) from None
    table = pyarrow.table({key: [row.get(key) for row in rows] for key in columns})
    partial = path.with_name(f".{path.name}.partial")
    try:
        parquet.write_table(table, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
