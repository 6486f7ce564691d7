"""Draws docs/clients.svg and docs/starts.svg: clients' models and the global model by round.

Each client has a quadratic loss in the plane, and the global model should converge to the minimiser
of their mean.  The first figure has three clients of FedAvg and FedADMM; the second has two clients
of FedADMM with three gradient steps per round, started at their own models or at the global model.
`make figure` runs it.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse
from svg import write

import fedadmm as fa

ROUNDS = (1, 2, 4, 16)
COLOURS = ("#d55e00", "#0072b2", "#00856a")
BOWLS = (((0.0, 1.5), 70, 6.0), ((2.3, 0.4), 15, 3.0), ((0.4, -1.4), -40, 1.5))
"""Per client the minimiser of its loss, and the rotation (degrees) and condition number of it."""
Bowls = tuple[tuple[tuple[float, float], float, float], ...]


class Row(NamedTuple):
    """A method, its number of local steps, and their initial point."""

    method: fa.FedAvg | fa.FedADMM
    epochs: int = 10
    start: str = "global"


class Picture(NamedTuple):
    """A figure: clients, initial global model, and one row per method."""

    bowls: Bowls
    initial: tuple[float, float]
    rows: dict[str, Row]


CLIENTS = Picture(
    BOWLS, (3.0, -1.9), {"FedAvg": Row(fa.FedAvg()), "FedADMM": Row(fa.FedADMM(rho=1.0))}
)
STARTS = Picture(
    (((0.0, 1.5), 70, 6.0), ((2.3, -0.6), 15, 3.0)),
    (3.0, 1.9),
    {
        "from its own": Row(fa.FedADMM(rho=0.1), 3, "own"),
        "from the global": Row(fa.FedADMM(rho=0.1), 3),
    },
)


class Step(NamedTuple):
    """One round: the global model before and after it, and the clients' models in between."""

    before: np.ndarray
    clients: list[np.ndarray]
    after: np.ndarray


def bowl(lowest: tuple[float, float], degrees: float, stretch: float) -> fa.Quadratic:
    """Return (x - lowest)' A (x - lowest) / 2 with eigenvalues 1 and `stretch` of A."""
    turn = np.deg2rad(degrees)
    along = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    hessian = torch.tensor(along @ np.diag([1.0, stretch]) @ along.T)
    return fa.Quadratic(hessian, hessian @ torch.tensor(lowest, dtype=torch.float64))


def best(clients: list[fa.Quadratic]) -> np.ndarray:
    """Return the minimiser of the mean of the losses."""
    hessian = torch.stack([one.A for one in clients]).sum(0)
    return torch.linalg.solve(hessian, torch.stack([one.b for one in clients]).sum(0)).numpy()


def steps(row: Row, clients: list[fa.Quadratic], initial: tuple[float, float]) -> list[Step]:
    """Return every round of a run."""
    start, method = torch.tensor(initial, dtype=torch.float64), row.method
    found = []
    for number in range(1, ROUNDS[-1] + 1):
        work = {"solver": fa.GradientDescent(lr=0.12), "stop": fa.Epochs(row.epochs)}
        options = work | {"start": row.start, "evaluate": False, "keep_trajectory": True}
        result = fa.simulate(method, fa.Problem(clients), number, initial=start, **options)
        path = [start, *result.trajectory]
        if isinstance(method, fa.FedADMM):
            models = [result.clients[index].w for index in range(len(clients))]
        else:  # FedAvg's clients keep no model: repeat the last round with each client by itself
            alone = {"initial": path[-2], "rounds": 1} | options
            models = [fa.simulate(method, fa.Problem([one]), **alone).params for one in clients]
        found.append(Step(path[-2].numpy(), [one.numpy() for one in models], path[-1].numpy()))
    return found


def draw(plot: Axes, bowls: Bowls, step: Step, optimum: np.ndarray, past: np.ndarray) -> None:
    """Draw one round in the plane."""
    shown = zip(bowls, COLOURS, step.clients, strict=False)
    for (lowest, degrees, stretch), colour, model in shown:
        for size in (1.4, 3.0):
            ring = (size, size / np.sqrt(stretch))
            plot.add_patch(Ellipse(lowest, *ring, angle=degrees, color=colour, alpha=0.1, lw=0))
        plot.plot(*zip(step.before, model, strict=True), color=colour, linewidth=1.3)
        plot.plot(*model, "o", color=colour, markersize=5)
    plot.plot(*past.T, "-", color="#2b2f36", linewidth=0.8, alpha=0.5)
    plot.plot(*optimum, "x", color="#b3261e", markersize=8, markeredgewidth=2)
    plot.plot(*step.after, "s", color="#2b2f36", markersize=6, markerfacecolor="white", zorder=5)
    plot.set(xlim=(-1.8, 3.6), ylim=(-2.6, 2.7), xticks=[], yticks=[], aspect="equal")
    plot.grid(visible=False)
    for side in plot.spines.values():
        side.set(visible=True, color="#dfe3ea")


def figure(picture: Picture) -> Figure:
    """Draw a row for each method and a column for each round shown."""
    clients = [bowl(*one) for one in picture.bowls]
    optimum = best(clients)
    drawn = Figure(figsize=(8.4, 4.9), layout="constrained")
    plots = drawn.subplots(len(picture.rows), len(ROUNDS))
    for plot, number in zip(plots[0], ROUNDS, strict=True):
        plot.set_title(f"round {number}", fontsize=9.5)
    for row, (name, method) in zip(plots, picture.rows.items(), strict=True):
        made = steps(method, clients, picture.initial)
        for plot, number in zip(row, ROUNDS, strict=True):
            step = made[number - 1]
            past = np.array([made[0].before, *(one.after for one in made[:number])])
            draw(plot, picture.bowls, step, optimum, past)
            away = float(np.linalg.norm(step.after - optimum))
            plot.set_xlabel(f"{away:.2f} away", fontsize=8.5)
        row[0].set_ylabel(name, fontsize=11, fontweight="bold")
    key = {"color": "#586070", "linestyle": "none"}
    drawn.legend(
        handles=[
            Line2D([], [], marker="o", **key, label="a client's model after local training"),
            Line2D([], [], marker="s", markerfacecolor="white", **key, label="the global model"),
            Line2D([], [], marker="x", **key | {"color": "#b3261e"}, label="the optimum"),
        ],
        loc="outside lower center",
        ncols=3,
        fontsize=9,
    )
    return drawn


if __name__ == "__main__":
    for drawn, path in zip((CLIENTS, STARTS), sys.argv[1:], strict=True):
        write(partial(figure, drawn), Path(path))
