"""What there is: `fedadmm algorithms`, `fedadmm data` and `fedadmm config`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import print_json, print_table
from fedadmm.study import config

if TYPE_CHECKING:
    from fedadmm.study.methods import Card

_LEGEND = (
    "keeps: vectors as long as the model that a client keeps between rounds; up, down: those that "
    "it sends and receives in a round"
)


@app.command(rich_help_panel="Choosing", epilog="Example: fedadmm algorithms fedadmm")
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

    from fedadmm.study.methods import GROUPS, group

    console = Console()
    longest = max(len(card.name) for card in cards)
    for title in GROUPS:
        table = Table(box=None, pad_edge=False, title=title, title_justify="left", expand=True)
        table.add_column("method", min_width=longest, no_wrap=True)
        table.add_column("what it does", ratio=1)
        for heading in ("keeps", "up", "down"):
            table.add_column(heading, justify="right")
        for card in sorted(cards):
            if group(card.name) == title:
                kept = sum("(" not in field for field in card.state)  # vectors, not numbers
                sent = (f"{one:.3g}" for one in (card.up, card.down))
                table.add_row(card.name, card.line, str(kept), *sent)
        console.print(table)
        console.print()
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


_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A data set, as `data list` shows it, or its alias.")
]

data_commands = typer.Typer(no_args_is_help=True, help="Data sets and how problems split them.")
app.add_typer(
    data_commands,
    name="data",
    epilog="Example: fedadmm data show digits",
    rich_help_panel="Choosing",
)


@data_commands.command("list", epilog="Example: fedadmm data list")
def list_(as_json: options.AsJson = False) -> None:
    """List the data sets, whether they are on this machine, and the named problems."""
    from fedadmm.data import download, problems
    from fedadmm.study.formatting import Table

    found = download.list_datasets()
    entries = [problems.options(name) for name in problems.names()]
    if as_json:
        rows = [info._asdict() | {"folder": str(info.folder)} for info in found]
        named = [{"name": e.name, "summary": e.summary, "dataset": e.dataset()} for e in entries]
        print_json({"datasets": rows, "problems": named})
        return
    sets = [
        [
            ", ".join([info.name, *info.aliases]),
            "yes" if info.present else "no",
            *(info.about, info.licence, str(info.folder)),
        ]
        for info in found
    ]
    print_table(Table("Data sets", ["data set", "here", "what", "licence", "folder"], sets), "left")
    lines = [[entry.name, entry.summary, entry.dataset() or "nothing"] for entry in entries]
    print_table(Table("Problems", ["problem", "what", "needs"], lines), "left")


@data_commands.command(epilog="Example: fedadmm data fetch mnist")
def fetch(name: _Name, as_json: options.AsJson = False) -> None:
    """Download a data set unless it is on this machine, and check every file."""
    import sys

    from fedadmm.data import download

    folder, found = download.fetch(name, progress=sys.stderr.isatty()), download.source(name).name
    if as_json:
        print_json({"name": found, "folder": str(folder)})
        return
    typer.echo(f"{found}  {folder}")


@data_commands.command(epilog="Example: fedadmm data path mnist")
def path(name: _Name, as_json: options.AsJson = False) -> None:
    """Print the folder of a data set that is on this machine."""
    from fedadmm.data import download

    folder = download.path(name)
    if as_json:
        print_json({"name": download.source(name).name, "folder": str(folder)})
        return
    typer.echo(str(folder))


@data_commands.command(epilog="Example: fedadmm data check mnist")
def check(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A data set; all of them if absent.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Verify the files that are here; a damaged one makes the exit code 2."""
    from fedadmm.data import download

    rows = download.check(name)
    damaged = [row for row in rows if row.status == "damaged"]
    if as_json:
        print_json({"files": [row._asdict() for row in rows]})
    else:
        for row in rows:
            typer.echo(f"{row.status:8} {row.dataset}/{row.file}  {row.detail}")
    if damaged:
        raise typer.Exit(2)


@data_commands.command(
    "show", epilog="Example: fedadmm data show mnist --set clients=100 --set partition=shards"
)
def show_problem(
    problem: Annotated[str, typer.Argument(metavar="PROBLEM", help="A named problem.")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the problem."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The picture; PROBLEM-partition.png if absent.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Draw labels × clients and print how different the clients of a problem are."""
    from fedadmm.data.heterogeneity import describe

    tree: dict[str, Any] = {"problem": {"name": problem}}
    for text in sets or ():
        key, value = config.assignment(text)
        config.assign(tree, f"problem.{key}", value)
    resolved = config.resolve(tree)
    loaded, name = resolved.load_problem(), resolved.name("problem")
    if out is None and loaded.data is not None:
        out = Path(f"{name}-partition.png")
    found = describe(loaded, out)
    if as_json:
        summary = found.summary._asdict() if found.summary is not None else None
        drawn = str(found.picture) if found.picture is not None else None
        print_json(
            {"problem": name, "parameters": found.parameters, "summary": summary, "picture": drawn}
        )
        return
    width = max(len(key) for key, _ in found.rows)
    for key, text in found.rows:
        typer.echo(f"{key:{width}}  {text}")
    if found.picture is not None:
        typer.echo(f"{'picture':{width}}  {found.picture}")


config_commands = typer.Typer(
    no_args_is_help=True, help="Presets, and the schema of configuration files."
)
app.add_typer(
    config_commands,
    name="config",
    epilog="Example: fedadmm config schema > schema.json",
    rich_help_panel="Choosing",
)


@config_commands.command(epilog="Example: fedadmm config presets")
def presets(as_json: options.AsJson = False) -> None:
    """List the presets and what each is."""
    about = {name: config.about(text) for name, text in config.presets().items()}
    if as_json:
        print_json({"presets": about})
        return
    for name, text in about.items():
        typer.echo(f"{name:20} {text}")


@config_commands.command("show", epilog="Example: fedadmm config show quickstart > mine.toml")
def show_preset(name: Annotated[str, typer.Argument(help="A preset's name.")]) -> None:
    """Print a preset as it was written, to start your own file from."""
    from fedadmm.core.config_tree import suggestion
    from fedadmm.core.errors import ConfigError

    known = config.presets()
    if name not in known:
        raise ConfigError(f"there is no preset {name!r}; {suggestion(name, known)}")
    typer.echo(known[name], nl=False)


@config_commands.command(epilog="Example: fedadmm config schema > fedadmm.schema.json")
def schema() -> None:
    """Print the JSON schema of configuration files."""
    from fedadmm.study.compare import schema

    print_json(schema())
