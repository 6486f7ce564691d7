"""`fedadmm run`: one experiment into one run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedadmm.cli import options
from fedadmm.cli.group import resumable

EXAMPLE = "Example: fedadmm run quickstart --algorithm fedadmm --set algorithm.rho=0.1 --rounds 50"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run", epilog=EXAMPLE)(run)


def run(
    source: options.Source = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", help="The method.")] = None,
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

    CONFIG is a preset, a TOML file or a run directory; without it, --out names a run to go on with.
    """
    from fedadmm.study import config, loading
    from fedadmm.study import rundir as files

    if source is None and (out is None or not files.holds_run(out)):
        raise typer.BadParameter("CONFIG is missing, but must be a preset, a file or --out RUN")
    tree = loading.run_only(loading.read(source if source is not None else str(out)))
    shortcuts = {
        "algorithm.name": algorithm,
        "rounds": rounds,
        "seed": seed,
        "checkpoint.every": checkpoint_every,
        "engine.name": engine,
        "engine.workers": workers,
        "engine.address": ray_address,
        "device": device,
        "precision": precision,
        "trackers": trackers or None,
    }
    options.apply(tree, shortcuts, sets)
    resolved = config.resolve(tree)
    if print_config:
        typer.echo(loading.write(resolved.tree()), nl=False)
        return
    name = Path(source or "run").stem
    base = f"{name}-{resolved.algorithm.name}-seed{resolved.seed}"
    folder = options.output_folder(out, base, resume)
    with resumable(["fedadmm", "run", "--out", str(folder), "--resume"]):
        _run(resolved, folder, resume, report, as_json)


def _run(resolved: Any, folder: Path, resume: bool, report: bool, as_json: bool) -> None:
    from fedadmm.cli.display import live, print_json, size
    from fedadmm.study.pool import Event
    from fedadmm.study.running import run as run_experiment

    with live() as watch:
        watch(Event("began", 0, {"label": resolved.algorithm.name, "rounds": resolved.rounds}))
        summary = run_experiment(
            resolved,
            folder,
            resume=resume,
            watchers=[lambda record: watch(Event("record", 0, record))],
        )
    page = None
    if report:
        from fedadmm.study.report import write_report

        page = str(write_report(folder))
    if as_json:
        print_json(summary | {"directory": str(folder), "report": page})
        return
    measured = ", ".join(f"{key} {value:.4g}" for key, value in summary["final"].items() if value)
    sent = size(summary["bytes_up"] + summary["bytes_down"])
    typer.echo(f"{summary['label']}: {summary['status']}")
    typer.echo(f"{measured or 'nothing measured'}; {sent} sent in {summary['rounds']} rounds")
    for warning in summary.get("warnings", ()):
        typer.echo(f"warning: {warning}")
    typer.echo(f"run     {folder}")
    if page is not None:
        typer.echo(f"report  {page}")
