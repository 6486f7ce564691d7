"""`fedadmm watch`: a live page of a run, a comparison or a deployment that goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from fedadmm.cli import app, options


@app.command(epilog="Example: fedadmm watch runs/quickstart")
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
    from fedadmm.cli.display import print_json
    from fedadmm.cli.group import ended_in_peace
    from fedadmm.study.report.live import LivePage

    with LivePage(directory).serve(port) as server, ended_in_peace():
        if as_json:
            print_json({"address": server.address})
        else:
            typer.echo(f"watch   {server.address}  (Ctrl-C ends it)")
        _wait()


def _wait() -> None:
    threading.Event().wait()
