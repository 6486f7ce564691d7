"""A tenth of the clients and networks with convolutions: the study's rows, tuned on a CNN.

    OMP_NUM_THREADS=1 FEDADMM_DATA=... python -m studies.participation.cnn [--seeds 3]

The study's own search is on perceptrons.  Here every row is searched on MNIST with a small CNN and
seed 1000, by its rounds to 90 %, and judged on the digits and on Fashion-MNIST.
The rows and problems are those of `participation.toml`.

One rule for all: start at the middle of each of a row's values, the learning rate first.  Try both
neighbours; a choice at an edge gets up to three more points beyond it, until one is no better.  A
point ends when it has needed as many rounds as the best so far.  A row that adds something to
another one starts from what that one chose, and searches what it adds.

Results go to `cnn/` as they come, and a finished search or run is not run again;
`--page FILE` writes the tables instead.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

import fedadmm
from fedadmm.core.tables import from_table
from fedadmm.data.models import small_cnn
from fedadmm.study.recipe import Recipe, study_of
from fedadmm.study.study import Cell
from studies.participation.recipe import STUDY, recipe

RESULTS = Path(__file__).with_name("cnn")
SEARCHED_ON, SEED, ENOUGH = "mnist-cnn-10", 1000, 0.9
TRIED, LIMIT = 45, 120  # rounds of a first point, and of a run
RATES = (0.03, 0.06, 0.12)
JUDGED_ON = ("digits-cnn-10", "fashion-cnn-10")
BASELINES = ("fedavg", "fedavgm", "fedadagrad", "scaffold")
ROWS: dict[str, str | None] = {
    "fedavg": None,
    "fedadagrad": None,
    "per-work-auto": None,
    "per-work-one": None,
    "lesam-aligned": "per-work-auto",
    "per-work-half": "per-work-auto",
    "scaffold": None,
    "feddyn": None,
    "lesam-dyn": "feddyn",
    "fedgloss": "feddyn",
    "fedexp": None,
    "fedavgm": None,
    "adabest": None,
}
"""Each row, and the one whose choice it starts from."""
OUTPUTS = {"printed": "test_accuracy", "averaged": "test_accuracy_averaged"}


def digits_cnn() -> nn.Module:
    """`small-cnn` for 8×8 images; 5,834 parameters."""
    layers = list(small_cnn())
    layers[7] = nn.Linear(16 * 2 * 2, 32)
    return nn.Sequential(*layers)


def cells() -> dict[str, Cell]:
    """The cells of these rows and problems by their names, SETTING/ROW."""
    patterns = [f"{place}/{row}" for place in (SEARCHED_ON, *JUDGED_ON) for row in ROWS]
    study = study_of(from_table(Recipe, recipe(STUDY)), "full", patterns, searching=False)
    return {cell.name: cell for cell in study.cells}


def grids() -> dict[str, dict[str, list[float]]]:
    """The three values of each key that a row searches, and that the row it starts from did not."""
    own = {one["name"]: one["search"] for one in recipe(STUDY)["methods"]}
    found: dict[str, dict[str, list[float]]] = {}
    for row, first in ROWS.items():
        keys = {key: values for key, values in own[row].items() if key != "local.solver.lr"}
        if first is None:
            found[row] = {"local.solver.lr": list(RATES), **keys}
        else:
            found[row] = {key: values for key, values in keys.items() if key not in own[first]}
    return found


def simulated(cell: Cell, values: Mapping[str, Any]) -> dict[str, Any]:
    """Run until both models are at the target: rounds, bytes and passes to it for each."""
    began = time.process_time()
    run = cell.chosen({**values, "threads": 1}).run
    history = fedadmm.simulate(run).history
    assert run.target is not None
    found: dict[str, Any] = {"seconds": round(time.process_time() - began, 1)}
    for output, metric in OUTPUTS.items():
        curve = [record["metrics"].get(metric, 0.0) for record in history]
        curve = [value if math.isfinite(value) else 0.0 for value in curve]
        reached = next((t for t, value in enumerate(curve, 1) if value >= run.target.value), None)
        until = history[:reached]
        found[output] = {
            "rounds": reached,
            "bytes": sum(
                one["traffic"]["bytes_up"] + one["traffic"]["bytes_down"] for one in until
            ),
            "passes": sum(one["work"]["passes"] for one in until),
            "best": round(max(curve, default=0.0), 4),
        }
    return found


def worth(tried: Mapping[str, Any]) -> tuple[float, float]:
    """Fewer rounds first, then the better accuracy; smaller is better."""
    found = tried["printed"]
    return (found["rounds"] or float("inf"), -found["best"])


def search(cell: Cell, start: dict[str, Any], grid: dict[str, list[float]]) -> dict[str, Any]:
    """What a row chooses, key by key."""
    tried: list[dict[str, Any]] = []
    also = {
        "seed": SEED,
        "output": {"name": cell.run.tree["output"]["handed"]},
        "target": {"metric": OUTPUTS["printed"], "value": ENOUGH},
        "problem.max_test": 1000,
    }

    def attempt(values: dict[str, Any]) -> bool:
        """Run a point; whether it is the best so far."""
        best = min(map(worth, tried), default=(float("inf"), 0.0))
        limit = TRIED if math.isinf(best[0]) else max(1, int(best[0]) - 1)
        found = simulated(cell, {**values, **also, "rounds": limit})
        tried.append({"values": dict(values), "limit": limit, **found})
        print("  ", values, found["printed"], flush=True)
        return worth(found) < best

    chosen = start | {key: values[len(values) // 2] for key, values in grid.items()}
    attempt(chosen)
    for key, (low, middle, high) in grid.items():
        for edge in (low, high):
            inner, points = middle, 0
            while points < 4 and attempt(chosen | {key: edge}):
                chosen[key] = edge
                inner, edge = edge, beyond(key, inner, edge)
                points += 1
    return {"chosen": chosen, "tried": tried}


def beyond(key: str, inner: float, edge: float) -> float:
    """The next value outwards, as far again by ratio; memories by what they forget."""
    if key in ("algorithm.momentum", "algorithm.beta"):
        return max(0.0, round(1 - (1 - edge) ** 2 / (1 - inner), 6))
    return round(edge**2 / inner, 8)


def kept(name: str) -> dict[str, Any]:
    """What a file of results holds; nothing where it is not there."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def keep(name: str, results: Mapping[str, Any]) -> None:
    """Replace a file of results."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")


def searched(known: Mapping[str, Cell]) -> dict[str, Any]:
    """What every row chooses, searched where it is not known."""
    found, wanted = kept("search"), grids()
    for row, first in ROWS.items():
        if row not in found:
            start = {} if first is None else dict(found[first]["chosen"])
            cell = known[f"{SEARCHED_ON}/{row}"]
            print(time.strftime("%H:%M"), row, flush=True)
            found[row] = search(cell, start, wanted[row]) if wanted[row] else {"chosen": start}
            keep("search", found)
    return found


def run(places: list[str], seeds: int) -> None:
    """Run what is missing, all rows of a seed before the next seed."""
    known = cells()
    chosen = {row: one["chosen"] for row, one in searched(known).items()}
    for place in places:
        done = kept(place)
        for seed, row in itertools.product(range(seeds), ROWS):
            if str(seed) not in done.setdefault(row, {}):
                values = {**chosen[row], "seed": seed, "rounds": LIMIT}
                found = simulated(known[f"{place}/{row}"], values)
                done[row][str(seed)] = found
                keep(place, done)
                rounds = [found[output]["rounds"] for output in OUTPUTS]
                print(time.strftime("%H:%M"), place, row, seed, rounds, flush=True)


def main() -> None:
    """Run what is missing, or write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument("--place", action="append", choices=JUDGED_ON, help="only these problems")
    arguments = parser.parse_args()
    run(arguments.place or list(JUDGED_ON), arguments.seeds)


if __name__ == "__main__":
    main()
