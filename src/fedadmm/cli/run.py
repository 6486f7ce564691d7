"""`fedadmm run`: one experiment into one run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedadmm.cli import app, options
from fedadmm.cli.group import again, resumable

if TYPE_CHECKING:
    from fedadmm.run.experiment import Experiment


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
    as_json: options.AsJson = False,
) -> None:
    """Run one experiment.

    CONFIG is a preset, a problem, a TOML file or a run directory.  Without it, --out names a run to
    go on with, and --csv site*.csv --target COLUMN trains on files of your own.
    """
    from fedadmm.study import config
    from fedadmm.study.config import resolve

    tree = config.run_only(options.begin(source, out, config.CONFIG, resume))
    options.apply(tree)
    chosen = resolve(tree)
    if print_config:
        typer.echo(config.write(chosen.tree), nl=False)
        return
    base = f"{Path(source or ('table' if csv else 'run')).stem}-{chosen.label}-seed{chosen.seed}"
    folder = options.output_folder(out, base, resume)
    with resumable(again(out=folder, resume=True), folder):
        _run(chosen, folder, resume, report, as_json)


def _run(chosen: Experiment, folder: Path, resume: bool, report: bool, as_json: bool) -> None:
    from fedadmm.cli.display import draw, live, print_json, print_places, print_preparation
    from fedadmm.run.record import as_number
    from fedadmm.study import formatting
    from fedadmm.study.pool import Began, Recorded
    from fedadmm.study.running import run as run_experiment

    with live() as watch:
        watch(Began(0, chosen.label, chosen.rounds))
        bars = [lambda report: watch(Recorded(0, report.record))]
        summary = run_experiment(chosen, folder, resume=resume, callbacks=bars)
    page = draw(folder, report)
    if as_json:
        print_json(summary | {"directory": str(folder), "report": page})
        return
    numbers = {key: as_number(found) for key, found in summary["final"].items()}
    shown = (f"{key} {found:.4g}" for key, found in numbers.items() if found is not None)
    measured = ", ".join(shown)
    sent = formatting.size(summary["bytes_up"] + summary["bytes_down"])
    typer.echo(f"{summary['label']}: {summary['status']}")
    typer.echo(f"{measured or 'nothing measured'}; {sent} sent in {summary['rounds']} rounds")
    for warning in summary.get("warnings", ()):
        typer.echo(f"warning: {warning}")
    print_preparation(folder)
    print_places("run", folder, page)
