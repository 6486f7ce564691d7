"""Count rounds to a target accuracy at several participation rates.

    OMP_NUM_THREADS=1 python -m studies.participation_rate digits
    OMP_NUM_THREADS=1 FEDADMM_DATA=DIR python -m studies.participation_rate mnist

Results are written to `results/` as they come; a finished search or run is not run again.
`--table` prints what is there, `--figure FILE.svg` draws it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedadmm as fa
from fedadmm.data.problems import load
from fedadmm.study.search import search
from fedadmm.study.statistics import interval, restricted_mean
from studies.protocol import (
    LAST,
    MEAN,
    METHODS,
    OUTPUTS,
    TWO_OUTPUTS,
    finite,
    on_validation,
    read,
    rounds_to,
    write,
)

RESULTS = Path(__file__).with_name("results")
COMPARED = ("FedAvg", "SCAFFOLD", "FedDyn", "FedADMM", "aligned ADMM")
PERCENT = (10, 20, 50, 100)
EPOCHS, BATCH = 5, 10
LIMIT = 100
"""Largest number of rounds; a run that has not reached the target by then counts as this many."""


@dataclass(frozen=True)
class Setting:
    """A problem with its target accuracy, the search and the reported seeds."""

    title: str
    problem: dict[str, Any]
    target: float
    rates: tuple[float, ...]
    search_seeds: tuple[int, ...]
    keep: float
    seeds: tuple[int, ...]


SETTINGS = {
    "digits": Setting(
        "Digits, 50 clients, two shards, MLP 64-32-10",
        {"name": "digits", "clients": 50, "model": "mlp-64-32-10"},
        0.93,
        (0.06, 0.12, 0.24, 0.48),
        (1000, 1001, 1002, 1003, 1004),
        1.0,
        tuple(range(10)),
    ),
    "mnist": Setting(
        "MNIST, 6,000 samples, 100 clients, two shards, MLP 784-32-10",
        {
            "name": "mnist",
            "clients": 100,
            "model": "mlp-784-32-10",
            "max_train": 6_000,
            "normalise": "once",
        },
        0.9,
        (0.02, 0.04, 0.08, 0.16),
        (1000, 1001, 1002),
        0.5,
        tuple(range(10)),
    ),
}


def problem_of(setting: Setting, seed: int) -> fa.Problem:
    """The clients of one seed: it decides partition, initial model, sampling and batches."""
    options = {"partition": "shards", "partition_seed": seed, "validation": 0.1}
    return load(**setting.problem, **options)


def run(
    setting: Setting, problem: fa.Problem, method: str, percent: int, values: Any, seed: int
) -> dict[str, Any]:
    """Run to the target: rounds (None for a miss), best accuracy, bytes and local passes."""
    sizes = [problem.clients[client].num_samples for client in range(problem.num_clients)]
    steps = statistics.fmean(EPOCHS * -(-size // BATCH) for size in sizes)
    began = time.process_time()
    history = fa.simulate(
        METHODS[method](values["lr"] * steps),
        problem,
        LIMIT,
        solver=fa.SGD(lr=values["lr"], batch_size=BATCH),
        stop=fa.Epochs(EPOCHS),
        sampler=fa.FullParticipation() if percent == 100 else fa.UniformSampling(percent / 100),
        output=OUTPUTS[values["output"]](),
        evaluate=fa.Evaluation(objective=False),
        target=fa.Target("test_accuracy", setting.target),
        engine=fa.engines.Vectorised(),
        threads=1,
        seed=seed,
    ).history
    curve = [(one["round"], finite(one["metrics"].get("test_accuracy", 0.0))) for one in history]
    return {
        "rounds": rounds_to(curve, setting.target),
        "best": round(max(value for _, value in curve), 4),
        "bytes_up": sum(one["traffic"]["bytes_up"] for one in history),
        "bytes_down": sum(one["traffic"]["bytes_down"] for one in history),
        "passes": round(sum(one["work"]["passes"] for one in history), 2),
        "cpu_seconds": round(time.process_time() - began, 2),
    }


def choose(setting: Setting, method: str, percent: int) -> dict[str, Any]:
    """Search the learning rate, and the output where there are two, on validation samples."""
    problems = {seed: on_validation(problem_of(setting, seed)) for seed in setting.search_seeds}

    def evaluate(values: dict[str, Any], seed: int) -> float:
        found = run(setting, problems[seed], method, percent, values, seed)
        # Misses are ordered by how far from the target the run remained.
        missed = LIMIT + 100 * (setting.target - found["best"])
        return -float(missed if found["rounds"] is None else found["rounds"])

    grid = {"lr": setting.rates, "output": (LAST, MEAN) if method in TWO_OUTPUTS else (LAST,)}
    return search(grid, evaluate, setting.search_seeds, keep=setting.keep).as_dict()


def complete(name: str) -> None:
    """Run what is missing of a setting, from the lowest participation rate on."""
    setting, path = SETTINGS[name], RESULTS / f"{name}.json"
    results = read(path) or {"limit": LIMIT, "target": setting.target, "cells": {}}
    for percent in PERCENT:
        for method in COMPARED:
            cell = results["cells"].setdefault(f"{percent} %", {}).setdefault(method, {})
            if "search" not in cell:
                cell["search"] = choose(setting, method, percent)
                write(path, results)
            runs = cell.setdefault("runs", {})
            for seed in setting.seeds:
                if str(seed) not in runs:
                    problem = problem_of(setting, seed)
                    values = cell["search"]["chosen"]
                    runs[str(seed)] = run(setting, problem, method, percent, values, seed)
            write(path, results)
            rounds = [one["rounds"] for one in runs.values()]
            print(name, percent, method, cell["search"]["chosen"], rounds, flush=True)


def summary(name: str) -> dict[int, dict[str, tuple[float, float, int]]]:
    """Restricted mean, half of its 95 % interval, and runs that reached the target."""
    results = read(RESULTS / f"{name}.json")
    found: dict[int, dict[str, tuple[float, float, int]]] = {}
    for percent in PERCENT:
        for method, cell in results.get("cells", {}).get(f"{percent} %", {}).items():
            rounds = [one["rounds"] for one in cell.get("runs", {}).values()]
            if len(rounds) > 1:
                mean = restricted_mean(rounds, results["limit"])
                reached = sum(one is not None for one in rounds)
                width = interval(_counted(cell, results))
                found.setdefault(percent, {})[method] = (mean, width, reached)
    return found


def table(name: str) -> str:
    """The rounds of all cells as a Markdown table."""
    found = summary(name)
    lines = [f"| participation | {' | '.join(COMPARED)} |", "|---" * (len(COMPARED) + 1) + "|"]
    for percent, row in found.items():
        cells = [
            f"{row[m][0]:.1f} ± {row[m][1]:.1f} ({row[m][2]})" if m in row else "–"
            for m in COMPARED
        ]
        lines.append(f"| {percent} % | {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(name: str) -> str:
    """Rounds of aligned ADMM minus those of each other method on the same seeds, as a table."""
    results = read(RESULTS / f"{name}.json")
    others = COMPARED[:-1]
    lines = [f"| participation | {' | '.join(others)} |", "|---" * len(COMPARED) + "|"]
    for percent in PERCENT:
        cells = results.get("cells", {}).get(f"{percent} %", {})
        if any(len(cells.get(one, {}).get("runs", {})) < 2 for one in COMPARED):
            continue
        row = []
        for other in others:
            pairs = zip(
                *(_counted(cells[one], results) for one in (COMPARED[-1], other)), strict=True
            )
            gaps = [mine - theirs for mine, theirs in pairs]
            row.append(f"{statistics.fmean(gaps):+.1f} ± {interval(gaps):.1f}".replace("-", "−"))
        lines.append(f"| {percent} % | {' | '.join(row)} |")
    return "\n".join(lines)


def _counted(cell: dict[str, Any], results: dict[str, Any]) -> list[int]:
    """Rounds by seed, with the limit for a miss."""
    runs = sorted(cell["runs"].items(), key=lambda item: int(item[0]))
    return [results["limit"] if one["rounds"] is None else one["rounds"] for _, one in runs]


def main() -> None:
    """Complete the named settings, or show what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", default=[*SETTINGS], metavar="SETTING")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--figure", type=Path)
    chosen = parser.parse_args()
    if chosen.figure:
        from studies.participation_rate.figure import draw

        draw({SETTINGS[one].title: summary(one) for one in chosen.settings}, chosen.figure)
    for name in chosen.settings:
        if chosen.table:
            print(f"{SETTINGS[name].title}\n\n{table(name)}\n\n{differences(name)}\n")
        elif not chosen.figure:
            complete(name)


if __name__ == "__main__":
    main()
