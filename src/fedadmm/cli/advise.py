"""`fedadmm advise`: a setting to start from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import print_json, steps
from fedadmm.study import config

if TYPE_CHECKING:
    from fedadmm.study.advise import Advice


@app.command(
    cls=options.TakesFiles,
    rich_help_panel="Choosing",
    epilog="Example: fedadmm advise digits --write config.toml",
)
def advise(
    source: options.Source = None,
    csv: options.Csv = None,
    target: options.TargetColumn = None,
    client: options.ClientColumn = None,
    clients: Annotated[
        int, typer.Option("--clients", min=1, help="Sample this many clients for the estimates.")
    ] = 6,
    samples: Annotated[
        int,
        typer.Option("--samples", min=1, help="Estimate the curvature on this many samples each."),
    ] = 64,
    seed: options.Seed = None,
    sets: options.Sets = None,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write the complete configuration here.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Recommend a method, its penalty and a learning rate, and print the command that runs them."""
    from fedadmm.study import run_dir
    from fedadmm.study.advise import advise as advise_on

    tree = config.run_only(options.begin(source))
    options.apply(tree)
    with steps() as report:
        advice = advise_on(
            config.resolve(tree), clients=clients, samples=samples, on_progress=report
        )
    if write is not None:
        run_dir.write_toml(write, advice.config)
    if as_json:
        found = advice.constants
        smooth = {"smoothness": found.smoothness, "smoothness_spread": found.smoothness_spread}
        print_json(advice._asdict() | {"constants": found._asdict() | smooth})
        return
    typer.echo(_command(advice, source))
    for meaning, value in _numbers(advice).items():
        typer.echo(f"  {meaning:22} {value}")
    if write is not None:
        typer.echo(f"config  {write}")


def _command(advice: Advice, source: str | None) -> str:
    """The command line that runs the recommended setting on the same problem."""
    given = click.get_current_context().params
    words = ["fedadmm", "run", *([] if source is None else [source])]
    words += ["--csv", *given["csv"]] if given["csv"] else []
    words += [w for name in ("target", "client") if given[name] for w in (f"--{name}", given[name])]
    words += [] if given["seed"] is None else ["--seed", str(given["seed"])]
    words += ["--algorithm", str(advice.settings["algorithm.name"])]
    sets = [*(given["sets"] or ())]
    sets += [f"{key}={value}" for key, value in advice.settings.items() if key != "algorithm.name"]
    return shlex.join([*words, *(word for one in sets for word in ("--set", one))])


def _numbers(advice: Advice) -> dict[str, str]:
    found, settings = advice.constants, advice.settings
    origin = "declared" if found.known_smoothness is not None else "estimated"
    names = {
        "penalty, rho": "algorithm.rho",
        "step size, eta": "algorithm.eta",
        "learning rate, lr": "local.solver.lr",
    }
    shown = {name: f"{settings[key]:g}" for name, key in names.items() if key in settings}
    shown["local steps per round"] = str(advice.local_steps)
    smoothness = f"{found.smoothness:.3g} ± {found.smoothness_spread:.2g} ({origin})"
    return shown | {"smoothness, L": smoothness}
