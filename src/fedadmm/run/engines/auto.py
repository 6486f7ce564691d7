"""Measure the ways of running clients on the first round's own clients, then take the fastest."""

from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fedadmm.core.errors import EngineError
from fedadmm.core.parts import Count, part
from fedadmm.core.protocols import ClientInfo, ClientRecords, Download, Engine, Upload
from fedadmm.core.stopping import Steps
from fedadmm.run.client import Job
from fedadmm.run.engines.choice import EngineChoice
from fedadmm.run.engines.sequential import Sequential
from fedadmm.run.engines.vectorised import Vectorised, refusal
from fedadmm.run.engines.workers import Workers, usable_cores
from fedadmm.run.engines.working import Held

STEPS = 5
"""Solver steps a client in a measurement."""
STACKED_CLIENTS = 256
"""Clients in a measurement of the vectorised engine."""
STACKED_PARAMETERS = 200_000
"""The steps of larger models are not spent in Python, so that stacks are not worth a trial."""
REPEATS = 3
"""How often a way is measured; the best time counts, so that the first may warm up."""

log = logging.getLogger(__name__)


@part("engine", "auto")
class Auto(EngineChoice):
    """The choice that measures; `workers` is the number of processes that may be used.

    Every way gives the same trajectory up to rounding, and without stacks to the last bit.
    """

    workers: Count | None = None

    def start(self, job: Job, store: ClientRecords) -> Engine:
        return AutoEngine(job, store, self.workers)


class AutoEngine(Engine):
    """The engine that was fastest; `choice` names it and `seconds` holds what each way took.

    A run that goes on sets `choice` before its first round, and nothing is measured.
    """

    def __init__(self, job: Job, store: ClientRecords, workers: int | None) -> None:
        self._job = job
        self._store = store
        self._cores = workers if workers is not None else usable_cores()
        self._engine: Engine | None = None
        self.choice: str | None = None
        self.seconds: dict[str, float] = {}
        """Seconds a client in the measurement, for every way that was tried."""

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        if self._engine is None:
            self._choose(ids, download, round_index)
        assert self._engine is not None
        replies: Any = self._engine.run_clients(ids, download, round_index)
        yield from replies

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def _choose(self, ids: Sequence[int], download: Download, round_index: int) -> None:
        ways = self._ways()
        if self.choice is not None:
            if self.choice not in ways:
                raise EngineError(
                    f"auto: the run began with engine {self.choice!r}, but only {', '.join(ways)} "
                    "can go on with it here"
                )
        elif len(ways) > 1 and len(ids) > 1:
            self.seconds = self._measure(ways, ids, download, round_index)
            self.choice = min(self.seconds, key=lambda name: self.seconds[name])
        else:
            self.choice = next(iter(ways))
        self._engine = ways[self.choice].start(self._job, self._store)
        measured = ", ".join(f"{name} {value:.2g}" for name, value in self.seconds.items())
        log.info("engine auto chose %s (seconds a client: %s)", self.choice, measured or "unasked")

    def _ways(self) -> dict[str, EngineChoice]:
        """The ways that this job can run, the reference first."""
        ways: dict[str, EngineChoice] = {Sequential.name: Sequential()}
        on_cpu = self._job.initial.device.type == "cpu"
        if self._cores > 1 and on_cpu and "fork" in multiprocessing.get_all_start_methods():
            ways[Workers.name] = Workers(self._cores)
        if self._job.initial.numel() <= STACKED_PARAMETERS and refusal(self._job) is None:
            ways[Vectorised.name] = Vectorised()
        return ways

    def _measure(
        self,
        ways: dict[str, EngineChoice],
        ids: Sequence[int],
        download: Download,
        round_index: int,
    ) -> dict[str, float]:
        """Seconds a client for a few steps; the ways take turns, so that noise meets them all."""
        short = self._job._replace(local=replace(self._job.local, stop=Steps(STEPS)))
        store = Held(self._store)  # a measurement changes nothing
        best = dict.fromkeys(ways, math.inf)
        with contextlib.ExitStack() as stack:
            engines = {}
            for name, way in ways.items():
                engines[name] = stack.enter_context(contextlib.closing(way.start(short, store)))
            for _ in range(REPEATS):
                for name, engine in engines.items():
                    limit = STACKED_CLIENTS if name == Vectorised.name else 2 * self._cores
                    chosen = ids[:limit]
                    began = time.perf_counter()
                    for _reply in engine.run_clients(chosen, download, round_index):
                        pass
                    best[name] = min(best[name], (time.perf_counter() - began) / len(chosen))
        return best
