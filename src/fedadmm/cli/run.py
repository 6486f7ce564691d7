"""`fedadmm run`: one experiment into one run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import (
    draw,
    one_bar,
    preparation,
    print_ending,
    print_json,
    print_places,
    print_table,
    profile_table,
)
from fedadmm.cli.group import again, resumable
from fedadmm.study import config

if TYPE_CHECKING:
    from fedadmm.run.record import Record


@app.command(
    cls=options.TakesFiles,
    epilog="Example: fedadmm run quickstart --algorithm fedadmm --set algorithm.rho=0.1",
)
def run(
    source: options.Source = None,
    csv: options.Csv = None,
    target: options.TargetColumn = None,
    client: options.ClientColumn = None,
    algorithm: options.Algorithm = None,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    out: options.Out = None,
    resume: options.Resume = False,
    from_round_0: Annotated[
        bool,
        typer.Option("--from-round-0", help="With --resume, run all again if nothing was kept."),
    ] = False,
    checkpoint_every: options.CheckpointEvery = None,
    engine: options.Engine = None,
    workers: options.Workers = None,
    ray_address: options.RayAddress = None,
    device: options.Device = None,
    precision: options.Precision = None,
    sets: options.Sets = None,
    trackers: options.Trackers = None,
    print_config: options.PrintConfig = False,
    report: options.Report = True,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where the time of the rounds went.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Run one experiment.

    CONFIG is a preset, a problem, a TOML file or a run directory.  Without it, --out names a run to
    go on with, and --csv site*.csv --target COLUMN trains on files of your own.
    """
    from fedadmm.study.config import resolve
    from fedadmm.study.running import run as run_experiment

    tree = config.run_only(options.begin(source, out, config.CONFIG, resume))
    options.apply(tree)
    chosen = resolve(tree)
    if print_config:
        typer.echo(config.write(chosen.tree), nl=False)
        return
    base = f"{Path(source or ('table' if csv else 'run')).stem}-{chosen.label}-seed{chosen.seed}"
    folder = options.output_folder(out, base, resume)
    with resumable(again(out=folder, resume=True), folder):
        with one_bar(chosen) as tell:
            history: list[Record] = []
            bars = [
                lambda report: tell(report.record),
                lambda report: history.append(report.record),
            ]
            how = {"resume": resume, "from_round_0": from_round_0}
            summary = run_experiment(chosen, folder, **how, callbacks=bars)
        page = draw(folder, report)
    if as_json:
        print_json(summary | {"directory": str(folder), "report": page})
        return
    print_ending(summary)
    if profile:
        print_table(profile_table(history))
    print_places(**preparation(folder), run=folder, report=page)
