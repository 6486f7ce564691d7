"""What reward buys a target at the least cost: the incentive game in front of a sweep.

Every reward gives every client the epochs that pay best for it; a run with those epochs tells how
many rounds the target then takes.  The bill is what the server pays per round, times the rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedadmm.core.errors import ConfigError
from fedadmm.core.tables import Tree
from fedadmm.study import config
from fedadmm.study.config import resolve
from fedadmm.study.pool import Watch, nobody
from fedadmm.study.study import Study
from fedadmm.study.sweeping import Axis, sweep
from fedadmm.study.sweeping import plan as plan_sweep
from fedadmm.theory.incentives import Game, critical_reward, equilibrium, game

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


def table(of: Offer, shares: NDArray[np.float64] | None = None) -> list[dict[str, Any]]:
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


def plan(tree: Tree, of: Offer) -> Study:
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
    found = plan_sweep(own, [Axis("local.stop.reward", of.rewards)], [])
    if found.cells[0].run.target is None:
        raise ConfigError(
            "target is missing, but the rounds to it make up the bill; set one with "
            "--set target.metric=test_accuracy --set target.value=0.95"
        )
    return found


def buy(
    study: Study, of: Offer, out: Path, *, processes: int = 1, watch: Watch = nobody
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
        for row, cell in zip(table(of, shares), swept, strict=True)
    ]
    reached = [row for row in rows if row["bill"] is not None]
    best = min(reached, key=lambda row: row["bill"])["reward"] if reached else None
    return {"critical_reward": of.critical, "rewards": rows, "cheapest": best}
