"""One configuration over many values: every combination of a grid, or lists in step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedadmm.core.errors import ConfigError
from fedadmm.core.tables import Tree
from fedadmm.study import config, formatting
from fedadmm.study.config import resolve, toml_tables
from fedadmm.study.outcome import Outcome, runs_table, write_results
from fedadmm.study.runner import Watch, no_watch, run_study
from fedadmm.study.study import (
    Cell,
    Setting,
    Study,
    apply,
    below,
    check_distinct,
    check_reached,
    part_in,
    reach,
    setting_of,
    shown_value,
)
from fedadmm.theory.incentives import Game, critical_reward, equilibrium, game

MOST_CELLS = 10_000


class Axis(NamedTuple):
    """A key and the values it takes."""

    key: str
    values: Sequence[Any]


def axis(text: str, option: str) -> Axis:
    """The axis of `key=a,b,c`; the values are TOML, or else strings."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise ConfigError(f"{option} is {text!r}, but must be KEY=A,B, as in algorithm.rho=0.1,1")
    try:
        parsed = toml_tables(f"values = [{values}]")["values"]
    except ValueError:
        parsed = [config.plain_value(value.strip()) for value in values.split(",")]
    if len(parsed) == 1 and isinstance(parsed[0], list):
        parsed = parsed[0]
    return Axis(key.strip(), parsed)


def plan(
    tree: Tree, grid: Sequence[Axis], lists: Sequence[Axis], settings: Sequence[Setting] = ()
) -> Study:
    """Every cell's complete configuration; all are checked before any is run.

    `settings` go to every cell that has the key.
    """
    lengths = {len(one.values) for one in lists}
    if len(lengths) > 1:
        shown = ", ".join(f"{one.key} ({len(one.values)})" for one in lists)
        raise ConfigError(f"--list: the lists must be of one length, but are {shown}")
    for one in grid:
        check_distinct(one.key, one.values)
    steps = list(zip(*([(one.key, v) for v in one.values] for one in lists), strict=True))
    products = itertools.product(*([(one.key, v) for v in one.values] for one in grid))
    combinations = [(*step, *cell) for cell in products for step in steps or [()]]
    if len(combinations) > MOST_CELLS:
        raise ConfigError(f"the sweep has {len(combinations)} cells, but at most {MOST_CELLS}")
    ground, above = below(tree, settings, (one.key for one in [*grid, *lists]))
    found = [cell_of(ground, dict(combination), above) for combination in combinations]
    cells, applied = [cell for cell, _ in found], [taken for _, taken in found]
    check_reached(above, [cell.run.tree for cell in cells], applied)
    reached = [
        reach(one, [part_in(cell.run.tree, one[0]) for cell in cells], applied)
        for place, one in enumerate(above)
        if one not in above[:place]
    ]
    return Study("sweep", cells, reached=reached)


def cell_of(
    tree: Tree, values: dict[str, Any], settings: Sequence[Setting] = ()
) -> tuple[Cell, list[Setting]]:
    """The cell that a configuration makes with some keys varied, and what else was set there."""
    made = deepcopy(tree)
    for key, value in values.items():
        config.assign(made, key, deepcopy(value))
    applied = apply(made, settings)
    name = " ".join(f"{key}={shown_value(value)}" for key, value in values.items())
    run = resolve(made, f"{name}: " if name else "")
    shown = setting_of(values)
    label = ", ".join(v if key == "method" else f"{key}={v}" for key, v in shown.items())
    # Settings are compared with each other, not with baselines.
    baseline = False if label else None
    cell = Cell(label or run.label, run, name or "the only cell", values=values, baseline=baseline)
    return cell, applied


def sweep(
    study: Study, out: Path, *, fresh: bool = False, processes: int = 1, watch: Watch = no_watch
) -> Outcome:
    """Run every cell that is not finished, and write results.json and its table."""
    found = run_study(study, out, fresh=fresh, processes=processes, watch=watch)
    write_results(found)
    formatting.write_tables(out, {"cells": runs_table(found.document)})
    return found


# What reward buys a target at the least cost: the clients' game in front of a sweep.  Every reward
# gives every client the epochs that pay best for it; a run with those epochs shows how many rounds
# the target then takes.  The bill is what the server pays per round, times the rounds.

STEPS = (0.5, 0.8, 0.95, 0.99, 1.0, 1.01, 1.05, 1.2, 1.5, 2.0)
"""The rewards that are looked at unless others are asked for, in critical ones."""


class Offer(NamedTuple):
    """The clients' game and the rewards that are looked at."""

    clients: Game
    critical: float
    rewards: list[float]


def offer(
    costs: Sequence[float], least: float, most: float, rewards: Sequence[float] | None = None
) -> Offer:
    """The game with equal weights; without rewards those around the critical one."""
    clients = game(costs, least, most)
    critical = critical_reward(clients)
    return Offer(clients, critical, list(rewards or (critical * step for step in STEPS)))


def costs_of(text: str, clients: int) -> list[float]:
    """One number for all, `low:high` in equal steps, or one number per client with commas."""
    try:
        if ":" in text:
            low, high = (float(end) for end in text.split(":"))
            found = [float(cost) for cost in np.linspace(low, high, clients)]
        else:
            numbers = [float(cost) for cost in text.split(",")]
            found = numbers * clients if len(numbers) == 1 else numbers
    except ValueError:
        raise ConfigError(
            f"--costs is {text!r}, but must be a number, LOW:HIGH, or one number per client with "
            "commas"
        ) from None
    if len(found) != clients:
        raise ConfigError(
            f"--costs has {len(found)} numbers, but must have one per client, {clients}"
        )
    return found


def offered(of: Offer, shares: NDArray[np.float64] | None = None) -> list[dict[str, Any]]:
    """What every reward makes the clients do, and what it costs per round.

    `shares` are the clients' probabilities of being asked in a round: idle clients are not paid.
    """
    asked = np.ones_like(of.clients.costs) if shares is None else shares
    rows = []
    for reward in of.rewards:
        found = equilibrium(of.clients, reward)
        rows.append(
            {
                "reward": reward,
                "mean_effort": found.mean,
                "least_effort": float(found.efforts.min()),
                "most_effort": float(found.efforts.max()),
                "payment": reward * found.mean * float(asked @ found.efforts),
            }
        )
    return rows


def clients_of(tree: Tree) -> int:
    """How many clients a configuration's problem has."""
    return resolve(tree).load_problem().num_clients


def plan_offer(tree: Tree, of: Offer) -> Study:
    """One complete run per reward, whose clients do the epochs that pay."""
    own = deepcopy(tree)
    stop = {
        "name": "rational-epochs",
        "costs": of.clients.costs.tolist(),
        "least": float(of.clients.least[0]),
        "most": float(of.clients.most[0]),
        "reward": of.rewards[0],
    }
    config.assign(own, "local.stop", stop)
    found = plan(own, [Axis("local.stop.reward", of.rewards)], [])
    if found.cells[0].run.target is None:
        raise ConfigError(
            "target is missing, but the rounds to it make up the bill; set one with "
            "--set target.metric=test_accuracy --set target.value=0.95"
        )
    return found


def buy(
    study: Study, of: Offer, out: Path, *, processes: int = 1, watch: Watch = no_watch
) -> dict[str, Any]:
    """Run every reward; the rows with their bills, and the cheapest that reaches the target."""
    swept = sweep(study, out, processes=processes, watch=watch).document["runs"]
    shares = study.cells[0].run.sampler.probabilities(len(of.clients.costs))
    rows = [
        row
        | {
            "rounds_to_target": cell["rounds_to_target"],
            "bill": None
            if cell["rounds_to_target"] is None
            else row["payment"] * cell["rounds_to_target"],
            "final": cell["final"],
        }
        for row, cell in zip(offered(of, shares), swept, strict=True)
    ]
    reached = [row for row in rows if row["bill"] is not None]
    best = min(reached, key=lambda row: row["bill"])["reward"] if reached else None
    return {"critical_reward": of.critical, "rewards": rows, "cheapest": best}
