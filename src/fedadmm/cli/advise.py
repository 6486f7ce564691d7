"""`fedadmm advise`: what the theorems allow for a problem, and a setting to start from."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedadmm.cli import app, options

if TYPE_CHECKING:
    from fedadmm.study.advising import Counsel


@app.command(epilog="Example: fedadmm advise digits --write config.toml")
def advise(
    source: Annotated[
        str,
        typer.Argument(metavar="PROBLEM", help="A problem's name, a preset, or a TOML file."),
    ],
    clients: Annotated[int, typer.Option("--clients", min=1, help="Clients to look at.")] = 6,
    rows: Annotated[
        int, typer.Option("--rows", min=1, help="Rows a client for the curvature.")
    ] = 64,
    seed: options.Seed = None,
    sets: options.Sets = None,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write a ready configuration here.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Estimate a problem's constants; print the theorems' ranges and a recommended setting."""
    from fedadmm.cli.display import print_json
    from fedadmm.study import config, rundir
    from fedadmm.study.advising import advise as counsel_for

    tree = _tree(source)
    options.apply(tree)
    counsel = counsel_for(config.resolve(tree), clients=clients, rows=rows)
    if write is not None:
        rundir.write_toml(write, counsel.config)
    if as_json:
        print_json(_document(counsel))
        return
    _print(counsel)
    if write is not None:
        typer.echo(f"config  {write}")


def _tree(source: str) -> dict[str, Any]:
    """A problem's name alone: a tenth of many clients, 5 epochs, batches of 20."""
    from fedadmm.data import problems
    from fedadmm.study import loading

    if problems.canonical(source) not in problems.names() or Path(source).is_file():
        return loading.run_only(loading.read(source))
    count = getattr(problems.options(source)(), "clients", None) or 0
    sampler: dict[str, Any] = {"name": "full"}
    if count >= 50:
        sampler = {"name": "uniform", "size": 0.1}
    return {
        "problem": {"name": source},
        "solver": {"name": "sgd", "batch_size": 20},
        "stop": {"name": "epochs", "epochs": 5},
        "sampler": sampler,
    }


def _document(counsel: Counsel) -> dict[str, Any]:
    found = counsel.estimate
    return {
        "problem": counsel.problem,
        "clients": counsel.clients,
        "parameters": counsel.parameters,
        "estimate": found._asdict() | {"L": found.largest, "L_spread": found.spread},
        "situation": asdict(counsel.situation),
        "advice": [row._asdict() for row in counsel.advice],
        "rounds": counsel.rounds,
        "remarks": counsel.remarks,
        "config": counsel.config,
    }


def _mean_dissimilarity(counsel: Counsel) -> float:
    """sqrt(mean ||grad f_i||²) / ||mean grad f_i||."""
    return math.sqrt(counsel.clients) * counsel.estimate.dissimilarity


def _print(counsel: Counsel) -> None:
    from rich.console import Console
    from rich.table import Table

    found, situation = counsel.estimate, counsel.situation
    console = Console()
    console.print(
        f"{counsel.problem}: {counsel.clients} clients, {counsel.parameters:,} parameters"
    )
    kind = {None: "not known to be convex", 0.0: "convex"}.get(
        found.convexity, f"strongly convex, {found.convexity or 0:.3g}"
    )
    origin = "known" if found.known_smoothness is not None else f"± {found.spread:.2g}, estimated"
    console.print(f"L {found.largest:.3g} ({origin}); {kind}", highlight=False)
    console.print(
        f"heterogeneity {found.heterogeneity:.3g} (1 when all clients agree); "
        f"mini-batch noise {found.batch_noise:.3g}; {situation.local_steps} local steps a round",
        highlight=False,
    )
    console.print(
        f"B {found.dissimilarity:.3g} in Σ‖∇f_i‖² ≤ B²‖Σ∇f_i‖² and G {found.gradient_bound:.3g} in "
        "‖∇f_i‖ ≤ G (Gong et al., (9), (10) and Table I): the largest met, so at least that; with "
        f"means instead of sums, as FedProx has it, B is {_mean_dissimilarity(counsel):.3g}. "
        "FedADMM's and FedDR's theorems need neither.",
        highlight=False,
    )
    table = Table()
    for heading in ("method", "parameter", "allowed", "recommended"):
        table.add_column(heading, overflow="fold")
    for row in counsel.advice:
        allowed = f"({row.low:.3g}, {'∞' if math.isinf(row.high) else f'{row.high:.3g}'})"
        table.add_row(row.method, row.parameter, allowed, f"{row.recommended:.3g}")
    console.print(table)
    notes = dict.fromkeys(f"{row.parameter}, {row.method}: {row.note}" for row in counsel.advice)
    for note in notes:
        console.print(f"· {note}", highlight=False)
    for theorem, rounds in counsel.rounds.items():
        console.print(
            f"{theorem}: at most {rounds:,} rounds to a mean of {situation.accuracy:.2g} "
            "(a worst case; runs are usually far quicker)",
            highlight=False,
        )
    for remark in counsel.remarks:
        console.print(remark, highlight=False)
