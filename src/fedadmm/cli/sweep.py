"""`fedadmm sweep`, a grid or a list over any keys; `fedadmm tune`, a search with optuna."""

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

    CONFIG is a preset, a TOML file or a run directory.  Finished cells are not run again.
    """
    from fedadmm.study import sweeping
    from fedadmm.study.outcome import runs_table

    tree = config.run_only(options.begin(source))
    axes = [sweeping.axis(text, "--grid") for text in grid or ()]
    steps = [sweeping.axis(text, "--list") for text in lists or ()]
    numbers = options.seed_list(seeds)
    if numbers is not None:
        axes.append(sweeping.Axis("seed", numbers))
    if not axes and not steps:
        raise typer.BadParameter(
            "--grid is missing, as in --grid algorithm.rho=0.1,1; --list or --seeds will do, too"
        )
    study = sweeping.plan(tree, axes, steps, options.settings())
    print_settings(study.reached)
    with resumable(again(out=out, resume=True)), live(study.runs()) as watch:
        count = options.processes(jobs, study)
        found = sweeping.sweep(study, out, fresh=not resume, processes=count, watch=watch)
    page = draw(out, report, found)
    finish(found, page, as_json, [runs_table(found.document)], sweep=out)


@app.command(
    cls=options.TakesFiles,
    epilog="Example: fedadmm tune quickstart --keys 'local.solver.lr=0.01..1 log' "
    "--keys algorithm.rho=0.01,0.1,1 --trials 20 --out DIR",
)
def tune(
    source: options.Source = None,
    csv: options.Csv = None,
    target: options.TargetColumn = None,
    client: options.ClientColumn = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--keys",
            "--key",
            metavar="KEY=RANGE",
            help="Search this key: LOW..HIGH, 'LOW..HIGH log', or A,B,C. May be repeated.",
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option("--trials", min=1, help="Try this many settings, earlier ones included.")
    ] = 20,
    prune: Annotated[
        bool,
        typer.Option("--prune/--no-prune", help="Cut trials that are behind half of the others."),
    ] = True,
    algorithm: options.Algorithm = None,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    out: Annotated[
        Path, typer.Option("--out", help="Write into this folder, or go on there.")
    ] = Path("runs/tune"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the search in --out, which must be there.")
    ] = False,
    engine: options.Engine = None,
    workers: options.Workers = None,
    sets: options.Sets = None,
    report: options.Report = True,
    as_json: options.AsJson = False,
) -> None:
    """Search a configuration for its best setting.

    A trial is a run; those that are behind half of the others in the same round are cut.  The same
    command goes on with a search that was interrupted, or makes it longer by more --trials; so does
    --resume --out DIR without anything else.
    """
    from fedadmm.study import tuning
    from fedadmm.study.outcome import runs_table
    from fedadmm.study.study import PLAN

    if resume and not (out / PLAN).is_file():
        raise typer.BadParameter(f"--out is '{out}', where there is no search to go on with")
    settings = options.settings()
    if resume and source is None and not csv:  # the folder alone says what is searched
        kept = config.table(out / PLAN)
        tree = kept["config"]
        config.refuse_code(out / PLAN, tree)
        keys = keys or [f"{key}={text}" for key, text in kept["ranges"].items()]
        settings = [*kept.get("set", {}).items(), *settings]
    else:
        tree = config.run_only(options.begin(source))
    ranges = tuning.ranges_of(keys or [])
    print_settings(tuning.named(tree, ranges, settings).reached)
    with resumable(again(out=out, resume=True)), live(trials) as watch:
        found = tuning.tune(tree, ranges, out, trials, settings=settings, prune=prune, watch=watch)
    best = None
    if found.document["best"] is not None:
        best = f"fedadmm run {out / tuning.BEST}"
    page = draw(out, report and best is not None, found)
    finish(found, page, as_json, [runs_table(found.document)], tune=out, best=best)
