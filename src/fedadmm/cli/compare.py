"""`fedadmm compare`: methods × seeds on one problem, one table, one report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedadmm.cli import options
from fedadmm.cli.group import resumable

EXAMPLE = "Example: fedadmm compare quickstart --algorithms fedavg,fedadmm --seeds 0,1,2 --out DIR"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare", epilog=EXAMPLE)(compare)


def compare(
    source: options.Source = None,
    algorithms: Annotated[
        str | None,
        typer.Option(
            "--algorithms", "--algorithm", help="Methods or labels, as in fedavg,fedadmm."
        ),
    ] = None,
    rounds: options.Rounds = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", "--seed", help="The seeds, as in 0,1,2.")
    ] = None,
    out: options.Out = None,
    resume: options.Resume = False,
    checkpoint_every: options.CheckpointEvery = None,
    engine: options.Engine = None,
    workers: options.Workers = None,
    ray_address: options.RayAddress = None,
    device: options.Device = None,
    precision: options.Precision = None,
    sets: options.Sets = None,
    jobs: options.Jobs = None,
    print_config: options.PrintConfig = False,
    report: options.Report = True,
    as_json: options.AsJson = False,
) -> None:
    """Compare methods on the same problem, the same initial models and the same participation.

    CONFIG is a preset or a TOML file; without it, --out names a comparison to go on with.
    """
    from fedadmm.study import comparing, loading

    planned = out / comparing.PLAN if out is not None else None
    if source is None and (planned is None or not planned.is_file()):
        raise typer.BadParameter("CONFIG is missing, but must be a preset, a file or --out FOLDER")
    tree = loading.read(source if source is not None else str(planned))
    shortcuts = {
        "rounds": rounds,
        "seeds": options.whole_numbers(seeds, "--seeds"),
        "checkpoint.every": checkpoint_every,
        "engine.name": engine,
        "engine.workers": workers,
        "engine.address": ray_address,
        "device": device,
        "precision": precision,
    }
    options.apply(tree, shortcuts, sets)
    plan = comparing.plan(tree, options.listed(algorithms, "--algorithms"))
    if print_config:
        typer.echo(loading.write(plan.complete()), nl=False)
        return
    folder = options.output_folder(out, Path(source or "comparison").stem, resume)
    with resumable(["fedadmm", "compare", "--out", str(folder), "--resume"]):
        _compare(plan, folder, resume, jobs, report, as_json)


def _compare(
    plan: Any, folder: Path, resume: bool, jobs: int | None, report: bool, as_json: bool
) -> None:
    from fedadmm.cli.display import live, print_json
    from fedadmm.study import comparing

    count = options.processes(jobs, plan.methods[0].tree["engine"]["name"])
    with live(plan.runs()) as watch:
        result = comparing.compare(plan, folder, resume=resume, processes=count, watch=watch)
    page = None
    if report:
        from fedadmm.study.report import write_report

        page = str(write_report(folder))
    if as_json:
        print_json(result | {"directory": str(folder), "report": page})
        return
    _print(result)
    typer.echo(f"runs    {folder}")
    if page is not None:
        typer.echo(f"report  {page}")


def _print(result: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedadmm.cli.display import size

    target, search = result["target"], result["learning_rate_search"]
    goal = f"; target: {target['metric']} {target['value']:g}" if target else ""
    title = f"{result['problem']}, {result['rounds']} rounds, seeds {result['seeds']}{goal}"
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    table.add_column("chosen")
    metric = result["table"][0]["metric"]
    for heading in ("rounds to target", "sent", metric):
        table.add_column(heading, justify="right")
    for row in result["table"]:
        table.add_row(
            row["label"] + (f" ({row['diverged']} diverged)" if row["diverged"] else ""),
            _choice(row["chosen"]),
            _with_spread(row["rounds_to_target"], "{:.1f}"),
            size(row["bytes_to_target"]["mean"]),
            _with_spread(row["final"], "{:.3f}"),
        )
    console = Console()
    console.print(table)
    console.print(
        f"mean ± standard deviation over the seeds; sent: up and down until the target; "
        f"{metric}: after the last round",
        highlight=False,
    )
    if search is not None:
        console.print(
            f"every method chose from {search['values']} on seed {search['seed']}, "
            f"{search['rounds']} rounds at most: {search['rule']}",
            highlight=False,
        )


def _choice(chosen: Mapping[str, Any] | None) -> str:
    return "–" if chosen is None else f"{chosen['key'].split('.')[-1]} {chosen['value']}"


def _with_spread(spread: Mapping[str, Any], number: str) -> str:
    if spread["mean"] is None:
        return f"never (0/{spread['of']})"
    text = f"{number.format(spread['mean'])} ± {number.format(spread['std'])}"
    every = spread["count"] == spread["of"]
    return text if every else f"{text} ({spread['count']}/{spread['of']})"
