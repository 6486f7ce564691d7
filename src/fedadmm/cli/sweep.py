"""`fedadmm sweep`: run a grid or parallel lists of values over any keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import draw, finish, live, print_settings
from fedadmm.cli.group import again, resumable
from fedadmm.study import config


@app.command(
    cls=options.TakesFiles,
    rich_help_panel="Experiments",
    epilog="Example: fedadmm sweep quickstart --grid algorithm.rho=0.01,0.1 "
    "--grid local.solver.lr=0.1,0.3 --out DIR",
)
def sweep(
    source: options.Source = None,
    csv: options.Csv = None,
    target: options.TargetColumn = None,
    client: options.ClientColumn = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="KEY=A,B", help="Every combination with the other grids."),
    ] = None,
    lists: Annotated[
        list[str] | None,
        typer.Option("--list", metavar="KEY=A,B", help="Goes in step with the other lists."),
    ] = None,
    algorithm: options.Algorithm = None,
    rounds: options.Rounds = None,
    seeds: options.Seeds = None,
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
    sets: options.Sets = None,
    jobs: options.Jobs = None,
    report: options.Report = True,
    as_json: options.AsJson = False,
) -> None:
    """Run a configuration over a grid or a list of values of any keys.

    CONFIG is a preset, a TOML file or a run directory.  Without it, --out names a sweep to go on
    with.  Finished cells are not run again.
    """
    from fedadmm.study import sweep
    from fedadmm.study.spec import PLAN
    from fedadmm.study.study_result import runs_table

    begun = out if (out / PLAN).is_file() else None
    base, *kept, settings = sweep.planned(options.begin(source, begun, PLAN))
    tree = config.run_only(base)
    axes = [sweep.axis(text, "--grid") for text in grid or ()]
    steps = [sweep.axis(text, "--list") for text in lists or ()]
    numbers = options.seed_list(seeds)
    if numbers is not None:
        axes.append(sweep.SweptKey("seed", numbers))
    if not axes and not steps:
        axes, steps = kept
    if not axes and not steps:
        raise typer.BadParameter(
            "--grid is missing, as in --grid algorithm.rho=0.1,1; --list or --seeds will do, too"
        )
    study = sweep.plan(tree, axes, steps, settings + options.settings())
    print_settings(study.reached)
    with resumable(again(out=out, resume=True)), live(study.runs()) as watch:
        count = options.processes(jobs, study)
        found = sweep.sweep(study, out, fresh=not resume, processes=count, watch=watch)
    page = draw(out, report, found)
    finish(found, page, as_json, [runs_table(found.document)], sweep=out)
