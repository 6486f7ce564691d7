"""`fedadmm algorithms`: every method with its paper, its state and what it sends."""

from __future__ import annotations

from typing import Annotated

import typer

from fedadmm.cli import app, options


@app.command(epilog="Example: fedadmm algorithms fedadmm")
def algorithms(
    name: Annotated[
        str | None, typer.Argument(help="One method, with all its keys.", show_default=False)
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the methods: paper, client state, vectors sent a round, what each accepts."""
    from fedadmm.cli.display import print_json
    from fedadmm.study import methods

    cards = methods.cards() if name is None else [methods.card(name)]
    if as_json:
        print_json({"algorithms": [card._asdict() for card in cards]})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_lines=name is not None)
    for heading in ("name", "paper", "client state", "up", "down", "accepts"):
        table.add_column(heading, overflow="fold")
    for card in cards:
        table.add_row(
            card.name,
            card.paper,
            ", ".join(card.state) or "none",
            f"{card.up:.3g} D",
            f"{card.down:.3g} D",
            "; ".join(card.accepts),
        )
    console = Console()
    console.print(table)
    console.print("up and down: what one client sends and gets in a round, in model vectors D")
    if name is not None:
        for key in cards[0].keys:
            console.print(f"  algorithm.{key}", highlight=False, markup=False)
