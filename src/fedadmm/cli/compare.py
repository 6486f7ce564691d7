"""`fedadmm compare`: methods × seeds on one problem, one table, one report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import draw, finish, live, preparation, print_settings
from fedadmm.cli.group import again, resumable
from fedadmm.study import config

_USUAL = ["fedavg", "fedprox", "scaffold", "fedadmm"]
"""What one's own files are compared by where nothing else is asked for."""


@app.command(
    cls=options.TakesFiles,
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
    rounds: options.Rounds = None,
    seeds: options.Seeds = None,
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

    CONFIG is a preset, a problem or a TOML file.  Without it, --out names a comparison to go on
    with, and --csv site*.csv --target COLUMN compares on files of your own.
    """
    from fedadmm.study import comparing
    from fedadmm.study.outcome import drawn
    from fedadmm.study.report.tables import results_table
    from fedadmm.study.study import PLAN

    tree = options.begin(source, out, PLAN, resume)
    asked = options.listed(algorithms, "--algorithms", str, "a list such as a,b,c")
    study = comparing.plan(
        tree,
        asked or ([] if "methods" in tree or not csv else _USUAL),
        options.settings(seeds=options.seed_list(seeds)),
    )
    if print_config:
        typer.echo(config.write(study.plan), nl=False)
        return
    print_settings(study.reached)
    folder = options.output_folder(out, Path(source or "comparison").stem, resume)
    with resumable(again(out=folder, resume=True)):
        count = options.processes(jobs, study)
        with live(study.runs()) as watch:
            found = comparing.compare(study, folder, resume=resume, processes=count, watch=watch)
        page = draw(folder, report, found)
    notes = []
    if (search := found.search) is not None:
        notes = [
            f"every method chose from {search['values']} on seed {search['seed']}, "
            f"{search['rounds']} rounds at most: {search['rule']}"
        ]
    places = preparation(found.runs[0].directory) | {"runs": folder}
    finish(found, page, as_json, [results_table(drawn(found))], notes, **places)
