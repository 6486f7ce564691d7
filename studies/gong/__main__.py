"""The cells of gong-worlds and gong-ladder at the paper's size: CNN 1, 100 or 1,000 clients.

    OMP_NUM_THREADS=1 python -m studies.gong studies/gong/results [CELL ...] [--seeds 3]

A cell is SETTING-METHOD of the recipe gong-worlds, as `released-iid-printed`, or
SETTING-ladder-RUNG of gong-ladder; `*` means any text.  The recipes say what is run; this
program says how, because a round takes ten seconds and more: it searches the learning rate on seed
1000 by successive halving over the paper's values, stops each seed at its target and keeps
checkpoints of unfinished runs.  A finished search or run is a file in the folder and is not run
again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedadmm.study.recipes import plan
from fedadmm.study.run_dir import RecordedRun
from fedadmm.study.runner import run_study
from fedadmm.study.single_run import run_recorded
from fedadmm.study.spec import Cell, Search, SearchSpace, Study, cell_hash

RATES = (0.01, 0.1, 0.2, 0.5)
ROUNDS = {"iid": 5, "shards": 12}
"""Rounds of a search run; two shards need more, until accuracies mean something."""
CAP = 60
HOW = {"threads": 1, "checkpoint.every": 5}
RUNGS = ("momentum", "upload", "epochs", "duals")
"""Those between FedAvg and the released FedADMM, which are cells of gong-worlds."""


def planned() -> dict[str, Cell]:
    """Every cell by its name here."""
    worlds = {cell.name.replace("/", "-"): cell for cell in plan("gong-worlds", "full").cells}
    rungs = plan("gong-ladder", "full", patterns=[f"*/{rung}" for rung in RUNGS]).cells
    return worlds | {cell.name.replace("/", "-ladder-"): cell for cell in rungs}


def rated(cell: Cell, lr: float) -> dict[str, Any]:
    """The learning rate as a setting; it is the server's for FedSGD."""
    return {"algorithm.lr" if cell.name.endswith("/fedsgd") else "local.solver.lr": lr}


def with_rate(cell: Cell, lr: float, seed: int, rounds: int) -> Cell:
    """The cell as it is run with a seed."""
    return cell.chosen(rated(cell, lr) | {"seed": seed, "rounds": rounds, **HOW})


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


def curve(run: RecordedRun) -> list[float]:
    """The accuracy after every round."""
    found = np.nan_to_num(run.columns.column("test_accuracy", "metrics"))
    return [round(value, 5) for value in found.tolist()]


def search(cell: Cell, folder: Path) -> dict[str, Any]:
    """Choose the learning rate on validation samples, on seeds that are not reported."""
    rounds = ROUNDS["shards" if cell.setting.endswith("-shards") else "iid"]
    (key,) = rated(cell, RATES[0])
    space = SearchSpace(cell.name, [cell], {key: RATES})
    changes = {"problem.max_test": 2000, **HOW}
    how = Search((1000, 1001, 1002), [space], rounds, validation=0.1, changes=changes)
    found = run_study(Study("sweep", [], search=how), folder).search
    shutil.rmtree(folder)
    tried = [{one: row[one] for one in ("value", "seed", "score")} for row in found["tried"]]
    named = {one: found[one][cell.name] for one in ("grid", "interior")}
    chosen = found["chosen"][cell.name]["value"]
    return {"lr": chosen[key], "chosen": chosen, "tried": tried, **named}


def reported(cell: Cell, lr: float, seed: int, unfinished: Path) -> dict[str, Any]:
    """The run of a seed until the target, or as many rounds as there are at most.

    It is kept in `unfinished` until it ends, so that a stopped run goes on.
    """
    run = with_rate(cell, lr, seed, CAP).run
    found = run_recorded(run, unfinished, resume=True)
    shutil.rmtree(unfinished)
    return {
        "lr": lr,
        "hash": cell_hash(run),
        "code": found.code,
        "epochs": found.columns.total("work", "epochs"),
        "rounds_to_target": found.to_target("rounds"),
        "curve": curve(found),
    }


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
        cache = Path(".cache/gong")
        make = partial(search, known[tuned], cache / f"{tuned}-search")
        lr = kept(folder / f"{tuned}-search.json", make)["lr"]
        for seed in range(arguments.seeds):
            run = f"{name}-seed{seed}"
            make = partial(reported, known[name], lr, seed, cache / f"{run}-{lr}")
            found = kept(folder / f"{run}.json", make)
            rounds, seconds = found["rounds_to_target"], found["seconds"]
            print(f"{run}: lr {lr}, {rounds} rounds, {seconds} s", flush=True)


if __name__ == "__main__":
    main()
