"""`python -m benchmarks`: rounds a second beside other frameworks, on this machine."""

from __future__ import annotations

import json
import subprocess
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import contenders, felt, measuring
from fedadmm.cli import options
from fedadmm.cli.display import print_json, steps
from fedadmm.core.errors import FedADMMError
from fedadmm.run.engines.workers import usable_cores
from fedadmm.study import run_dir

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m benchmarks mlp --repeats 3")
def measure(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORKLOAD...",
            help=f"{', '.join([*measuring.WORKLOADS, *felt.FELT])}; all of them if absent.",
            show_default=False,
        ),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers/--no-peers",
            help="Beside pfl, Flower's simulation, a plain loop and JAX. What is not installed is "
            "skipped with a reason.",
        ),
    ] = True,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each contender.")] = 3,
    out: Annotated[Path | None, typer.Option("--out", help="Write the JSON here too.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Time rounds side by side and print how many times faster; an idle machine is assumed."""
    documents: list[dict[str, Any]] = []
    where = {"date": date.today().isoformat(), "cores": usable_cores(), "revision": _revision()}
    try:
        for name in workloads or [*measuring.WORKLOADS, *felt.FELT]:
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
        print_json(documents[0] if len(documents) == 1 else {"workloads": documents})
    else:
        typer.echo(measuring.table(documents))


def _revision() -> str:
    """The commit that is measured; with a plus sign if the package has uncommitted changes."""
    command = [
        "git",
        "-C",
        str(contenders.ROOT),
        "describe",
        "--always",
        "--exclude=*",
        "--dirty=+",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    app()
