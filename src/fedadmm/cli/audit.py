"""`fedadmm audit`: what a curious server can reconstruct from one upload."""

from __future__ import annotations

from typing import Annotated

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import print_json, print_note, print_places, print_table, steps
from fedadmm.study import config


@app.command(epilog="Example: fedadmm audit quickstart --client 3 --rows 8")
def audit(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="Name a preset or a problem, or give a TOML file or a run directory.",
        ),
    ],
    client: Annotated[
        int, typer.Option("--client", min=0, help="Attack the upload of this client.")
    ] = 0,
    rows: Annotated[
        int | None,
        typer.Option("--rows", min=1, help="Let the client train on this many of its rows."),
    ] = None,
    round_number: Annotated[
        int, typer.Option("--round", min=1, help="Attack the upload of this round; 1 is the first.")
    ] = 1,
    attack: Annotated[
        str | None,
        typer.Option(
            "--attack",
            help="Try only this one: analytic, weighted or matching; else the first two that fit.",
        ),
    ] = None,
    algorithm: options.Algorithm = None,
    seed: options.Seed = None,
    sets: options.Sets = None,
    out: options.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Attack one client's upload, as configured and with more or less protection.

    Writes audit.html, with originals beside reconstructions, audit.json, and the table as Markdown,
    LaTeX and CSV.
    """
    from fedadmm.study import auditing, formatting, rundir
    from fedadmm.study.report.audit_page import audit_page, table

    tree = config.run_only(config.read(source))
    options.apply(tree)
    run = config.resolve(tree)
    folder = options.output_folder(out, f"audit-{run.label}-{run.name('problem')}", resume=False)
    with steps() as report:
        found = auditing.audit(
            run,
            client=client,
            rows=rows,
            round_number=round_number,
            attack=attack,
            on_progress=report,
        )
    document = auditing.document(found)
    rundir.create(folder)
    rundir.write_json(folder / "audit.json", document)
    rundir.write_text(folder / "audit.html", audit_page(found))
    formatting.write_tables(folder, {"audit": table(found)})
    if as_json:
        print_json(document | {"report": str(folder / "audit.html")})
        return
    print_table(table(found))
    for title, why in found.left_out.items():
        print_note(f"Not run: {title}. {why}")
    print_places(report=folder / "audit.html")
