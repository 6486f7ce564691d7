"""`fedadmm bench`: rounds a second beside other frameworks, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedadmm.cli import app, options


@app.command("bench", epilog="Example: fedadmm bench mlp --repeats 3")
def measure(
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKLOAD",
            help="cnn, cnn-admm-disk, mlp, logistic or growth; all of them if absent.",
            show_default=False,
        ),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers/--no-peers",
            help="Beside pfl, Flower's simulation, a plain loop and the floor. What is not "
            "there is skipped with a reason; all but the floor need a checkout.",
        ),
    ] = True,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of everybody.")] = 3,
    out: Annotated[Path | None, typer.Option("--out", help="Write the JSON here too.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Time rounds side by side and print how many times faster; an idle machine is assumed."""
    import json

    from fedadmm.cli.display import print_json, steps
    from fedadmm.study import bench, rundir

    documents = []
    for name in bench.WORKLOADS if workload is None else [workload]:
        with steps(lambda what: typer.echo(what, err=True)) as tell:
            documents.append(bench.run(name, peers, repeats, tell))
        if out is not None:  # after every workload: the whole takes long
            rundir.write_text(out, json.dumps(documents, indent=2) + "\n")
    if as_json:
        print_json(documents[0] if workload is not None else {"workloads": documents})
    else:
        typer.echo(bench.table(documents))
