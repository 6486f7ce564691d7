"""Independent runs side by side in a few processes, none of which outlives this one.

A worker gets one job at a time through its pipe and sends back records and the whole run.  It lives
in a process group of its own, out of reach of the terminal's Ctrl-C: the parent alone decides,
interrupts each worker (whose run then leaves its checkpoint), waits, and kills what does not go.
A worker whose parent has died ends by itself.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.core import signals
from fedadmm.core.errors import EngineError, FedADMMError
from fedadmm.core.problem import Problem
from fedadmm.run.experiment import Experiment
from fedadmm.run.record import Record
from fedadmm.study.rundir import RecordedRun
from fedadmm.study.running import run_recorded

_PATIENCE = 30.0
"""Seconds that a worker has to leave its checkpoint."""


class Job(NamedTuple):
    """One run, as it travels to a worker."""

    label: str
    run: Experiment
    directory: Path
    resume: bool = False


class Began(NamedTuple):
    """A run began."""

    job: int
    label: str
    rounds: int


class Recorded(NamedTuple):
    """A round of a run is done."""

    job: int
    record: Record


class Ended(NamedTuple):
    """A run ended."""

    job: int


Event = Began | Recorded | Ended
"""What a watcher of several runs learns."""

Watch = Callable[[Event], None]


def nobody(event: Event) -> None:
    """A watch that looks away."""


def run_jobs(jobs: Sequence[Job], processes: int, watch: Watch = nobody) -> list[RecordedRun]:
    """Run all jobs and return them in order; the first refusal ends everything."""
    if processes <= 1 or len(jobs) <= 1:
        return [_alone(index, job, watch) for index, job in enumerate(jobs)]
    with _workers(min(processes, len(jobs))) as workers:
        return _distribute(jobs, workers, watch)


def _beginning(index: int, job: Job) -> Event:
    return Began(index, job.label, job.run.rounds)


def _alone(index: int, job: Job, watch: Watch) -> RecordedRun:
    watch(_beginning(index, job))
    found = execute(job, lambda record: watch(Recorded(index, record)))
    watch(Ended(index))
    return found


def execute(job: Job, tell: Callable[[Record], None]) -> RecordedRun:
    """Run one job in this process; jobs on the same problem share it."""
    return run_recorded(
        job.run,
        job.directory,
        label=job.label,
        resume=job.resume,
        callbacks=[lambda report: tell(report.record)],
        problem=_shared_problem(job.run),
    )


_latest: dict[str, Problem] = {}
"""The problem of the last job, by the tables that describe it."""


def _shared_problem(chosen: Experiment) -> Problem:
    tables = json.dumps([chosen.tree["problem"], chosen.tree["regularizer"]], sort_keys=True)
    if tables not in _latest:
        _latest.clear()  # before the next one is loaded: two may not fit in memory
        _latest[tables] = chosen.load_problem()
    return _latest[tables]


class _Worker:
    """A process and the parent's end of its pipe."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs,))
        self.process.start()
        theirs.close()
        self.job: int | None = None

    def give(self, index: int, job: Job) -> None:
        self.job = index
        self.pipe.send(job)

    def interrupt(self) -> None:
        """End the run that is under way; then hang up, so that it cannot wait to be heard."""
        if self.job is not None and self.process.is_alive():
            assert self.process.pid is not None
            os.kill(self.process.pid, signal.SIGINT)
        self.pipe.close()

    def close(self) -> None:
        self.process.join(_PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextmanager
def _workers(count: int) -> Iterator[list[_Worker]]:
    workers: list[_Worker] = []
    try:
        with signals.ignored(signal.SIGINT):
            for _ in range(count):
                workers.append(_Worker())  # noqa: PERF401 - those that started must be closed
        yield workers
    finally:
        with signals.ignored(signal.SIGINT):
            for worker in workers:
                worker.interrupt()
            for worker in workers:
                worker.close()


def _distribute(jobs: Sequence[Job], workers: list[_Worker], watch: Watch) -> list[RecordedRun]:
    waiting = list(enumerate(jobs))[::-1]
    ended: dict[int, RecordedRun] = {}

    def supply(worker: _Worker) -> None:
        worker.job = None
        if waiting:
            index, job = waiting.pop()
            worker.give(index, job)
            watch(_beginning(index, job))

    for worker in workers:
        supply(worker)
    while len(ended) < len(jobs):
        busy = {worker.pipe: worker for worker in workers if worker.job is not None}
        for pipe in connection.wait(list(busy), timeout=1.0):
            worker = busy[pipe]  # type: ignore[index]
            index = worker.job
            assert index is not None
            kind, content = _receive(worker, jobs[index])
            if kind == "record":
                watch(Recorded(index, content))
            else:
                ended[index] = content
                watch(Ended(index))
                supply(worker)
    return [ended[index] for index in range(len(jobs))]


def _receive(worker: _Worker, job: Job) -> tuple[str, Any]:
    """The worker's next message; a failure of the run is raised here."""
    try:
        kind, content = worker.pipe.recv()
    except EOFError:
        worker.process.join(_PATIENCE)
        raise EngineError(
            f"{job.label}: its process ended with code {worker.process.exitcode}; what it did so "
            f"far is in {job.directory}"
        ) from None
    if kind == "refused":
        raise content
    if kind == "failed":
        raise EngineError(f"{job.label}: its process failed\n{content}")
    return kind, content


def _serve(pipe: Connection) -> None:
    """A worker's life: Ctrl-C is ignored until it has a process group of its own."""
    import torch

    os.setpgrp()
    signals.accept_interrupts()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    with suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        while True:
            _serve_one(pipe, pipe.recv())


def _serve_one(pipe: Connection, job: Job) -> None:
    def tell(record: Record) -> None:
        try:
            pipe.send(("record", record))
        except BrokenPipeError:  # the parent has hung up: stop as if it had said so
            raise KeyboardInterrupt from None

    try:
        answer: tuple[str, Any] = ("ended", execute(job, tell))
    except (FedADMMError, OSError) as error:
        answer = ("refused", error)
    except Exception:
        answer = ("failed", traceback.format_exc())
    pipe.send(answer)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
