"""`python -m benchmarks`: rounds a second beside other frameworks, on this machine."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import felt, measuring
from fedadmm.cli import options
from fedadmm.cli.display import print_json, steps
from fedadmm.core.errors import FedADMMError
from fedadmm.run.engines.workers import usable_cores
from fedadmm.study import run_dir

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m benchmarks mlp --repeats 3")
def measure(
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKLOAD",
            help=f"{', '.join([*measuring.WORKLOADS, *felt.FELT])}; all of them if absent.",
            show_default=False,
        ),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers/--no-peers",
            help="Beside pfl, Flower's simulation, a plain loop and the floor. What is not "
            "installed is skipped with a reason.",
        ),
    ] = True,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each contender.")] = 3,
    out: Annotated[Path | None, typer.Option("--out", help="Write the JSON here too.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Time rounds side by side and print how many times faster; an idle machine is assumed."""
    documents: list[dict[str, Any]] = []
    where = {"date": date.today().isoformat(), "cores": usable_cores()}
    try:
        for name in [*measuring.WORKLOADS, *felt.FELT] if workload is None else [workload]:
            with steps(lambda what: typer.echo(what, err=True)) as on_progress:
                if name in felt.FELT:
                    found = felt.run(name, repeats, on_progress)
                else:
                    found = measuring.run(name, peers, repeats, on_progress)
                documents.append(found | where)
            if out is not None:  # after every workload: the whole takes long
                run_dir.write_text(out, json.dumps(documents, indent=2) + "\n")
    except FedADMMError as error:
        typer.echo(f"benchmarks: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        print_json(documents[0] if workload is not None else {"workloads": documents})
    else:
        typer.echo(measuring.table(documents))


if __name__ == "__main__":
    app()
