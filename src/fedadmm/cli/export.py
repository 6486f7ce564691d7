"""`fedadmm export`: a run's records or its model; `fedadmm predict`: what it says of new rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import print_json
from fedadmm.core.errors import ConfigError


@app.command(rich_help_panel="Results", epilog="Example: fedadmm export runs/mine --format onnx")
def export(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run, or the folder of a comparison or sweep.")
    ],
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            help="csv or jsonl for the rounds; state-dict, safetensors or onnx for the model.",
        ),
    ] = "csv",
    out: Annotated[
        Path | None, typer.Option("--out", help="Write this file; by default one in RUN.")
    ] = None,
    last: Annotated[
        bool, typer.Option("--last", help="Export the last model instead of the best.")
    ] = False,
    client: Annotated[
        int | None,
        typer.Option("--client", min=0, help="Export the own model of this client, by its number."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write every round of a run, or of all runs below a folder, into one table, or its model."""
    from fedadmm.study.export import MODELS, export as export_table, export_model

    if kind not in MODELS:
        if client is not None:
            raise ConfigError(
                f"--client is {client}, but --format is {kind!r}; use one of {', '.join(MODELS)}"
            )
        path, rows = export_table(directory, kind, out)
        about = {"rows": rows}
        said = f"{rows} rows"
    else:
        path, about = export_model(directory, kind, out, last, client)
        said = _said(about)
    if as_json:
        print_json({"file": str(path), "format": kind} | about)
        return
    typer.echo(f"{said}  {path}")


def _said(about: Mapping[str, Any]) -> str:
    """Which model it is, and what is known of the file."""
    words = "the last model"
    if "client" in about:
        words = f"client {about['client']}'s own model, round {about['round']}"
    elif "model" in about:
        words = f"the model {about['model']}"
    elif "round" in about:
        words = f"round {about['round']}, chosen by {about['metric']}"
    if "largest_difference" in about:
        words += f", within {about['largest_difference']:.1g} of torch on {about['rows']} rows"
    return words


@app.command(
    rich_help_panel="Results",
    epilog="Example: fedadmm predict runs/table-fedadmm-seed0 new.csv --out answers.csv",
)
def predict(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run that --csv began.")
    ],
    rows: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A CSV file of new samples with the run's columns."),
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
    from fedadmm.core import atomic_files
    from fedadmm.study.formatting import csv_text
    from fedadmm.study.predict import Predictor

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
        atomic_files.write(out, csv_text(heads, lines).encode())
        typer.echo(f"{len(lines)} rows  {out}")
