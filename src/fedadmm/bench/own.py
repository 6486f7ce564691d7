"""fedadmm as a contender: the process that `fedadmm bench` times."""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedadmm import losses, models
from fedadmm.algorithms import FedADMM, FedAvg
from fedadmm.engines import Auto
from fedadmm.flat import FlatModule
from fedadmm.model_objective import ModelObjective
from fedadmm.problem import LazyClients, Problem
from fedadmm.round import RoundReport
from fedadmm.sampling import CyclicSampling, UniformSampling
from fedadmm.simulation import simulate
from fedadmm.solvers import SGD
from fedadmm.state import Checkpoints, DiskStore, MemoryStore
from fedadmm.stopping import Epochs, Steps

MEMORY_SECONDS = 0.5
"""How often memory is looked at, at most."""
TOUCHING_ROUNDS = 10
"""In how many rounds every client takes part once."""


def resident_mb() -> float:
    """What this process and its children hold in memory, shared pages counted once."""
    total = 0
    for process in [None, *multiprocessing.active_children()]:
        name = "self" if process is None else process.pid
        for line in Path(f"/proc/{name}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


class Clock:
    """An observer that notes what rounds took and how much memory they left occupied."""

    def __init__(self, begun: float) -> None:
        self._begun = begun
        self.seconds: list[float] = []
        self.startup = 0.0
        self.peak = 0.0
        self._looked = 0.0

    def __call__(self, report: RoundReport) -> None:
        """A round has ended."""
        if not self.seconds:
            self.startup = time.time() - self._begun
        self.seconds.append(report.record["seconds"])
        if time.monotonic() - self._looked > MEMORY_SECONDS:  # looking walks through all pages
            self.peak = max(self.peak, resident_mb())
            self._looked = time.monotonic()


def problem(spec: SimpleNamespace) -> Problem:
    """The workload's problem; clients share rows when there are more clients than rows for them."""
    inputs = torch.from_numpy(np.load(Path(spec.folder) / "inputs.npy"))
    targets = torch.from_numpy(np.load(Path(spec.folder) / "targets.npy"))
    if inputs.dtype == torch.uint8:
        inputs = inputs.float().div_(255)
    module = models.build(spec.model)
    flat = FlatModule(module)
    parts = len(targets) // spec.samples

    def build(client: int) -> ModelObjective:
        begin = client % parts * spec.samples
        rows: tuple[Tensor, Tensor] = (
            inputs[begin : begin + spec.samples],
            targets[begin : begin + spec.samples],
        )
        return ModelObjective(flat, losses.cross_entropy, *rows)

    return Problem(LazyClients(spec.clients, build), initial=flat.vector.clone())


class _Remembered:
    """Auto, with its engine kept to ask it what it chose."""

    def __init__(self, cores: int) -> None:
        self._choice = Auto(cores)
        self.engine: Any = None

    def __call__(self, job: Any, store: Any) -> Any:
        self.engine = self._choice(job, store)
        return self.engine


def run(spec: SimpleNamespace, begun: float) -> dict[str, Any]:
    """Run the workload and report."""
    task = problem(spec)
    method: Any = FedADMM(rho=0.01) if spec.method == "fedadmm" else FedAvg()
    clock, engine = Clock(begun), _Remembered(spec.cores)
    with tempfile.TemporaryDirectory(prefix="fedadmm-bench-") as folder:
        store: Any = DiskStore(Path(folder) / "state") if spec.state == "disk" else MemoryStore()
        settings: dict[str, Any] = {
            "solver": SGD(spec.lr, batch_size=spec.batch_size),
            "evaluate": False,
            "engine": engine,
            "store": store,
        }
        done = 0
        if spec.touch:
            done = TOUCHING_ROUNDS
            checkpoints = Checkpoints(Path(folder) / "checkpoint", every=10**6)
            everyone = CyclicSampling(-(-spec.clients // TOUCHING_ROUNDS))
            settings["checkpoints"] = checkpoints
            simulate(method, task, done, sampler=everyone, stop=Steps(1), **settings)
            settings["resume"] = True
        simulate(
            method,
            task,
            done + spec.warm_up + spec.rounds,
            sampler=UniformSampling(spec.cohort),
            stop=Epochs(spec.epochs),
            observers=[clock],
            **settings,
        )
        touched = len(store.clients())
    return {
        "seconds": clock.seconds[spec.warm_up :],
        "peak_rss_mb": clock.peak,
        "startup_seconds": clock.startup,
        "engine": engine.engine.choice,
        "clients_touched": touched,
    }


def main() -> None:
    """Run the workload that the command line names."""
    spec = SimpleNamespace(**json.loads(Path(sys.argv[1]).read_text()))
    print(json.dumps(run(spec, float(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
