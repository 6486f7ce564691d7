"""`fedadmm predict`: what a run's model says of new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedadmm.cli import app, options


@app.command(epilog="Example: fedadmm predict runs/table-fedadmm-seed0 new.csv --out answers.csv")
def predict(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run that --csv began.")
    ],
    rows: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="New rows, CSV or Parquet, with the run's columns."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Write this CSV file; by default print it.")
    ] = None,
    last: Annotated[
        bool, typer.Option("--last", help="Use the last model instead of the best.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict the target of new rows: its label with probabilities, or its number."""
    from fedadmm.cli.display import print_json
    from fedadmm.core import files
    from fedadmm.study.formatting import csv_text
    from fedadmm.study.predicting import Predictor

    model = Predictor(run, last)
    heads, lines = [model.target], [[one] for one in model.predict(rows).tolist()]
    if model.labels:
        heads += [f"p({label})" for label in model.labels]
        for line, chances in zip(lines, model.predict_proba(rows).tolist(), strict=True):
            line += [round(chance, 6) for chance in chances]
    if as_json:
        print_json({"rows": [dict(zip(heads, line, strict=True)) for line in lines]})
    elif out is None:
        typer.echo(csv_text(heads, lines), nl=False)
    else:
        files.write(out, csv_text(heads, lines).encode())
        typer.echo(f"{len(lines)} rows  {out}")
