"""`fedadmm report`: draw a run, a comparison or a sweep again from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedadmm.cli import app, options


@app.command(epilog="Example: fedadmm report runs/quickstart --figures figures")
def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run, or the folder of a comparison or sweep.")
    ],
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Also write every figure here as PNG and SVG.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write report.html from what is in a folder; the run may still be going on."""
    from fedadmm.study.report import write_report

    page = write_report(directory, figures)
    if as_json:
        from fedadmm.cli.display import print_json

        drawn = sorted(str(path) for path in figures.iterdir()) if figures is not None else []
        print_json({"report": str(page), "figures": drawn})
        return
    typer.echo(f"report  {page}")
    if figures is not None:
        typer.echo(f"figures {figures}")
