"""Draws the distance to the optimum by round of published implementations, and writes the data.

The programs are modelled in numpy from their behaviour (`tests/support/programs.py`); nothing of
their code is run.  All clients participate with five gradient steps per round, on quadratics whose
clients disagree, so that every method should reach the optimum.

    PYTHONPATH=tests python docs/_figures/implementations.py docs/implementations.svg FILE.csv
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from svg import write

import fedadmm as fa
from support import programs
from support.federations import federation, run as simulated
from support.programs import Work

ROUNDS, ALPHA, WORK = 300, 0.4, Work(5, 0.1)
GIVEN = federation(21)
EVERYBODY = [list(range(GIVEN.clients))] * ROUNDS
Array = NDArray[np.float64]


def unit(w: Array, theta: Array) -> Array:
    """Return the gradient of ||w - theta|| / 2, the norm without its square."""
    length = np.linalg.norm(w - theta)
    return (w - theta) / (2 * length) if length > 0 else np.zeros_like(w)


def feddyn(**mistake: Any) -> Array:
    """Run FedDyn with or without a mistake."""
    solve = programs.held(GIVEN.gradient, WORK, **mistake)
    return programs.feddyn(solve, GIVEN.start, EVERYBODY, np.full(GIVEN.clients, ALPHA))


def scaffold(**mistake: Any) -> Array:
    """Run SCAFFOLD with or without a mistake."""
    n = GIVEN.clients
    return programs.scaffold(GIVEN.gradient, GIVEN.start, EVERYBODY, n, WORK, **mistake)


def fedadmm(squared: bool) -> Array:
    """Run Gong's FedADMM with all clients and server step 1, from the client's own model."""
    theta, rho, n = GIVEN.start.copy(), ALPHA, GIVEN.clients
    w, y = np.tile(theta, (n, 1)), np.zeros((n, len(theta)))
    path = []
    for _ in range(ROUNDS):
        before = w.copy()
        for i in range(n):
            for _ in range(WORK.steps):
                pull = w[i] - theta if squared else unit(w[i], theta)
                w[i] = w[i] - WORK.lr * (GIVEN.gradient(i, w[i]) + y[i] + rho * pull)
            y[i] = y[i] + rho * (w[i] - theta)
        theta = theta + (2 * w - theta - before).mean(0)
        path.append(theta)
    return np.array(path)


def ours(method: Any) -> Array:
    """Run a method of the package."""
    options: dict[str, Any] = {"solver": fa.GradientDescent(WORK.lr), "stop": fa.Steps(WORK.steps)}
    result = simulated(method, GIVEN, ROUNDS, **options)
    return np.array([theta.numpy() for theta in result.trajectory])


def panels() -> dict[str, dict[str, Array]]:
    """Return the distance to the optimum by round, by panel and program."""
    paths = {
        "SCAFFOLD": {
            "fedadmm": ours(fa.Scaffold()),
            "PFLlib": scaffold(),
            "FL-bench": scaffold(stores=False),
            "FedLab": scaffold(corrects=False),
        },
        "FedDyn": {
            "fedadmm": ours(fa.FedDyn(1 / ALPHA)),
            "PFLlib": feddyn(penalty=unit),
            "FL-bench": feddyn(penalty=lambda w, theta: -theta),
            "FedLab": feddyn(detached=True),
        },
        "FedADMM": {
            "fedadmm": ours(fa.FedADMM(ALPHA)),
            "bayes-admm": fedadmm(squared=False),
            "bayes-admm, norm squared": fedadmm(squared=True),
        },
    }
    return {
        panel: {name: np.linalg.norm(path - GIVEN.optimum, axis=1) for name, path in runs.items()}
        for panel, runs in paths.items()
    }


STYLES = {
    "fedadmm": ("#2b2f36", "-", 2.2),
    "PFLlib": ("#0072b2", "--", 1.5),
    "FL-bench": ("#d55e00", "-.", 1.5),
    "FedLab": ("#009e73", ":", 2.0),
    "bayes-admm": ("#cc79a7", "-", 1.5),
    "bayes-admm, norm squared": ("#cc79a7", ":", 1.5),
}


SENSITIVE = {"bayes-admm"}
"""Programs without numbers after round 30: near the optimum the norm's gradient is not smooth, so
that rounding, which differs between processors, grows to 3 % in round 100."""


def figure(curves: dict[str, dict[str, Array]]) -> Figure:
    """Draw one panel per method."""
    drawn = Figure(figsize=(8.6, 3.5), layout="constrained")
    plots = drawn.subplots(1, len(curves), sharey=True)
    for plot, (panel, shown_programs) in zip(plots, curves.items(), strict=True):
        for name, distance in shown_programs.items():
            colour, dashes, width = STYLES[name]
            rounds = np.arange(1, len(distance) + 1)
            shown = np.maximum(distance, 1e-11)
            plot.plot(rounds, shown, dashes, color=colour, linewidth=width, label=name)
        plot.set(title=panel, yscale="log", ylim=(3e-11, 3e4), xlabel="round")
        plot.legend(fontsize=7.5, loc="upper right")
    plots[0].set_ylabel("distance to the optimum")
    return drawn


if __name__ == "__main__":
    made = panels()
    write(lambda: figure(made), Path(sys.argv[1]))
    with Path(sys.argv[2]).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["method", "program", "round", "distance"])
        for panel, programs_of in made.items():
            for name, distances in programs_of.items():
                for number in (1, 3, 10, 30) if name in SENSITIVE else (1, 3, 10, 30, 100, 300):
                    row = [panel, name, number, f"{distances[number - 1]:.3g}"]
                    table.writerow(row)
