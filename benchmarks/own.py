"""fedadmm as a contender: the process that `python -m benchmarks` times."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from benchmarks.peers import common
from benchmarks.workloads import read_rows, read_specification
from fedadmm.algorithms import FedADMM, FedAvg
from fedadmm.core.messages import ClientRecords, Engine
from fedadmm.core.objectives import losses
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.objectives.model import ModelObjective
from fedadmm.core.problem import LazyClients, Problem
from fedadmm.core.sampling import UniformSampling
from fedadmm.core.solvers import SGD
from fedadmm.core.stopping import Epochs
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.client import Job
from fedadmm.run.engines import Auto, EngineChoice
from fedadmm.run.simulate import simulate
from fedadmm.run.state import RoundReport
from fedadmm.run.stores import DiskStore, MemoryStore

MEMORY_SECONDS = 0.5
"""How often memory is looked at, at most."""


def resident_mb() -> float:
    """What this process and its children hold in memory, shared pages counted once.

    Only Linux can say so; elsewhere shared pages are left out.
    """
    own, total = psutil.Process(), 0
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            memory = process.memory_full_info()
            total += memory.pss if psutil.LINUX else memory.uss
    return total / 2**20


class Clock:
    """An observer that notes how long it is from round to round, and how much memory they take."""

    def __init__(self, begun: float) -> None:
        self._begun = begun
        self._last = time.perf_counter()
        self.seconds: list[float] = []
        self.startup = 0.0
        self.peak = 0.0
        self._looked = 0.0

    def __call__(self, report: RoundReport) -> None:
        """A round has ended."""
        if not self.seconds:
            self.startup = time.time() - self._begun
        self.seconds.append(time.perf_counter() - self._last)
        if time.monotonic() - self._looked > MEMORY_SECONDS:  # looking walks through all pages
            self.peak = max(self.peak, resident_mb())
            self._looked = time.monotonic()
        self._last = time.perf_counter()


def problem(spec: SimpleNamespace) -> Problem:
    """The workload's problem; clients share rows when there are more clients than rows for them."""
    inputs, targets = read_rows(spec)
    flat = FlatModule(common.model(spec))
    parts = len(targets) // spec.samples

    def build(client: int) -> ModelObjective:
        begin = client % parts * spec.samples
        rows = slice(begin, begin + spec.samples)
        return ModelObjective(flat, losses.cross_entropy, inputs[rows], targets[rows])

    return Problem(LazyClients(spec.clients, build), initial=flat.vector.clone())


class _Remembered(EngineChoice):
    """Auto, which keeps what it chose."""

    def __init__(self, cores: int) -> None:
        self._auto = Auto(cores)
        self.chosen = ""

    def start(self, job: Job, store: ClientRecords) -> Engine:
        """Start the engine, and keep its name."""
        choice = self._auto.chosen(job)
        self.chosen = choice.name
        return choice.start(job, store)


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
        if spec.saved:
            settings["checkpoints"] = Checkpoints(Path(folder) / "checkpoint", every=10)
        simulate(
            method,
            task,
            spec.warm_up + spec.rounds,
            sampler=UniformSampling(spec.cohort),
            stop=Epochs(spec.epochs),
            callbacks=[clock],
            **settings,
        )
        touched = len(store.clients())
    return {
        "seconds": clock.seconds[spec.warm_up :],
        "peak_rss_mb": clock.peak,
        "startup_seconds": clock.startup,
        "engine": engine.chosen,
        "clients_touched": touched,
    }


def main() -> None:
    """Run the workload that the command line names."""
    print(json.dumps(run(read_specification(), float(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
