"""`fedadmm sweep`: a grid or a list over any keys, finished cells found again by their hash."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedadmm.cli import options
from fedadmm.cli.group import resumable

EXAMPLE = (
    "Example: fedadmm sweep quickstart --grid algorithm.rho=0.01,0.1 --grid solver.lr=0.1,0.3 "
    "--out DIR"
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep", epilog=EXAMPLE)(sweep)


def sweep(
    source: Annotated[
        str,
        typer.Argument(metavar="CONFIG", help="A preset's name, a TOML file, or a run directory."),
    ],
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="KEY=A,B", help="Every combination with the other grids."),
    ] = None,
    lists: Annotated[
        list[str] | None,
        typer.Option("--list", metavar="KEY=A,B", help="Goes in step with the other lists."),
    ] = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", help="The method.")] = None,
    rounds: options.Rounds = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", "--seed", help="The seeds, as in 0,1,2.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder of the sweep.")] = Path(
        "runs/sweep"
    ),
    resume: Annotated[
        bool,
        typer.Option("--resume/--fresh", help="Use the finished cells, or run them all again."),
    ] = True,
    checkpoint_every: options.CheckpointEvery = None,
    engine: options.Engine = None,
    workers: options.Workers = None,
    ray_address: options.RayAddress = None,
    sets: options.Sets = None,
    jobs: options.Jobs = None,
    as_json: options.AsJson = False,
) -> None:
    """Run a configuration over a grid or a list of values of any keys.

    CONFIG is a preset, a TOML file or a run directory.  Finished cells are not run again.
    """
    from fedadmm.study import loading, sweeping

    tree = loading.run_only(loading.read(source))
    shortcuts = {
        "algorithm.name": algorithm,
        "rounds": rounds,
        "checkpoint.every": checkpoint_every,
        "engine.name": engine,
        "engine.workers": workers,
        "engine.address": ray_address,
    }
    options.apply(tree, shortcuts, sets)
    axes = [sweeping.axis(text, "--grid") for text in grid or ()]
    steps = [sweeping.axis(text, "--list") for text in lists or ()]
    numbers = options.whole_numbers(seeds, "--seeds")
    if numbers is not None:
        axes.append(sweeping.Axis("seed", numbers))
    cells = sweeping.cells_of(tree, axes, steps)
    command = ["fedadmm", "sweep", source, "--out", str(out)]
    for option, texts in (("--grid", grid), ("--list", lists), ("--set", sets)):
        for text in texts or ():
            command += [option, text]
    for option, value in (("--algorithm", algorithm), ("--rounds", rounds), ("--seeds", seeds)):
        command += [option, str(value)] if value is not None else []
    with resumable(command):
        _sweep(cells, out, resume, jobs, as_json)


def _sweep(cells: Any, out: Path, resume: bool, jobs: int | None, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedadmm.cli.display import live, print_json
    from fedadmm.study import sweeping

    engine = next(iter(cells.values())).engine.name
    with live(len(cells)) as watch:
        result = sweeping.sweep(
            cells, out, fresh=not resume, processes=options.processes(jobs, engine), watch=watch
        )
    if as_json:
        print_json(result | {"directory": str(out)})
        return
    table = Table()
    rows = result["cells"]
    headings = ["rounds done", "rounds to target", *rows[0]["final"]]
    for heading in [*_short(list(rows[0]["set"])), *headings]:
        table.add_column(heading, justify="right")
    for row in rows:
        values = [*row["set"].values(), row["rounds"], row["rounds_to_target"]]
        values += [row["final"].get(key) for key in rows[0]["final"]]
        table.add_row(*(_cell(value) for value in values))
    Console().print(table)
    typer.echo(f"sweep   {out}")


def _short(keys: list[str]) -> list[str]:
    """The last word of each key, where that is enough to tell them apart."""
    last = [key.split(".")[-1] for key in keys]
    return [word if last.count(word) == 1 else key for key, word in zip(keys, last, strict=True)]


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
