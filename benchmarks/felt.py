"""What a user waits for besides rounds: start-up, evaluation, cohorts of many clients, machines.

Each is one number a contender, in processes of their own; a document has the form of `measuring`'s.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks import contenders
from benchmarks.workloads import find, write_rows
from fedadmm.study.formatting import OnProgress

MNIST = ("mnist-100-shards", "--algorithm", "fedavg", "--set", "local.stop.name=epochs")
COHORTS = (100, 1_000, 10_000)
NODES = (1, 2)


class Cost(NamedTuple):
    """What something took."""

    seconds: float
    cpu: float | None = None


def _busy() -> float:
    """The processor time of the whole machine: nobody waits for the children of a forkserver."""
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "nice", 0.0))


def _command(*words: str) -> tuple[Cost, str]:
    """Run a Python program to its end."""
    before, began = _busy(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True, cwd=contenders.ROOT
    )
    return Cost(time.perf_counter() - began, _busy() - before), done.stdout


def _fedadmm(*words: str) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        out = ("--out", f"{folder}/run", "--no-report") if words[0] in ("run", "compare") else ()
        return _command("-m", "fedadmm", *words, *out)[0]


def start_up() -> dict[str, Cost]:
    """`import torch` alone, quickstart to the end of its first round, and two commands without."""
    return {
        "import torch": _command("-c", "import torch")[0],
        "quickstart, one round": _fedadmm("run", "quickstart", "--rounds", "1"),
        "config presets": _fedadmm("config", "presets"),
        "--help": _fedadmm("--help"),
    }


def comparison() -> dict[str, Cost]:
    """`compare quickstart` as it is typed, and the processor time that it used."""
    return {
        "import torch": _command("-c", "import torch")[0],
        "compare quickstart": _fedadmm("compare", "quickstart"),
    }


def evaluation() -> dict[str, Cost]:
    """Evaluation's seconds a round beside everything, CNN 1 on MNIST with one and five epochs."""
    found = {}
    for epochs in ("1", "5"):
        with tempfile.TemporaryDirectory() as folder:
            words = (*MNIST, "--set", f"local.stop.epochs={epochs}", "--rounds", "4")
            _command("-m", "fedadmm", "run", *words, "--out", f"{folder}/run", "--no-report")
            lines = Path(folder, "run", "metrics.jsonl").read_text().splitlines()[1:]
        clocks = [json.loads(line)["clock"] for line in lines]
        for name in ("evaluation", "round"):
            spent = [
                sum(seconds for key, seconds in clock.items() if _counts(key, name))
                for clock in clocks
            ]
            found[f"E = {epochs}, {name}"] = Cost(statistics.median(spent))
    return found


def _counts(key: str, name: str) -> bool:
    return key == f"{name}_seconds" if name != "round" else key.endswith("_seconds")


def cohort() -> dict[str, Cost]:
    """Seconds a client of cohorts out of a million, FedADMM's state in memory and on disk."""
    found = {}
    for size in COHORTS:
        for state in ("memory", "disk"):
            chosen = replace(
                find("growth"), clients=10**6, cohort=size, rounds=max(2, 2000 // size)
            )
            chosen = replace(chosen, method="fedadmm", state=state, saved=True)
            with tempfile.TemporaryDirectory() as folder:
                write_rows(chosen, Path(folder))
                outcome = contenders.run("fedadmm", chosen, Path(folder))
            seconds = statistics.mean(outcome.seconds) / size
            found[f"{size}, {state}"] = Cost(seconds)
    return found


def ray_nodes() -> dict[str, Cost]:
    """A round of CNN 1 on one and on two machines of one CPU each."""
    found = {}
    for nodes in NODES:
        told = _command("-m", "benchmarks.ray_nodes", str(nodes))[1]
        found[f"{nodes} nodes"] = Cost(float(told.split()[-1]))
    return found


FELT: dict[str, tuple[Callable[[], dict[str, Cost]], str]] = {
    "start-up": (start_up, "import torch"),
    "comparison": (comparison, "import torch"),
    "evaluation": (evaluation, "E = 5, round"),
    "cohort": (cohort, "100, memory"),
    "ray-nodes": (ray_nodes, "1 nodes"),
}
"""What is measured, and what the ratios are to."""


def run(name: str, repeats: int, on_progress: OnProgress) -> dict[str, Any]:
    """Measure one of them, several times; the medians, their spread and ratios."""
    measure, base = FELT[name]
    turns: list[dict[str, Cost]] = []
    for repeat in range(repeats):
        on_progress(f"{name}: repeat {repeat + 1} of {repeats}", repeat, repeats)
        turns.append(measure())
    seconds = {key: statistics.median(turn[key].seconds for turn in turns) for key in turns[0]}
    used = {key: [one for turn in turns if (one := turn[key].cpu) is not None] for key in seconds}
    return {
        "workload": name,
        "seconds_per_round": seconds,
        "ratios": {key: value / seconds[base] for key, value in seconds.items() if key != base},
        "spread": {key: _spread([turn[key].seconds for turn in turns]) for key in seconds},
        "cpu_seconds": {key: statistics.median(found) for key, found in used.items() if found},
        "repeats": repeats,
        "skipped": {},
    }


def _spread(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)]
