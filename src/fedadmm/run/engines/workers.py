"""Persistent worker processes with one thread each, for models that fill a core.

Processes are forked where that is possible, for tensors on the CPU only.  A fork sees the parent's
problem as it is, whatever it is made of, without a copy, and starts in milliseconds; elsewhere a
process is spawned, which takes seconds and a problem that can be pickled.  Forking a process that
has threads is safe here for the reason it is in torch's DataLoader: the child keeps to one
thread from its first operation on, so it never waits for a thread that only the parent has.

Client records stay with the parent's store.  They and the broadcast go to the workers, and
records and uploads come back, through shared memory; pipes carry only small tuples.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedadmm.core import errors, trees
from fedadmm.core.errors import EngineError, PairingError
from fedadmm.core.messages import ClientInfo, ClientRecord, ClientRecords, Download, Engine, Upload
from fedadmm.core.parts import Count, Positive, part
from fedadmm.core.protocols import LocalResult
from fedadmm.run.client import Job, caught_up, record_layout
from fedadmm.run.engines.choice import EngineChoice, torch_threads
from fedadmm.run.engines.worker_process import (
    Failed,
    Finished,
    Memory,
    RoundBegins,
    RunClient,
    SharedMemory,
    give_back_freed_memory,
    region_bytes,
    start_method,
    work,
    work_on_copy,
)

SLOTS_PER_WORKER = 4
"""Clients a worker may be ahead of the one that is folded next; bounds memory."""


@part("engine", "workers")
class Workers(EngineChoice):
    """The choice of the workers engine.

    Args:
        workers: how many processes; by default one a core that this process may use.
        timeout: seconds that one client may take before its worker counts as stuck.
    """

    workers: Count | None = None
    timeout: Positive = 3600.0

    def start(self, job: Job, store: ClientRecords) -> Engine:
        if job.initial.device.type != "cpu":
            raise PairingError(
                f"Workers: the parameters are on {job.initial.device}, but must be on the CPU; "
                "use Vectorised or Sequential"
            )
        count = self.workers if self.workers is not None else usable_cores()
        return WorkersEngine(job, store, count, self.timeout)


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkersEngine(Engine):
    """Feeds clients to a pool of workers and hands results on in order."""

    def __init__(self, job: Job, store: ClientRecords, workers: int, timeout: float) -> None:
        self._job = job
        self._store = store
        self._slots = SLOTS_PER_WORKER * workers
        self._pool = Pool(job, workers, self._slots, timeout)
        self._shape: object = None
        self._needed = (0, 0, 0)

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        with torch_threads(1):  # the other cores belong to the workers
            shared = download._replace(missed=None)  # it is in the records that workers get
            self._reserve(shared)
            skeleton = self._pool.memory.download.write(0, shared)
            self._pool.tell_all(RoundBegins(round_index, skeleton))
            try:
                queue = _Queue(self._job, ids, self._slots)
                yield from self._stream(queue, download, round_index)
            finally:
                if self._pool.is_busy:  # left in the middle: nobody waits for these clients
                    self._pool.stop()

    def close(self) -> None:
        self._pool.stop()

    def _stream(
        self, queue: _Queue, download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        results: dict[int, Finished] = {}
        for position, client in enumerate(queue.ids):
            self._feed(queue, position, download, round_index)
            while client not in results:
                for reply in self._pool.wait(round_index):
                    if isinstance(reply, Failed):
                        raise _failure(reply, round_index)
                    results[reply.client] = reply
                self._feed(queue, position, download, round_index)
            finished = results.pop(client)
            slot = queue.slot_of(position)
            record, upload = self._pool.memory.outputs.read(slot, finished.results)
            if record is not None:
                self._store.commit(client, trees.clone(record), round_index)
            yield client, upload, finished.info

    def _feed(self, queue: _Queue, position: int, download: Download, round_index: int) -> None:
        """Give waiting clients to workers that can take more."""
        while queue.has_next(position) and self._pool.can_take(queue.waiting):
            chosen = queue.next(position)
            client, slot = queue.ids[chosen], queue.slot_of(chosen)
            record = self._store.get(client)
            if download.missed is not None:
                record = caught_up(self._job, client, record, download)
            skeleton = None
            if record is not None:
                skeleton = self._pool.memory.inputs.write(slot, record)
            self._pool.give(RunClient(client, slot, skeleton))

    def _reserve(self, download: Download) -> None:
        """Shared memory for the round; processes start here, and again when it must grow."""
        shape = trees.map_tensors(lambda leaf: (leaf.dtype, tuple(leaf.shape)), download)
        if shape != self._shape:
            self._shape, self._needed = shape, _needed_bytes(self._job, download)
        self._pool.reserve(*self._needed)


def _needed_bytes(job: Job, download: Download) -> tuple[int, int, int]:
    """The sizes of a broadcast, of a record, and of a record with an upload."""
    vector, buffers = job.initial, job.initial_buffers
    before = job.algorithm.init_client(vector)
    result = LocalResult.like(vector)
    after, message = job.algorithm.client_update(download.cast, before, result)
    rest = record_layout(job).error_feedback
    record = ClientRecord(after, buffers, rest)
    kept = max(region_bytes(record), region_bytes(ClientRecord(before, buffers, rest)))
    upload = region_bytes(Upload(message, buffers, download.clip_bound))
    return region_bytes(download), kept, kept + upload


class _Queue:
    """The clients of a round: whom to start next, and in which slot.

    Among those that have a slot the one with the most rows goes first, so that all workers end
    together.  A client has a slot when it is less than `slots` places behind the one that is
    folded next, which can therefore always start.
    """

    def __init__(self, job: Job, ids: Sequence[int], slots: int) -> None:
        self.ids = ids
        self._slots = slots
        self._unstarted = list(range(len(ids)))
        data: Any = job.problem.data
        self._sizes = None if data is None else data.train_sizes

    @property
    def waiting(self) -> int:
        """How many clients have not been started."""
        return len(self._unstarted)

    def slot_of(self, position: int) -> int:
        """The slot of a client."""
        return position % self._slots

    def has_next(self, folded: int) -> bool:
        """Whether a client has a slot and has not been started."""
        return bool(self._unstarted) and self._unstarted[0] < folded + self._slots

    def next(self, folded: int) -> int:
        """The position of the client to start."""
        ready = [p for p in self._unstarted[: self._slots] if p < folded + self._slots]
        sizes = self._sizes
        chosen = ready[0] if sizes is None else max(ready, key=lambda p: int(sizes[self.ids[p]]))
        self._unstarted.remove(chosen)
        return chosen


def _failure(reply: Failed, round_index: int) -> Exception:
    """A mistake in the set-up stays what it is; anything else names the client and the place."""
    kind = getattr(errors, reply.kind, None)
    if isinstance(kind, type) and issubclass(kind, errors.FedADMMError):
        return kind(reply.message)
    return EngineError(
        f"client {reply.client} failed in round {round_index}: {reply.kind}: {reply.message}\n"
        f"{reply.traceback}"
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
