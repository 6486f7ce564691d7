"""Options of engines, the number of threads, and the sequential engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

import torch

from fedadmm.core.messages import ClientInfo, ClientRecords, Download, Engine, Upload
from fedadmm.core.parts import Part, part, role
from fedadmm.run.client import Job, run_client

Threads = int | Literal["auto"]

WORTH_SPLITTING = 2e7
"""Multiplications in a gradient from which on further threads pay.

Measured by `benchmarks/threads.py`: with two threads a gradient of a million takes as long as with
one, of five million 0.7 to 0.8 times as long, of twenty million 0.6 times (perceptrons; larger
gradients, and convolutions, were measured on a busy machine only, where the ratio is noise).  The
limit is where the gain is clear and not where it begins, because what a wrong choice costs is
not symmetric: on a busy machine twenty rounds of the digits took 27 s with two threads and 0.8 s
with one.
"""


@role("engine")
class EngineChoice(Part, ABC):
    """Base class of the options of an engine, which start the engine when a run begins."""

    affects_result: ClassVar[bool] = False
    """Whether the options change the result, and not only its computing time."""
    needs_disk: ClassVar[bool] = False
    """Whether client states are stored where the clients run, so that the default is on disk."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether updates are aggregated on arrival, without rounds."""
        return False

    def uses_one_core(self, threads: int | Literal["auto"]) -> bool:
        """Return whether a run with these threads uses one core, so that runs can be parallel."""
        return False

    def expected_delay(self, clients: int) -> int | None:
        """Return the approximate delay of updates in server steps; None with rounds."""
        return None

    @abstractmethod
    def start(self, job: Job, store: ClientRecords) -> Engine:
        """Start the engine, or raise a CompatibilityError for a job that it cannot run."""


def chosen_threads(job: Job, threads: Threads) -> int:
    """The number itself, or with "auto" one thread for small gradients and all for large ones.

    "All" is what torch was given: its default, OMP_NUM_THREADS or `torch.set_num_threads`.

    The rule counts multiplications in a gradient of the first client, and times nothing: sums of
    floating-point numbers depend on how they are split among threads, so that with a timed choice
    the last digits of a run would depend on what else the machine did when it began.
    """
    if threads != "auto":
        return int(threads)
    given = torch.get_num_threads()
    if given == 1:
        return 1
    work = job.problem.clients[0].work(samples_per_step(job))
    return given if work >= WORTH_SPLITTING else 1


def samples_per_step(job: Job) -> int:
    """The samples in a gradient of the first client."""
    samples, solver = job.problem.clients[0].num_samples, job.solver
    if job.algorithm.requirements.local.local_solve and solver is not None and solver.batch_size:
        return min(samples, solver.batch_size)
    return samples


def client_work(job: Job, step_overhead: float = 0.0) -> float:
    """About how many multiplications a client's local work takes, forwards.

    `step_overhead` is what a step costs apart from its gradient.
    """
    client, samples, steps = job.problem.clients[0], samples_per_step(job), 1
    if job.algorithm.requirements.local.local_solve:
        steps = job.stop.largest_budget(-(-client.num_samples // samples), 0)
    return steps * (client.work(samples) + step_overhead)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads inside the block.

    Threads that wait for each other at the end of every small operation cost more than they
    bring, and on a busy machine far more.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@part("engine", "sequential")
class Sequential(EngineChoice):
    """The choice of the sequential engine."""

    def start(self, job: Job, store: ClientRecords) -> Engine:
        return SequentialEngine(job, store)

    def uses_one_core(self, threads: int | Literal["auto"]) -> bool:
        return threads == 1


class SequentialEngine(Engine):
    """Runs clients one by one."""

    def __init__(self, job: Job, store: ClientRecords) -> None:
        self._job = job
        self._store = store

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        for client in ids:
            upload, info = run_client(self._job, self._store, client, download, round_index)
            yield client, upload, info
