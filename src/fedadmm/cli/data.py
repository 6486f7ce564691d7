"""`fedadmm data`: what data there is, where it lies, and how a problem splits it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import print_json, print_table
from fedadmm.study import config

_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A data set, as `data list` shows it, or its alias.")
]

commands = typer.Typer(no_args_is_help=True, help="Data sets and how problems split them.")
app.add_typer(commands, name="data", epilog="Example: fedadmm data show digits")


@commands.command("list", epilog="Example: fedadmm data list")
def list_(as_json: options.AsJson = False) -> None:
    """List the data sets, whether they are on this machine, and the named problems."""
    from fedadmm.data import problems, sources
    from fedadmm.study.formatting import Table

    found = sources.list_datasets()
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


@commands.command(epilog="Example: fedadmm data fetch mnist")
def fetch(name: _Name, as_json: options.AsJson = False) -> None:
    """Download a data set unless it is on this machine, and check every file."""
    import sys

    from fedadmm.data import sources

    folder, found = sources.fetch(name, progress=sys.stderr.isatty()), sources.source(name).name
    if as_json:
        print_json({"name": found, "folder": str(folder)})
        return
    typer.echo(f"{found}  {folder}")


@commands.command(epilog="Example: fedadmm data path mnist")
def path(name: _Name, as_json: options.AsJson = False) -> None:
    """Print the folder of a data set that is on this machine."""
    from fedadmm.data import sources

    folder = sources.path(name)
    if as_json:
        print_json({"name": sources.source(name).name, "folder": str(folder)})
        return
    typer.echo(str(folder))


@commands.command(epilog="Example: fedadmm data check mnist")
def check(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A data set; all of them if absent.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Verify the files that are here; a damaged one makes the exit code 2."""
    from fedadmm.data import sources

    rows = sources.check(name)
    damaged = [row for row in rows if row.status == "damaged"]
    if as_json:
        print_json({"files": [row._asdict() for row in rows]})
    else:
        for row in rows:
            typer.echo(f"{row.status:8} {row.dataset}/{row.file}  {row.detail}")
    if damaged:
        raise typer.Exit(2)


@commands.command(
    epilog="Example: fedadmm data show mnist --set clients=100 --set partition=shards"
)
def show(
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
    from fedadmm.data.summary import describe

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
