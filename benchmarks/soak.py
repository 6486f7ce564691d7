"""Memory and file descriptors of a long deployment, and their growth per round.

    python -m benchmarks.soak --rounds 2000 --out runs/soak

starts `fedadmm deploy local` with real SuperLink and SuperNode processes on this machine, and reads
the resident memory and the open file descriptors of each of their process trees every five seconds.
The growth is the median slope between two samples (Theil-Sen) of the second half of the rounds,
because allocators and caches fill in the first.  Samples during a task do not count, because its
process shares memory with its parent.  All samples are in OUT/soak.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedadmm.flower.deploy.processes import PROCESSES

SECONDS = 5.0
"""Between two samples."""


def trees(folder: Path) -> dict[str, psutil.Process]:
    """Return the root process of each process tree of a deployment."""
    path = folder / PROCESSES
    listed = json.loads(path.read_text("utf-8")) if path.is_file() else []
    found = {}
    for one in listed:
        try:
            found[one["name"]] = psutil.Process(one["group"])
        except psutil.NoSuchProcess:
            continue
    return found


def sample(root: psutil.Process) -> dict[str, int]:
    """Return kilobytes, descriptors and processes of a tree."""
    kilobytes = descriptors = processes = 0
    for process in [root, *root.children(recursive=True)]:
        try:
            with process.oneshot():
                kilobytes += process.memory_info().rss // 1024
                descriptors += process.num_fds()
                processes += 1
        except psutil.NoSuchProcess:  # a task that has just ended
            continue
    return {"kilobytes": kilobytes, "descriptors": descriptors, "processes": processes}


def rounds_done(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def slopes(samples: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return for each tree its last values, and their growth per round in the second half."""
    last = samples[-1]["round"]
    late = [one for one in samples if one["round"] >= last / 2]
    found = {}
    for name in late[-1]["trees"]:
        rows = [one for one in late if name in one["trees"]]
        fewest = min(one["trees"][name]["processes"] for one in rows)
        rows = [one for one in rows if one["trees"][name]["processes"] == fewest]
        x = np.array([one["round"] for one in rows], float)
        found[name] = {}
        for key in ("kilobytes", "descriptors"):
            y = np.array([one["trees"][name][key] for one in rows], float)
            found[name][key] = float(np.median(y))
            found[name][f"{key} per round"] = median_slope(x, y)
    return found


def median_slope(x: np.ndarray, y: np.ndarray) -> float:
    """Return the median slope of all pairs of samples of different rounds."""
    i, j = np.triu_indices(len(x), 1)
    apart = x[i] != x[j]
    return float(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart])) if apart.any() else 0.0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=2000)
    options.add_argument("--clients", type=int, default=4)
    options.add_argument("--config", default="quickstart")
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    command = [sys.executable, "-m", "fedadmm", "deploy", "local", given.config, "--tls"]
    command += ["--clients", str(given.clients), "--rounds", str(given.rounds)]
    command += ["--no-report", "--out", str(given.out)]
    samples: list[dict[str, Any]] = []
    began = time.monotonic()
    with subprocess.Popen(command) as run:
        while run.poll() is None:
            time.sleep(SECONDS)
            done = rounds_done(given.out)
            found = {}
            for name, root in trees(given.out / "deployment").items():
                try:
                    found[name] = sample(root)
                except psutil.NoSuchProcess:
                    continue
            if done and found and run.poll() is None:
                seconds = round(time.monotonic() - began, 1)
                samples.append({"round": done, "seconds": seconds, "trees": found})
    rounds, seconds = rounds_done(given.out), time.monotonic() - began
    document = {"rounds": rounds, "seconds": round(seconds, 1), "exit": run.returncode}
    document |= {"growth": slopes(samples), "samples": samples}
    (given.out / "soak.json").write_text(json.dumps(document, indent=1) + "\n")
    print(f"{rounds} rounds in {seconds:.0f} s, exit code {run.returncode}, {len(samples)} samples")
    print(f"{'process tree':14} {'MB':>7} {'kB/round':>9} {'files':>6} {'files/round':>12}")
    for name, one in document["growth"].items():
        print(
            f"{name:14} {one['kilobytes'] / 1024:7.1f} {one['kilobytes per round']:9.2f} "
            f"{one['descriptors']:6.0f} {one['descriptors per round']:12.4f}"
        )
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
