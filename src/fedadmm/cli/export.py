"""`fedadmm export`: the records of a run as a table, or its model, for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import print_json


@app.command(epilog="Example: fedadmm export runs/mine --format onnx")
def export(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run, or the folder of a comparison or sweep.")
    ],
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            help="csv or parquet for the rounds; state-dict, safetensors or onnx for the model.",
        ),
    ] = "csv",
    out: Annotated[
        Path | None, typer.Option("--out", help="Write this file; by default one in RUN.")
    ] = None,
    last: Annotated[
        bool, typer.Option("--last", help="Export the last model instead of the best.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Write every round of a run, or of all runs below a folder, into one table, or its model."""
    from fedadmm.study.export import MODELS, export_model
    from fedadmm.study.export import export as export_table

    if kind not in MODELS:
        path, rows = export_table(directory, kind, out)
        about = {"rows": rows}
        said = f"{rows} rows"
    else:
        path, about = export_model(directory, kind, out, last)
        said = _said(about)
    if as_json:
        print_json({"file": str(path), "format": kind} | about)
        return
    typer.echo(f"{said}  {path}")


def _said(about: Mapping[str, Any]) -> str:
    """Which model it is, and what is known of the file."""
    words = "the last model"
    if "round" in about:
        words = f"round {about['round']}, chosen by {about['metric']}"
    if "largest_difference" in about:
        words += f", within {about['largest_difference']:.1g} of torch on {about['rows']} rows"
    return words
