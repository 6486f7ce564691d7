"""`fedadmm reproduce`: a table or figure of the papers with our results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import finish, live, print_json, print_table
from fedadmm.cli.group import again, resumable


@app.command(
    rich_help_panel="Experiments", epilog="Example: fedadmm reproduce wang-fig2 --scale quick"
)
def reproduce(
    identifier: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="A table or figure, or a recipe's TOML file; lists them if absent."
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", help="smoke (seconds), quick (minutes) or full (the paper's).")
    ] = "quick",
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="How many seeds, from 0 on.")
    ] = None,
    cells: Annotated[
        list[str] | None,
        typer.Option("--cells", metavar="SETTING/METHOD", help="Only cells that match; * is free."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder; runs/reproduce/ID-SCALE if absent.")
    ] = None,
    search: Annotated[
        bool,
        typer.Option("--search/--no-search", help="Choose learning rates, or keep the recipe's."),
    ] = True,
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Run nothing; draw what is there already.")
    ] = False,
    jobs: options.Jobs = None,
    as_json: options.AsJson = False,
) -> None:
    """Run a table or figure of the papers and print it with the paper's values.

    Finished cells are found again, interrupted ones go on.
    """
    from fedadmm.core.validation import check
    from fedadmm.study.formatting import Table
    from fedadmm.study.recipes import SCALES, identifiers, load, name_of, plan
    from fedadmm.study.reproduce import NOTE, measured_tables, reductions, reproduce as run
    from fedadmm.study.results import search_notes
    from fedadmm.study.run_dir import REPORT

    check("reproduce", "--scale", scale, Literal[SCALES])
    if identifier is None:
        found = {one: load(one) for one in identifiers()}
        if as_json:
            rows = [{"id": i, "title": r.title, "source": r.source} for i, r in found.items()]
            print_json({"recipes": rows})
        else:
            lines = [[i, r.title, r.source] for i, r in found.items()]
            print_table(Table("Recipes", ["id", "what", "source"], lines), "left")
        return
    folder = out or Path("runs/reproduce") / f"{name_of(identifier)}-{scale}"
    with resumable(again(out=folder)):
        study = plan(identifier, scale, seeds, cells or [], search)
        count = options.processes(jobs, study)
        with live(study.runs()) as watch:
            made = run(study, folder, processes=count, watch=watch, only_cached=draw_only)
    rows, notes = (
        made.document["table"],
        [NOTE, *reductions(made.document), *(search_notes(made.search) if made.search else ())],
    )
    if missing := sum(len(row["missing"]) for row in rows):
        notes.append(f"missing {missing} of {len(rows) * len(made.document['seeds'])} runs")
    page, tables = str(folder / REPORT), list(measured_tables(made.document).values())
    finish(made, page, as_json, tables, notes, results=folder / "results.md")
