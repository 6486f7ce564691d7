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
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedadmm.study.recipes import plan
from fedadmm.study.run_dir import RecordedRun
from fedadmm.study.runner import run_study
from fedadmm.study.search import search as best_of
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


def worth(values: list[float], shards: bool, target: float) -> float:
    """How good a rate's curve is: above 1 if the target was reached, the sooner the better.

    Otherwise the accuracy after the last round, with two shards the mean of the last eight rounds.
    """
    if max(values, default=0.0) >= target:
        return 2 - len(values) / 1000
    return fmean(values[-8 if shards else -1 :] or [0.0])


def extended(cell: Cell, found: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Go on with a search of an earlier version of this program until its rate is not at an edge.

    Such a search has the test accuracies of each rate in `curves`, on seed 1000; a new rate has as
    many rounds as the longest of them.
    """
    shards, target = cell.setting.endswith("-shards"), cell.run.target
    assert target is not None
    curves = {float(rate): values for rate, values in found["curves"].items()}
    rounds = max(map(len, curves.values()))

    def score(values: Mapping[str, Any], seed: int) -> float:
        lr = values["lr"]
        if lr not in curves:
            tried = with_rate(cell, lr, seed, rounds).chosen({"problem.max_test": 2000})
            curves[lr] = curve(run_recorded(tried.run, folder))
            shutil.rmtree(folder)
            print(cell.name, lr, curves[lr], flush=True)
        return worth(curves[lr], shards, target.value)

    best = best_of({"lr": tuple(curves)}, score, (1000,)).chosen["lr"]
    return found | {"lr": best, "curves": {f"{lr:g}": curves[lr] for lr in sorted(curves)}}


def rate_of(found: dict[str, Any]) -> float:
    """The learning rate of a reported run; the first files have it in their configuration only."""
    if "lr" in found:
        return float(found["lr"])
    return float((found["config"].get("local") or found["config"])["solver"]["lr"])


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
        path = folder / f"{tuned}-search.json"
        rates = kept(path, make)
        if "curves" in rates:
            more = extended(known[tuned], rates, cache / f"{tuned}-more")
            if more != rates:
                path.write_text(json.dumps(more, indent=1) + "\n")
            rates = more
        lr = rates["lr"]
        for seed in range(arguments.seeds):
            run = f"{name}-seed{seed}"
            make = partial(reported, known[name], lr, seed, cache / f"{run}-{lr}")
            path = folder / f"{run}.json"
            if path.exists() and rate_of(json.loads(path.read_text())) != lr:
                path.unlink()  # it was run before the search went on
            found = kept(path, make)
            rounds, seconds = found["rounds_to_target"], found["seconds"]
            print(f"{run}: lr {lr}, {rounds} rounds, {seconds} s", flush=True)


if __name__ == "__main__":
    main()
