"""`fedadmm export`: the records of a run as a table for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedadmm.cli import app, options


@app.command(epilog="Example: fedadmm export runs/quickstart --format parquet")
def export(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run, or the folder of a comparison or sweep.")
    ],
    kind: Annotated[str, typer.Option("--format", help="csv or parquet.")] = "csv",
    out: Annotated[
        Path | None, typer.Option("--out", help="The file; RUN/metrics.FORMAT if absent.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write every round of a run, or of all runs below a folder, into one table."""
    from fedadmm.study.export import export as write

    path, rows = write(directory, kind, out)
    if as_json:
        from fedadmm.cli.display import print_json

        print_json({"file": str(path), "format": kind, "rows": rows})
        return
    typer.echo(f"{rows} rows  {path}")
