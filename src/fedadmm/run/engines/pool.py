"""The parent's side of the worker processes: start, feed, wait, restart, end."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedadmm.core.errors import EngineError, PairingError
from fedadmm.run.client import Job
from fedadmm.run.engines.worker_process import (
    Failed,
    Finished,
    Memory,
    RoundBegins,
    RunClient,
    SharedMemory,
    give_back_freed_memory,
    start_method,
    work,
    work_on_copy,
)

AHEAD = 2
"""Clients a worker holds, so that it need not wait for the parent between two of them."""
ATTEMPTS = 2
"""How often a client is started before its worker's death is its own fault."""
PATIENCE_SECONDS = 5.0
"""How long a process may take to end when asked to."""


def _copied(job: Job) -> bytes:
    """The job for a process of its own.

    Multiprocessing would share its tensors, the model's too, and plain pickling would tear a
    model's parameters from the vector that they are views of.
    """
    stream = io.BytesIO()
    try:
        torch.save(job, stream)
        return stream.getvalue()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise PairingError(
            "Workers: where processes cannot be forked a problem goes to them as a copy, but this "
            f"one cannot be pickled ({error}); use Sequential or Vectorised"
        ) from None


class _Worker:
    """One process, its pipe, and the clients it holds; the first of them is running."""

    def __init__(self, job: Job, memory: Memory, announcement: RoundBegins | None) -> None:
        method = start_method()
        context: BaseContext = multiprocessing.get_context(method)
        self.connection, theirs = context.Pipe()
        target, given = (work, job) if method == "fork" else (work_on_copy, _copied(job))
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=target, args=(given, memory, theirs, os.getpid()), daemon=True
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads; the child uses none (see workers.py)
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()
        self.held: deque[RunClient] = deque()
        self.since = time.monotonic()
        if announcement is not None:
            self.connection.send(announcement)

    def give(self, command: RunClient) -> None:
        if not self.held:
            self.since = time.monotonic()
        self.held.append(command)
        self.connection.send(command)

    def take(self) -> Finished | Failed:
        reply: Finished | Failed = self.connection.recv()
        self.held.popleft()
        self.since = time.monotonic()
        return reply

    def end(self, politely: bool) -> None:
        if politely:
            with contextlib.suppress(OSError):  # it is gone already
                self.connection.send(None)
            self.process.join(PATIENCE_SECONDS)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(PATIENCE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(PATIENCE_SECONDS)
        self.connection.close()


class Pool:
    """Worker processes that share memory with this one."""

    memory: Memory

    def __init__(self, job: Job, workers: int, slots: int, timeout: float) -> None:
        self._job = job
        self._count = workers
        self._slots = slots
        self._timeout = timeout
        self._workers: list[_Worker] = []
        self._announcement: RoundBegins | None = None
        self._deaths: Counter[int] = Counter()
        self._sizes = (0, 0, 0)

    @property
    def is_busy(self) -> bool:
        """Whether a client is running or about to."""
        return any(worker.held for worker in self._workers)

    def reserve(self, download: int, inputs: int, outputs: int) -> None:
        """Make sure that a region has this many bytes, and that all processes run."""
        wanted = (download, inputs, outputs)
        if any(have < want for have, want in zip(self._sizes, wanted, strict=True)):
            self.stop()
            sizes = [max(pair) for pair in zip(self._sizes, wanted, strict=True)]
            self._sizes = (sizes[0], sizes[1], sizes[2])
            self.memory = Memory(
                SharedMemory(1, self._sizes[0]),
                SharedMemory(self._slots, self._sizes[1]),
                SharedMemory(self._slots, self._sizes[2]),
            )
        self._announcement = None
        for index, worker in enumerate(self._workers):
            if not worker.process.is_alive():
                self._replace(index)
        if len(self._workers) < self._count:
            give_back_freed_memory()
        while len(self._workers) < self._count:
            self._workers.append(_Worker(self._job, self.memory, None))

    def tell_all(self, announcement: RoundBegins) -> None:
        """Announce a round to every worker, and to those that will be started during it."""
        self._announcement = announcement
        self._deaths.clear()
        for index, worker in enumerate(self._workers):
            try:
                worker.connection.send(announcement)
            except OSError:
                self._replace(index)

    def can_take(self, waiting: int) -> bool:
        """Whether some worker can take another client; near the end none hoards."""
        ahead = AHEAD if waiting > self._count else 1
        return min(len(worker.held) for worker in self._workers) < ahead

    def give(self, command: RunClient) -> None:
        """Give a client to the worker that holds the fewest."""
        index = min(range(self._count), key=lambda i: len(self._workers[i].held))
        with contextlib.suppress(OSError):  # it died; `wait` finds out whose fault that was
            self._workers[index].give(command)

    def wait(self, round_index: int) -> Iterator[Finished | Failed]:
        """Replies that have arrived; waits for one.  Dead workers are replaced once a client."""
        by_handle: dict[Any, int] = {}
        for index, worker in enumerate(self._workers):
            by_handle[worker.connection] = by_handle[worker.process.sentinel] = index
        oldest = min((w.since for w in self._workers if w.held), default=time.monotonic())
        patience = max(0.0, oldest + self._timeout - time.monotonic())
        ready = wait(list(by_handle), patience)
        if not ready:
            self._give_up(round_index)
        dead = []
        for handle in ready:
            worker = self._workers[by_handle[handle]]
            if isinstance(handle, Connection):
                try:
                    yield worker.take()
                except (EOFError, OSError):
                    dead.append(by_handle[handle])
            elif not worker.connection.poll():
                dead.append(by_handle[handle])
        for index in dict.fromkeys(dead):
            self._recover(index, round_index)

    def stop(self) -> None:
        """End all processes: idle ones when they are asked, busy ones at once."""
        for worker in self._workers:
            worker.end(politely=not worker.held)
        self._workers = []

    def _replace(self, index: int) -> _Worker:
        dead = self._workers[index]
        dead.end(politely=False)
        self._workers[index] = _Worker(self._job, self.memory, self._announcement)
        return dead

    def _recover(self, index: int, round_index: int) -> None:
        """Start a dead worker's clients again, the one that ran at most once more."""
        dead = self._replace(index)
        if dead.held:
            client = dead.held[0].client
            self._deaths[client] += 1
            if self._deaths[client] >= ATTEMPTS:
                raise EngineError(
                    f"client {client} failed in round {round_index}: its worker process died "
                    f"{ATTEMPTS} times, the last time with {_cause(dead.process.exitcode)}"
                )
        for command in dead.held:
            self._workers[index].give(command)

    def _give_up(self, round_index: int) -> None:
        stuck = min((w for w in self._workers if w.held), key=lambda worker: worker.since)
        raise EngineError(
            f"client {stuck.held[0].client} failed in round {round_index}: it ran for more than "
            f"{self._timeout:g} seconds, the timeout of the workers"
        )


def _cause(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"signal {-exitcode}"
    return f"exit code {exitcode}"
