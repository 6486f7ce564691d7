"""The command line.

Every module of MODULES adds its commands to `app`.  They import typer at their top and everything
heavy inside the command, so that `fedadmm --help` answers at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from fedadmm.cli.group import CommandGroup

MODULES = (
    "run",
    "sweep",
    "report",
    "export",
    "advise",
    "catalogue",
    "reproduce",
    "deploy",
)
"""In the order of the help page."""

app = typer.Typer(
    name="fedadmm",
    cls=CommandGroup,
    no_args_is_help=True,
    suggest_commands=False,  # click suggests already
    pretty_exceptions_enable=False,
    epilog="Example: fedadmm compare quickstart",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from fedadmm import __version__

        typer.echo(f"fedadmm {__version__}")
        raise typer.Exit


@app.callback()
def _fedadmm(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
    trust_code: Annotated[
        bool,
        typer.Option("--trust-code", help="Import package.module:Name that a run's folder names."),
    ] = False,
) -> None:
    """Primal-dual federated learning: run, compare, understand."""


for _module in MODULES:
    import_module(f"fedadmm.cli.{_module}")


def main() -> None:
    """The entry point of the command `fedadmm`."""
    app()
