"""The cells of gong-worlds and gong-ladder at the paper's size: CNN 1, MNIST, 100 clients.

    OMP_NUM_THREADS=1 python -m studies.gong studies/gong/results [CELL ...] [--seeds 3]

A cell is SETTING-METHOD of the recipe gong-worlds, as `released-iid-printed`, or
SETTING-ladder-RUNG of gong-ladder; `*` means any text.  The recipes say what is run; this
program says how, because a round takes ten seconds and more: it searches the learning rate on seed
1000 by successive halving over the paper's values, stops each seed at 97 % and keeps checkpoints of
unfinished runs.  A finished search or run is a file in the folder and is not run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import fedadmm
from fedadmm.run.simulation import Result
from fedadmm.study.recipe import plan
from fedadmm.study.study import Cell, cell_hash

RATES = (0.01, 0.1, 0.2, 0.5)
HALVES = {"iid": (2, 5), "shards": (4, 12)}
"""Rounds of the two halves of the search; two shards need more, until accuracies mean something."""
CAP = {"iid": 60, "shards": 60}
TARGET = 0.97
RUNGS = ("momentum", "upload", "epochs", "duals")
"""Those between FedAvg and the released FedADMM, which are cells of gong-worlds."""


def planned() -> dict[str, Cell]:
    """Every cell by its name here."""
    worlds = {cell.name.replace("/", "-"): cell for cell in plan("gong-worlds", "full").cells}
    rungs = plan("gong-ladder", "full", patterns=[f"*/{rung}" for rung in RUNGS]).cells
    return worlds | {cell.name.replace("/", "-ladder-"): cell for cell in rungs}


def with_rate(cell: Cell, lr: float, seed: int, rounds: int, rows: int | None = None) -> Cell:
    """The cell at a learning rate, which is the server's for FedSGD; `rows` are evaluated."""
    rate = "algorithm.lr" if cell.name.endswith("/fedsgd") else "local.solver.lr"
    return cell.chosen(
        {rate: lr, "seed": seed, "rounds": rounds, "threads": 1, "problem.max_test": rows}
    )


def simulated(cell: Cell, folder: Path, resume: bool, every: int) -> Result:
    """Run a cell; the folder keeps its checkpoints, so that it can go on."""
    kept = fedadmm.Checkpoints(folder, every)
    return fedadmm.simulate(cell.run, checkpoints=kept, resume=resume)


def curve(result: Result) -> list[float]:
    """The accuracy after every round."""
    return [round(record["metrics"].get("test_accuracy", 0.0), 5) for record in result.history]


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a file holds, made when it is not there."""
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    began = time.perf_counter()
    made = make() | {
        "seconds": round(time.perf_counter() - began),
        "date": time.strftime("%Y-%m-%d"),
    }
    path.write_text(json.dumps(made, indent=1) + "\n")
    return made


def search(cell: Cell) -> dict[str, Any]:
    """The rate that is best on seed 1000: all for a few rounds, the better half for more."""
    scratch, split = Path(tempfile.mkdtemp()), cell.setting.partition("-")[2]
    first, second = HALVES[split]
    try:
        curves = {}
        for lr in RATES:
            tried = with_rate(cell, lr, 1000, first, 2000)
            curves[lr] = curve(simulated(tried, scratch / str(lr), False, first))
        better = sorted(RATES, key=lambda lr: max(curves[lr], default=0), reverse=True)[:2]
        for lr in better:
            if len(curves[lr]) == first and max(curves[lr]) < TARGET:
                tried = with_rate(cell, lr, 1000, second, 2000)
                curves[lr] += curve(simulated(tried, scratch / str(lr), True, second))
        last = 1 if split == "iid" else second - first  # two shards: one round says little
        best = max(better, key=lambda lr: worth(curves[lr], last))
        return {"lr": best, "curves": {str(lr): values for lr, values in curves.items()}}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def worth(values: list[float], last: int) -> tuple[bool, int, float]:
    """The target first, then fewer rounds to it, then the mean of the last accuracies."""
    reached = max(values) >= TARGET
    return reached, -len(values) if reached else 0, fmean(values[-last:])


def reported(cell: Cell, lr: float, seed: int, unfinished: Path) -> dict[str, Any]:
    """The run of a seed until the target, or as many rounds as there are at most.

    Its checkpoints are kept in `unfinished` until it ends, so that a stopped run goes on.
    """
    chosen = with_rate(cell, lr, seed, CAP[cell.setting.partition("-")[2]])
    result = simulated(chosen, unfinished, unfinished.exists(), every=5)
    shutil.rmtree(unfinished, ignore_errors=True)
    values = curve(result)
    reached = next((number for number, value in enumerate(values, 1) if value >= TARGET), None)
    epochs = sum(record["work"]["epochs"] for record in result.history)
    found = {"lr": lr, "hash": cell_hash(chosen.run), "code": result.code, "epochs": epochs}
    return found | {"rounds_to_target": reached, "curve": values}


def main() -> None:
    """Run what is missing, cell by cell."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("cells", nargs="*", default=["*"], metavar="CELL")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from 0 on")
    arguments = parser.parse_args()
    folder, known = arguments.results, planned()
    folder.mkdir(parents=True, exist_ok=True)
    for name in [name for one in arguments.cells for name in known if fnmatch(name, one)]:
        tuned = f"{known[name].setting}-fedavg" if "-ladder-" in name else name  # one rate for all
        lr = kept(folder / f"{tuned}-search.json", partial(search, known[tuned]))["lr"]
        for seed in range(arguments.seeds):
            run = f"{name}-seed{seed}"
            make = partial(reported, known[name], lr, seed, Path(".cache/gong") / run)
            found = kept(folder / f"{run}.json", make)
            rounds, seconds = found["rounds_to_target"], found["seconds"]
            print(f"{run}: lr {lr}, {rounds} rounds, {seconds} s", flush=True)


if __name__ == "__main__":
    main()
