"""`fedadmm run`, one experiment into one run directory; `fedadmm compare`, methods × seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import (
    draw,
    finish,
    live,
    one_bar,
    print_data,
    print_ending,
    print_json,
    print_places,
    print_settings,
    print_table,
    profile_table,
)
from fedadmm.cli.group import again, resumable
from fedadmm.study import config

if TYPE_CHECKING:
    from fedadmm.run.experiment import Experiment
    from fedadmm.run.record import Record
    from fedadmm.study.benefit import SiteBenefit


@app.command(
    cls=options.TakesFiles,
    rich_help_panel="Experiments",
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
    from fedadmm.study.single_run import run as run_experiment

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
        sites = csv or chosen.local.personal is not None
        site_benefit = _federating(chosen, folder) if sites else None
        page = draw(folder, report)
    if as_json:
        more = {} if site_benefit is None else {"federating": site_benefit.document()}
        print_json(summary | {"directory": str(folder), "report": page} | more)
        return
    print_ending(summary)
    if profile:
        print_table(profile_table(history))
    print_data(folder)
    if site_benefit is not None:
        print_table(site_benefit.table())
    print_places(run=folder, report=page)
    if csv:
        print_places(predict=f"fedadmm predict {folder} NEW.csv")


def _federating(run: Experiment, folder: Path) -> SiteBenefit | None:
    """Compare the last model of a run with models of single sites; kept with the run."""
    from fedadmm.study.benefit import site_benefit
    from fedadmm.study.formatting import write_tables
    from fedadmm.study.run_dir import RunDir

    kept = RunDir(folder)
    found = site_benefit(run, kept.model(last=True).params)
    if found is not None:
        write_tables(folder, {"federating": found.table()})
        kept.close(kept.summary() | {"federating": found.document()})
    return found


_USUAL = ["fedavg", "fedprox", "scaffold", "fedadmm"]
"""What one's own files are compared by where nothing else is asked for."""


@app.command(
    cls=options.TakesFiles,
    rich_help_panel="Experiments",
    epilog="Example: fedadmm compare quickstart --algorithms fedavg,fedadmm --seeds 0,1,2",
)
def compare(
    source: options.Source = None,
    csv: options.Csv = None,
    target: options.TargetColumn = None,
    client: options.ClientColumn = None,
    algorithms: Annotated[
        str | None,
        typer.Option(
            "--algorithms", "--algorithm", help="Methods or labels, as in fedavg,fedadmm."
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="METHOD",
            help="Compare all others with this method; by default each with the best other one.",
        ),
    ] = None,
    rounds: options.Rounds = None,
    seeds: options.Seeds = None,
    out: options.Out = None,
    resume: options.Resume = False,
    checkpoint_every: options.CheckpointEvery = None,
    engine: options.Engine = None,
    workers: options.Workers = None,
    sets: options.Sets = None,
    jobs: options.Jobs = None,
    print_config: options.PrintConfig = False,
    report: options.Report = True,
    as_json: options.AsJson = False,
) -> None:
    """Compare methods on the same problem, the same initial models and the same participation.

    CONFIG is a preset, a problem or a TOML file.  Without it, --out names a comparison to go on
    with, and --csv site*.csv --target COLUMN compares on files of your own.
    """
    from fedadmm.study import compare
    from fedadmm.study.report.summaries import results_table
    from fedadmm.study.spec import PLAN
    from fedadmm.study.study_result import drawn

    tree = options.begin(source, out, PLAN, resume)
    numbers = options.seed_list(seeds)
    if csv and numbers is None and "seeds" not in tree:
        numbers = [0, 1, 2, 3, 4]  # each holds out other rows; one could not tell chance apart
    asked = options.listed(algorithms, "--algorithms", str, "a list such as a,b,c")
    study = compare.plan(
        tree,
        asked or ([] if "methods" in tree or not csv else _USUAL),
        options.settings(seeds=numbers, reference=reference),
    )
    if print_config:
        typer.echo(config.write(study.plan), nl=False)
        return
    print_settings(study.reached)
    folder = options.output_folder(out, Path(source or "comparison").stem, resume)
    with resumable(again(out=folder, resume=True)):
        count = options.processes(jobs, study)
        with live(study.runs()) as watch:
            found = compare.compare(study, folder, resume=resume, processes=count, watch=watch)
        tables = [results_table(drawn(found))]
        lead = found.results.lead
        if csv and lead is not None:  # the first seed of the method that won
            best = found.labels[lead.own.label][0]
            site_benefit = _federating(config.resolve(best.config), best.directory)
            if site_benefit is not None:
                tables.append(site_benefit.table())
                found.document["federating"] = site_benefit.document() | {"label": best.label}
                best.summary["federating"] = site_benefit.document()
        page = draw(folder, report, found)
    if not as_json:
        print_data(found.runs[0].directory)
    finish(found, page, as_json, tables, runs=folder)
