"""`fedadmm incentives`: what clients do for a reward, and which reward buys a target cheapest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import live, print_json, print_table
from fedadmm.cli.group import again, resumable
from fedadmm.study import config

if TYPE_CHECKING:
    from fedadmm.study.sweeping import Offer


@app.command(epilog="Example: fedadmm incentives quickstart --costs 0.5:1.5 --most 10")
def incentives(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A preset or TOML file with a target; without one only the game is solved.",
        ),
    ] = None,
    costs: Annotated[
        str,
        typer.Option(
            "--costs", help="What effort costs: a number, LOW:HIGH, or one number per client."
        ),
    ] = "0.5:1.5",
    clients: Annotated[
        int | None, typer.Option("--clients", min=2, help="Clients of a game without CONFIG.")
    ] = None,
    least: Annotated[float, typer.Option("--least", help="Fewest epochs per round.")] = 1.0,
    most: Annotated[float, typer.Option("--most", help="Most epochs per round.")] = 10.0,
    rewards: Annotated[
        str | None, typer.Option("--rewards", help="Rewards to look at, as in 1,1.5,2.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the runs.")] = Path(
        "runs/incentives"
    ),
    sets: options.Sets = None,
    jobs: options.Jobs = None,
    as_json: options.AsJson = False,
) -> None:
    """Solve the clients' game: how much effort a reward buys, and where it jumps.

    With CONFIG every reward is run with the epochs that the clients then choose, and the one that
    reaches the target for the least money is named.
    """
    from fedadmm.core.errors import ConfigError
    from fedadmm.study import sweeping

    asked = options.listed(rewards, "--rewards", float, "numbers such as 0.5,1")
    if source is None:
        of = sweeping.offer(sweeping.costs_of(costs, clients or 20), least, most, asked)
        found = {"critical_reward": of.critical, "rewards": sweeping.offered(of)}
    else:
        if clients is not None:
            raise ConfigError(f"--clients is {clients}, but CONFIG says how many there are")
        tree = config.run_only(config.read(source))
        options.apply(tree)
        of = sweeping.offer(sweeping.costs_of(costs, sweeping.clients_of(tree)), least, most, asked)
        study = sweeping.plan_offer(tree, of)
        count = options.processes(jobs, study)
        with resumable(again(out=out)), live(study.runs()) as watch:
            found = sweeping.buy(study, of, out, processes=count, watch=watch)
    if as_json:
        print_json(found)
        return
    _print(of, found)


def _print(of: Offer, found: dict[str, Any]) -> None:
    from fedadmm.study.formatting import Table

    bought = "cheapest" in found
    headings = ["reward", "mean epochs", "fewest", "most", "paid per round"]
    lines = []
    for row in found["rewards"]:
        efforts = (row["mean_effort"], row["least_effort"], row["most_effort"])
        cells = [f"{row['reward']:.4g}", *(f"{e:.3g}" for e in efforts), _money(row["payment"])]
        if bought:
            rounds, bill = row["rounds_to_target"], row["bill"]
            cells += ["not reached", "–"] if rounds is None else [str(rounds), _money(bill)]
        lines.append(cells)
    note = (
        f"Critical reward {found['critical_reward']:.4g}: below it the {len(of.clients.costs)} "
        "clients stay near their least effort, above it near their most."
    )
    if bought:
        headings += ["rounds to target", "bill"]
        if found["cheapest"] is None:
            note += "\nNo reward reached the target; allow more rounds or more epochs."
        else:
            note += f"\nThe target costs least with reward {found['cheapest']:.4g}."
    print_table(Table("Rewards", headings, lines, note))


def _money(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"
