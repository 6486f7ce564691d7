"""What live diagnostics cost: their share of the time of the rounds that they look at.

python benchmarks/diagnostics.py                # the quickstart, and CNN 1 on MNIST (FEDADMM_DATA)
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from fedadmm.study import config, single_run
from fedadmm.study.run_dir import RunDir

EVERY, CLIENTS = 10, 5
PROBLEMS: dict[str, dict[str, Any]] = {
    "quickstart": {"rounds": 100, "seed": 0},
    "MNIST, CNN 1, 100 clients": {
        "rounds": 10,
        "seed": 0,
        "problem": {"name": "mnist", "clients": 100, "partition": "shards", "model": "cnn1"},
        "local": {
            "solver": {"name": "sgd", "lr": 0.1, "batch_size": 200},
            "stop": {"name": "epochs", "epochs": 5},
        },
        "sampler": {"name": "uniform", "size": 0.1},
        "engine": {"name": "workers"},
    },
}


def share(changes: dict[str, Any]) -> tuple[float, float]:
    """Seconds of the looks over seconds of the rounds; and the seconds of a round."""
    tree = changes
    if "problem" not in changes:
        tree = config.run_only(config.read("quickstart")) | changes
    tree = tree | {
        "algorithm": {"name": "fedadmm", "rho": 0.1},
        "evaluate": {"every": 10**6},
        "callbacks": [{"name": "diagnostics", "every": EVERY, "clients": CLIENTS}],
    }
    with tempfile.TemporaryDirectory() as folder:
        single_run.run(config.resolve(tree), Path(folder) / "run")
        records = RunDir(Path(folder) / "run").records()
    looks = sum(record["clock"].get("diagnostics_seconds", 0.0) for record in records)
    rounds = sum(record["clock"]["seconds"] for record in records)
    return looks / rounds, rounds / len(records)


def main() -> None:
    print(f"a look at {CLIENTS} clients every {EVERY} rounds")
    for name, changes in PROBLEMS.items():
        found, seconds = share(changes)
        print(f"{name}: {100 * found:.2f} % of the rounds ({seconds:.3g} s a round)", flush=True)


if __name__ == "__main__":
    main()
