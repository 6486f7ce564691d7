"""The command reference, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer.main
from sources import one_line

from fedadmm.cli import app


def page() -> str:
    """Every command with its usage, options and example."""
    root = typer.main.get_command(app)
    parts = [
        "# Commands",
        one_line(root.help or ""),
        "`--help` after any of them prints the same. Bad input ends with exit code 2 and one "
        "sentence on standard error; an interrupted run ends with 130 and the command that goes "
        "on with it.",
    ]
    for path, command in walk(root, "fedadmm"):
        parts += _command(path, command)
    return "\n\n".join(parts) + "\n"


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below a group, with the words that call it."""
    for name, below in getattr(command, "commands", {}).items():
        if below.hidden:
            continue
        yield f"{path} {name}", below
        yield from walk(below, f"{path} {name}")


def _command(path: str, command: click.Command) -> list[str]:
    context = click.Context(command, info_name=path)
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"## {path}", one_line(command.help or ""), f"```\n{path} {usage}\n```"]
    rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
    if rows and not getattr(command, "commands", None):
        parts.append("\n".join(["| | default | |", "|---|---|---|", *rows]))
    if command.epilog:
        parts.append(one_line(command.epilog).replace("Example: ", "Example: `", 1) + "`")
    return parts


def _row(parameter: click.Parameter) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    about = getattr(parameter, "help", None) or ""
    if isinstance(parameter, click.Argument):
        names = [parameter.make_metavar(click.Context(click.Command("none")))]
    default = parameter.default
    shown = "" if default in (None, False, ()) or callable(default) else f"`{default}`"
    return f"| `{', '.join(names)}` | {shown} | {one_line(about)} |"
