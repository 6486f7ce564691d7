"""`fedadmm compare`: methods × seeds on one problem, one table, one report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedadmm.cli import app, options
from fedadmm.cli.group import again, resumable

if TYPE_CHECKING:
    from fedadmm.study.comparing import Comparison
    from fedadmm.study.results import Results


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
    from fedadmm.study import comparing, loading

    tree = options.begin(source, out, comparing.PLAN, resume)
    options.apply(tree, seeds=options.whole_numbers(seeds, "--seeds"))
    asked = options.listed(algorithms, "--algorithms")
    plan = comparing.plan(tree, asked or ([] if "methods" in tree or not csv else _USUAL))
    if print_config:
        typer.echo(loading.write(plan.complete()), nl=False)
        return
    folder = options.output_folder(out, Path(source or "comparison").stem, resume)
    with resumable(again(out=folder, resume=True)):
        _compare(plan, folder, resume, jobs, report, as_json)


def _compare(
    plan: Comparison, folder: Path, resume: bool, jobs: int | None, report: bool, as_json: bool
) -> None:
    from fedadmm.cli.display import draw, live, print_json, print_places, print_preparation
    from fedadmm.study import comparing, rundir

    count = options.processes(jobs, (method.run for method in plan.methods))
    with live(plan.runs()) as watch:
        result = comparing.compare(plan, folder, resume=resume, processes=count, watch=watch)
    page = draw(folder, report)
    if as_json:
        print_json(result | {"directory": str(folder), "report": page})
        return
    _print(result, folder)
    print_preparation(next(folder.rglob(rundir.CONFIG)).parent)
    print_places("runs", folder, page)


def _print(result: Mapping[str, Any], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedadmm.study import records, results, words
    from fedadmm.study.report.content import read

    found, search = read(folder).results, result["learning_rate_search"]
    goal = f"; target: {words.describe(found.target)}" if found.target is not None else ""
    title = f"{result['problem']}, {result['rounds']} rounds, seeds {result['seeds']}{goal}"
    metric = records.metric(found.metric) if found.metric is not None else None
    headings = ["rounds to target", "sent"] if found.target is not None else []
    headings += [metric.title.lower()] if metric is not None else []
    headings += ["difference"] if metric is not None and found.baseline is not None else []
    table = Table("method", title=title, title_justify="left")
    if search is not None:
        table.add_column("chosen")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in found.rows:
        failed = results.failures(row)
        cells = [row.method + (f" ({failed})" if failed else "")]
        cells += [_choice(search["chosen"][row.label])] if search is not None else []
        if found.target is not None:
            cells += [results.reached(found, row), words.size(row.bytes.mean)]
        if metric is not None:
            cells.append(words.spread(results.spread_of(row, metric.name), metric.share))
            cells += [results.compared(found, row)] if found.baseline is not None else []
        table.add_row(*cells)
    console = Console()
    console.print(table)
    for note in _notes(found, search):
        console.print(note, highlight=False)


def _notes(found: Results, search: Mapping[str, Any] | None) -> Iterator[str]:
    """What a reader of the table must know."""
    from fedadmm.study import records, results, words

    target = "sent: up and down until the target; " if found.target is not None else ""
    yield f"{target}means over the seeds after the last round; {words.SPREAD}"
    if found.baseline is not None and found.metric is not None:
        title = records.metric(found.metric).title.lower()
        yield (
            f"difference: {title} minus that of {found.baseline.method}, the best baseline, on the "
            "same seeds, with its 95 % interval"
        )
        yield from filter(None, [results.verdict(found)])
    if search is not None:
        yield (
            f"every method chose from {search['values']} on seed {search['seed']}, "
            f"{search['rounds']} rounds at most: {search['rule']}"
        )


def _choice(chosen: Mapping[str, Any]) -> str:
    return f"{chosen['key'].split('.')[-1]} {chosen['value']}"
