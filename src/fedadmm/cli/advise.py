"""`fedadmm advise`: a setting to start from."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import print_json, print_table, steps
from fedadmm.study import config

if TYPE_CHECKING:
    from rich.console import Console

    from fedadmm.study.advising import Recommendation


@app.command(cls=options.TakesFiles, epilog="Example: fedadmm advise digits --write config.toml")
def advise(
    source: options.Source = None,
    csv: options.Csv = None,
    target: options.TargetColumn = None,
    client: options.ClientColumn = None,
    clients: Annotated[
        int, typer.Option("--clients", min=1, help="Look at this many clients.")
    ] = 6,
    rows: Annotated[
        int,
        typer.Option("--rows", min=1, help="Take the curvature over this many rows per client."),
    ] = 64,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Propose noise that spends this epsilon.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="The delta that goes with it.")] = 1e-5,
    seed: options.Seed = None,
    sets: options.Sets = None,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write a ready configuration here.")
    ] = None,
    why: Annotated[
        bool, typer.Option("--why", help="Show the constants and the theorems' ranges behind it.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Say which setting to use for a problem; --why shows its constants and theorems' ranges."""
    from fedadmm.study import rundir
    from fedadmm.study.advising import PRIVATE_ROUNDS, private
    from fedadmm.study.advising import advise as advise_on

    tree = config.run_only(options.begin(source))
    options.apply(tree)
    run = config.resolve(tree)
    with steps() as report:
        advice = advise_on(run, clients=clients, rows=rows, on_progress=report)
    if epsilon is not None:
        rounds = run.rounds if "rounds" in tree else PRIVATE_ROUNDS
        advice = private(advice, run.sampler, rounds, epsilon, delta)
    if write is not None:
        rundir.write_toml(write, advice.config)
    if as_json:
        print_json(_document(advice))
        return
    _print(advice, source, write, why)
    if write is not None:
        typer.echo(f"config  {write}")


def _document(advice: Recommendation) -> dict[str, Any]:
    found = advice.estimate
    return {
        "problem": advice.problem,
        "clients": advice.clients,
        "parameters": advice.parameters,
        "estimate": found._asdict() | {"L": found.largest, "L_spread": found.spread},
        "situation": asdict(advice.situation),
        "advice": [row._asdict() for row in advice.rows],
        "rounds": advice.rounds,
        "remarks": advice.remarks,
        "config": advice.config,
        "privacy": None if advice.privacy is None else advice.privacy._asdict(),
    }


def _print(advice: Recommendation, source: str | None, written: Path | None, why: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if advice.privacy is None:
        line = _line(advice, source)
    elif written is not None:
        line = shlex.join(["fedadmm", "run", str(written)])
    else:  # a setting with tables of its own, which a file must hold
        line = "fedadmm run private.toml, which --write private.toml makes:"
    console.print(line, markup=False, soft_wrap=True)
    for meaning, value in _numbers(advice):
        console.print(f"  {meaning:22} {value}", markup=False)
    for remark in advice.remarks:
        console.print(remark)
    if why:
        console.print("\nWhere that comes from")
        _print_estimate(advice, console)
        _print_theory(advice, console)


def _line(advice: Recommendation, source: str | None) -> str:
    """The command that runs the recommended setting on what was looked at."""
    algorithm = advice.config["algorithm"]
    given = click.get_current_context().params
    words = ["fedadmm", "run", *([] if source is None else [source])]
    words += ["--csv", *given["csv"]] if given["csv"] else []
    words += [w for o in ("target", "client") if given[o] for w in (f"--{o}", given[o])]
    words += ["--algorithm", algorithm["name"]]
    sets = [*(given["sets"] or ())]
    sets += [f"algorithm.{key}={algorithm[key]}" for key in advice.changed if key in algorithm]
    if "lr" in advice.changed:
        sets.append(f"local.solver.lr={advice.config['local']['solver']['lr']}")
    if algorithm["name"] == "fedadmm":
        sets.append(f"local.start={advice.config['local']['start']}")
    if algorithm["name"] == "aligned-admm":
        sets.append(f"output.name={advice.config['output']['name']}")
    return shlex.join([*words, *(word for one in sets for word in ("--set", one))])


def _numbers(advice: Recommendation) -> list[tuple[str, str]]:
    """The numbers to use: penalty, or what noise takes; learning rate, local steps."""
    algorithm, solver = advice.config["algorithm"], advice.config["local"]["solver"]
    if (chosen := advice.privacy) is not None:
        rows = [
            ("method", algorithm["name"]),
            ("rounds", str(chosen.rounds)),
            ("sampler, probability", f"{chosen.probability:g}"),
            ("noise, multiplier", f"{chosen.multiplier:g}"),
            ("clip", "adaptive-clip"),
        ]
    else:
        penalty = "eta" if "eta" in advice.changed else "rho"
        rows = [(f"penalty, {penalty}", f"{algorithm[penalty]:g}")]
    if "lr" in advice.changed:
        rows.append(("learning rate, lr", f"{solver['lr']:g}"))
    return [*rows, ("local steps per round", str(advice.situation.local_steps))]


def _print_estimate(advice: Recommendation, console: Console) -> None:
    found = advice.estimate
    console.print(f"{advice.problem}: {advice.clients} clients, {advice.parameters:,} parameters")
    kind = {None: "not known to be convex", 0.0: "convex"}.get(
        found.convexity, f"strongly convex, {found.convexity or 0:.3g}"
    )
    origin = "known" if found.known_smoothness is not None else "estimated"
    spread = "" if found.known_smoothness is not None else f"± {found.spread:.2g}, "
    console.print(f"L {found.largest:.3g} ({spread}{origin}); {kind}")
    if spread:
        console.print("± is the standard deviation over the clients looked at")
    console.print(
        f"heterogeneity {found.heterogeneity:.3g} (1 when all clients agree); "
        f"mini-batch noise {found.batch_noise:.3g}"
    )
    from fedadmm.theory import table_one

    of_means = math.sqrt(advice.clients) * found.dissimilarity
    console.print(
        f"B {found.dissimilarity:.3g} in Σ‖∇f_i‖² ≤ B²‖Σ∇f_i‖² and G {found.gradient_bound:.3g} in "
        "‖∇f_i‖ ≤ G (Gong et al., (9), (10) and Table I): the largest met, so at least that; with "
        f"means instead of sums, as FedProx has it, B is {of_means:.3g}. "
        "FedADMM's and FedDR's theorems need neither."
    )
    accuracy, active = advice.situation.accuracy, advice.situation.p_hat * advice.clients
    orders = table_one(accuracy, advice.clients, active, of_means, found.gradient_bound)
    shown = ", ".join(f"{name} {value:.2g}" for name, value in orders.items())
    console.print(f"Table I's orders of rounds to {accuracy:.2g}, without constants: {shown}")


def _print_theory(advice: Recommendation, console: Console) -> None:
    from fedadmm.study.formatting import Table

    lines = []
    for row in advice.rows:
        allowed = f"({row.low:.3g}, {'∞' if math.isinf(row.high) else f'{row.high:.3g}'})"
        lines.append([row.method, row.parameter, allowed, f"{row.recommended:.3g}"])
    print_table(Table("", ["method", "parameter", "allowed", "recommended"], lines), "left")
    notes = dict.fromkeys(f"{row.parameter}, {row.method}: {row.note}" for row in advice.rows)
    for note in notes:
        console.print(f"· {note}")
    for theorem, rounds in advice.rounds.items():
        console.print(
            f"{theorem}: at most {rounds:,} rounds to a mean of {advice.situation.accuracy:.2g} "
            "(a worst case; runs are usually far quicker)"
        )
    if advice.privacy is not None:
        chosen = advice.privacy
        console.print(
            f"privacy: {chosen.rounds} rounds of about {chosen.cohort:.3g} clients (each with "
            f"probability {chosen.probability:g}), an adaptive clip, and noise with multiplier "
            f"{chosen.multiplier:g} spend epsilon {chosen.epsilon:g} at delta {chosen.delta:g}"
        )
