"""`fedadmm config`: the presets, and the schema for editors."""

from __future__ import annotations

from typing import Annotated

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import print_json
from fedadmm.study import config

commands = typer.Typer(no_args_is_help=True, help="Presets, and the schema of configuration files.")
app.add_typer(commands, name="config", epilog="Example: fedadmm config schema > schema.json")


@commands.command(epilog="Example: fedadmm config presets")
def presets(as_json: options.AsJson = False) -> None:
    """List the presets and what each is."""
    about = {name: config.about(text) for name, text in config.presets().items()}
    if as_json:
        print_json({"presets": about})
        return
    for name, text in about.items():
        typer.echo(f"{name:20} {text}")


@commands.command(epilog="Example: fedadmm config show quickstart > mine.toml")
def show(name: Annotated[str, typer.Argument(help="A preset's name.")]) -> None:
    """Print a preset as it was written, to start your own file from."""
    from fedadmm.core.errors import ConfigError
    from fedadmm.core.tables import suggestion

    known = config.presets()
    if name not in known:
        raise ConfigError(f"there is no preset {name!r}; {suggestion(name, known)}")
    typer.echo(known[name], nl=False)


@commands.command(epilog="Example: fedadmm config schema > fedadmm.schema.json")
def schema() -> None:
    """Print the JSON schema of configuration files."""
    from fedadmm.study.comparing import schema

    print_json(schema())
