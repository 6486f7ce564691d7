"""`fedadmm report` and `fedadmm watch`: the page of a run, a comparison or a sweep."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import print_json


@app.command(
    rich_help_panel="Results", epilog="Example: fedadmm report runs/quickstart --figures figures"
)
def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run, or the folder of a comparison or sweep.")
    ],
    figures: Annotated[
        Path | None,
        typer.Option("--figures", help="Also write all figures here as PNG, SVG and PDF."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write report.html from what is in a folder; the run may still be going on."""
    from fedadmm.study.report import write_report

    page = write_report(directory, figures)
    if as_json:
        drawn = sorted(str(path) for path in figures.iterdir()) if figures is not None else []
        print_json({"report": str(page), "figures": drawn})
        return
    typer.echo(f"report  {page}")
    if figures is not None:
        typer.echo(f"figures {figures}")


@app.command(rich_help_panel="Results", epilog="Example: fedadmm watch runs/quickstart")
def watch(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Name a run, or the folder of a comparison.")
    ],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Listen here; 0 takes any free port.")
    ] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Serve the report of a run while it goes on, on this machine alone, until Ctrl-C.

    DIR may also be the folder of a deployed run, or one whose first round is still to come.
    """
    from fedadmm.cli.group import exit_cleanly
    from fedadmm.study.report.live import LivePage

    with LivePage(directory).serve(port) as server, exit_cleanly():
        if as_json:
            print_json({"address": server.address})
        else:
            typer.echo(f"watch   {server.address}  (Ctrl-C ends it)")
        _wait()


def _wait() -> None:
    threading.Event().wait()
