"""Gong's Table III and the ladder, at the paper's size: CNN 1, MNIST, 100 clients, 10 a round.

    OMP_NUM_THREADS=1 FEDADMM_DATA=... python -m studies.gong studies/gong/results [CELL ...]

Each cell is world-split-row, for example `released-iid-printed`; `*` means any text.  A cell
searches the learning rate on seed 1000 by successive halving over the paper's values, then runs
seed 0 until 97 % of the held-out rows are right.  The ladder's rungs share FedAvg's rate, so that
they differ in one thing only.  A finished search or run is a file in the folder and is not run
again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import fedadmm
from fedadmm.run.simulation import Result
from fedadmm.study.config import resolve

RATES = (0.01, 0.1, 0.2, 0.5)
FIRST, SECOND = 2, 5  # rounds of the two halves of the search
CAP = {"iid": 60, "shards": 100}
TARGET = 0.97

DRAWN = {"name": "uniform-epochs", "epochs": 5}
FIXED = {"name": "epochs", "epochs": 5}
STEPS = {"name": "piecewise", "values": {0: 1.0, 60: 0.5}}
RELEASED = {"name": "fedadmm-released", "rho": 0.01, "step": 1.0}
PRINTED = {"name": "fedadmm", "rho": 0.01, "step": 1.0}
TRACKING = {"name": "fedadmm", "rho": 0.01}
ALIGNED = {"name": "aligned-admm", "rho": {"name": "per-work"}}

ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], float, str]] = {
    "fedavg": ({"name": "fedavg"}, FIXED, 0.0, "global"),
    "released": (RELEASED | {"step": STEPS}, DRAWN, 0.5, "global"),
    "scaffold": ({"name": "scaffold"}, FIXED, 0.0, "global"),
    "printed": (PRINTED, DRAWN, 0.0, "own"),
    "printed-global": (PRINTED, DRAWN, 0.0, "global"),
    "aligned-1": (ALIGNED | {"sigma": 1.0}, FIXED, 0.0, "global"),
    "aligned-auto": (ALIGNED, FIXED, 0.0, "global"),
    "tracking-global": (TRACKING, DRAWN, 0.0, "global"),
    "fedprox-0.1": ({"name": "fedprox", "rho": 0.1}, DRAWN, 0.0, "global"),
    "fedsgd": ({"name": "fedsgd"}, FIXED, 0.0, "global"),
    # The ladder from FedAvg to the released FedADMM; each rung keeps the changes before it.
    "ladder-momentum": ({"name": "fedavg"}, FIXED, 0.5, "global"),
    "ladder-upload": ({"name": "fedavgm", "momentum": 0.0, "lr": 2.0}, FIXED, 0.5, "global"),
    "ladder-epochs": ({"name": "fedavgm", "momentum": 0.0, "lr": 2.0}, DRAWN, 0.5, "global"),
    "ladder-duals": (RELEASED, DRAWN, 0.5, "global"),
}
"""Row -> algorithm, stopping rule, momentum, where local training starts."""
ORDER = (
    [
        ("released", "iid", row)
        for row in (
            *("fedavg", "released", "scaffold", "printed"),
            *("ladder-momentum", "ladder-upload", "ladder-epochs", "printed-global", "aligned-1"),
        )
    ]
    + [("sound", "iid", row) for row in ("fedavg", "aligned-1", "scaffold", "released", "printed")]
    + [("released", "shards", row) for row in ("fedavg", "released", "aligned-1")]
    + [("sound", "shards", row) for row in ("fedavg", "aligned-1")]
    + [
        (world, split, row)
        for world in ("released", "sound")
        for split in ("iid", "shards")
        for row in ROWS
        if world == "released" or not row.startswith("ladder")
    ]
)


def tree(
    world: str, split: str, row: str, lr: float, seed: int, rounds: int, rows: int | None
) -> dict[str, Any]:
    """The configuration of one run; `rows` limits the held-out rows that are evaluated."""
    algorithm, stop, momentum, start = ROWS[row]
    problem: dict[str, Any] = {"name": "mnist", "clients": 100, "partition": split, "model": "cnn1"}
    if world == "released":
        problem["as_released"] = "gong"
    if rows is not None:
        problem["max_test"] = rows
    solver = {"name": "sgd", "lr": lr, "batch_size": 200, "momentum": momentum}
    local: dict[str, Any] = {"solver": solver, "stop": stop, "start": start}
    if row == "fedsgd":  # its rate is the server's
        algorithm, local = algorithm | {"lr": lr}, {}
    return {
        "rounds": rounds,
        "seed": seed,
        "threads": 1,
        "problem": problem,
        "algorithm": algorithm,
        "local": local,
        "sampler": {"name": "uniform", "size": 0.1},
        "evaluate": {"objective": False},
        "target": {"metric": "test_accuracy", "value": TARGET},
    }


def simulated(config: dict[str, Any], folder: Path, resume: bool, every: int) -> Result:
    """Run a configuration; the folder keeps its checkpoints, so that it can go on."""
    kept = fedadmm.Checkpoints(folder, every)
    return fedadmm.simulate(resolve(config), checkpoints=kept, resume=resume)


def curve(result: Result) -> list[float]:
    """The accuracy after every round."""
    return [round(record["metrics"].get("test_accuracy", 0.0), 5) for record in result.history]


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a file holds, made when it is not there."""
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    began, cpu = time.perf_counter(), time.process_time()
    made = make() | {
        "seconds": round(time.perf_counter() - began),
        "cpu_seconds": round(time.process_time() - cpu),
        "date": time.strftime("%Y-%m-%d"),
    }
    path.write_text(json.dumps(made, indent=1) + "\n")
    return made


def search(world: str, split: str, row: str) -> dict[str, Any]:
    """The rate that is best on seed 1000: all for two rounds, the better half for five."""
    scratch = Path(tempfile.mkdtemp())
    try:
        curves = {}
        for lr in RATES:
            config = tree(world, split, row, lr, 1000, FIRST, 2000)
            curves[lr] = curve(simulated(config, scratch / str(lr), False, FIRST))
        better = sorted(RATES, key=lambda lr: max(curves[lr], default=0), reverse=True)[:2]
        for lr in better:
            if len(curves[lr]) == FIRST and max(curves[lr]) < TARGET:
                config = tree(world, split, row, lr, 1000, SECOND, 2000)
                curves[lr] += curve(simulated(config, scratch / str(lr), True, SECOND))
        best = max(better, key=lambda lr: worth(curves[lr]))
        return {"lr": best, "curves": {str(lr): values for lr, values in curves.items()}}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def worth(values: list[float]) -> tuple[bool, int, float]:
    """The target first, then fewer rounds to it, then the last accuracy."""
    reached = max(values) >= TARGET
    return reached, -len(values) if reached else 0, values[-1]


def reported(world: str, split: str, row: str, lr: float, unfinished: Path) -> dict[str, Any]:
    """The run of seed 0 until the target, or as many rounds as there are at most.

    Its checkpoints are kept in `unfinished` until it ends, so that a stopped run goes on.
    """
    config = tree(world, split, row, lr, 0, CAP[split], None)
    result = simulated(config, unfinished, unfinished.exists(), every=5)
    shutil.rmtree(unfinished, ignore_errors=True)
    values = curve(result)
    reached = next((number for number, value in enumerate(values, 1) if value >= TARGET), None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]
    found = {"config": config, "digest": digest, "code": result.code}
    return found | {"rounds_to_target": reached, "curve": values}


def main() -> None:
    """Run what is missing, cell by cell."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("cells", nargs="*", default=["*"], metavar="CELL")
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    for world, split, row in dict.fromkeys(ORDER):
        name = f"{world}-{split}-{row}"
        if not any(fnmatch(name, pattern) for pattern in arguments.cells):
            continue
        tuned = "fedavg" if row.startswith("ladder") else row
        chosen = kept(
            arguments.results / f"{world}-{split}-{tuned}-search.json",
            partial(search, world, split, tuned),
        )
        found = kept(
            arguments.results / f"{name}-seed0.json",
            partial(reported, world, split, row, chosen["lr"], Path(".cache/gong") / name),
        )
        rounds, seconds = found["rounds_to_target"], found["seconds"]
        print(f"{name}: lr {chosen['lr']}, {rounds} rounds, {seconds} s", flush=True)


if __name__ == "__main__":
    main()
