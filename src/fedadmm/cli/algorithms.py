"""`fedadmm algorithms`: every method in a line, or one on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import print_json

if TYPE_CHECKING:
    from fedadmm.study.methods import Card

_LEGEND = (
    "keeps: what a client remembers between rounds; sends: what it uploads in a round; both in "
    "models, that is in vectors as long as the model's"
)


@app.command(epilog="Example: fedadmm algorithms fedadmm")
def algorithms(
    name: Annotated[
        str | None, typer.Argument(help="Show this method's page.", show_default=False)
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the methods in a line each, or show one with its paper, its needs and its keys."""
    from fedadmm.study import methods

    cards = methods.cards() if name is None else [methods.card(name)]
    if as_json:
        print_json({"algorithms": [card._asdict() for card in cards]})
    elif name is None:
        _print_list(cards)
    else:
        _print_page(cards[0])


def _print_list(cards: list[Card]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "what it does", "keeps", "sends", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for card in sorted(cards):
        kept = sum("(" not in field for field in card.state)  # what is as long as the model
        table.add_row(card.name, card.summary, str(kept), f"{card.up:.3g}")
    console = Console()
    console.print(table)
    console.print(_LEGEND, highlight=False)
    console.print("fedadmm algorithms NAME shows one with its paper and keys", highlight=False)


def _print_page(card: Card) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    page = Table(show_header=False, box=None, pad_edge=False)
    page.add_column(no_wrap=True)
    page.add_column()
    page.add_row("paper", card.paper)
    page.add_row("keeps", ", ".join(card.state) or "nothing")
    page.add_row("sends", f"{card.up:.3g} models up, {card.down:.3g} down, per client and round")
    page.add_row("accepts", "; ".join(card.accepts))
    page.add_row("try it", f"fedadmm run quickstart --algorithm {card.name}")
    console = Console(highlight=False)
    console.print(f"{card.name}: {card.summary}", markup=False)
    if card.details:
        console.print(f"\n{card.details}", markup=False)
    console.print()
    console.print(page)
    console.print("\nkeys, for a file or --set")
    for key in card.keys:
        console.print(f"  algorithm.{key}", markup=False)
        meaning = card.meanings.get(key.partition(":")[0])
        if meaning is not None:
            console.print(Padding(Text(meaning), (0, 0, 0, 6)))
