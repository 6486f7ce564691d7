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
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, NoReturn

import torch

from fedadmm.core import errors, trees
from fedadmm.core.contracts import LocalResult
from fedadmm.core.errors import CompatibilityError, EngineError
from fedadmm.core.messages import ClientInfo, ClientRecord, ClientRecords, Download, Engine, Upload
from fedadmm.core.parts import Count, Positive, part
from fedadmm.run.client import Job, caught_up, client_round, record_layout
from fedadmm.run.engines.choice import EngineChoice, torch_threads
from fedadmm.run.engines.worker_process import (
    ALIGNMENT,
    Begins,
    Failed,
    Finished,
    Memory,
    Piece,
    SharedMemory,
    WorkItem,
    region_bytes,
    start_method,
    work,
    work_on_copy,
)
from fedadmm.run.process_memory import return_freed_memory

SLOTS_PER_WORKER = 4
"""Largest number of tasks between the next result and the newest task; bounds memory."""
AHEAD = 2
"""Tasks assigned to a worker, so that it does not wait for the parent between them."""
ATTEMPTS = 2
"""Attempts of a task before the death of its worker is attributed to it."""
PATIENCE_SECONDS = 5.0
"""Seconds that a process has to exit."""


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
            raise CompatibilityError(
                f"Workers: device: got {job.initial.device}, expected the CPU; "
                "use Vectorised or Sequential"
            )
        count = self.workers if self.workers is not None else usable_cores()
        return WorkersEngine(job, store, count, self.timeout)


_core_limit: int | None = None


def limit_cores(count: int) -> None:
    """Let this process use at most so many cores, because others use the rest."""
    global _core_limit
    _core_limit = count


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if _core_limit is not None:
        return _core_limit
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Training(NamedTuple):
    """WorkItem that runs a client's round."""

    round_index: int

    def __call__(self, job: Job, shared: Any, number: int, given: Any) -> Any:
        done = client_round(job, number, given, shared, self.round_index)
        return done.record, done.upload, done.info

    def named(self, number: int) -> str:
        return f"client {number} failed in round {self.round_index}"


class WorkersEngine(Engine):
    """Runs clients in a pool of workers and yields their results in order."""

    def __init__(self, job: Job, store: ClientRecords, workers: int, timeout: float) -> None:
        self._job = job
        self._store = store
        self._pool = Pool(job, workers, timeout)
        self._shape: object = None

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        shared = download._replace(missed=None)  # it is in the records that workers get
        shape = trees.map_tensors(lambda leaf: (leaf.dtype, tuple(leaf.shape)), shared)
        if shape != self._shape:
            self._shape = shape
            self._pool.reserve(*needed_bytes(self._job, shared))

        def record(client: int) -> ClientRecord | None:
            kept = self._store.get(client)
            return kept if download.missed is None else caught_up(self._job, client, kept, download)

        data: Any = self._job.problem.data
        sizes = None if data is None else data.train_sizes
        done = self._pool.each(Training(round_index), shared, ids, record, sizes)
        for client, (after, upload, info) in zip(ids, done, strict=True):
            if after is not None:
                self._store.commit(client, trees.clone(after), round_index)
            yield client, upload, info

    def each(
        self, piece: Piece, shared: Any, numbers: Sequence[int], given: Callable[[int], Any]
    ) -> Iterator[Any]:
        return shared_evaluation(self._pool, piece, shared, numbers, given)

    def close(self) -> None:
        self._pool.stop()


def shared_evaluation(
    pool: Pool, piece: Piece, shared: Any, numbers: Sequence[int], given: Callable[[int], Any]
) -> Iterator[Any]:
    """Yield the results of a piece of work on the shared model for all numbers, in order."""
    size = region_bytes(shared)
    pool.reserve(size, 0, size + ALIGNMENT)
    return pool.each(piece, shared, numbers, given)


def needed_bytes(job: Job, download: Download) -> tuple[int, int, int]:
    """Return the sizes of a broadcast, of a record, and of a record with an update."""
    vector, buffers = job.initial, job.initial_buffers
    before = job.algorithm.init_client(vector)
    result = LocalResult.like(vector)
    after, message = job.algorithm.client_update(download.broadcast, before, result)
    layout = record_layout(job)
    records = [layout._replace(state=state, buffers=buffers) for state in (before, after)]
    kept = max(map(region_bytes, records))
    upload = region_bytes(Upload(message, buffers, download.pipeline))
    least = region_bytes((vector, buffers))  # what an evaluation needs
    return max(region_bytes(download), least), kept, max(kept + upload, least + ALIGNMENT)


class _Queue:
    """The tasks of a round: which to start next, and in which slot.

    Among those that have a slot the one with the most rows goes first, so that all workers end
    together.  A task has a slot when it is less than `slots` places behind the one that is
    handed on next, which can therefore always start.
    """

    def __init__(self, numbers: Sequence[int], slots: int, sizes: Any) -> None:
        self.numbers = numbers
        self._slots = slots
        self._sizes = sizes
        self.waiting = list(range(len(numbers)))

    def slot_of(self, position: int) -> int:
        """Return the slot of a task."""
        return position % self._slots

    def next(self, handed_on: int) -> int | None:
        """Return the position of the next task to start, if there is a free slot."""
        ready = [p for p in self.waiting[: self._slots] if p < handed_on + self._slots]
        if not ready:
            return None
        sizes, chosen = self._sizes, ready[0]
        if sizes is not None:
            chosen = max(ready, key=lambda p: int(sizes[self.numbers[p]]))
        self.waiting.remove(chosen)
        return chosen


class _Worker:
    """A process, its pipe, and its tasks, the first of which is running."""

    def __init__(self, job: Job, memory: Memory, begins: Begins | None) -> None:
        method = start_method()
        context: BaseContext = multiprocessing.get_context(method)
        self.connection, theirs = context.Pipe()
        target, given = (work, job) if method == "fork" else (work_on_copy, _copied(job))
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=target, args=(given, memory, theirs, os.getpid()), daemon=True
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of forks in a process with threads; the child uses none (see above)
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()
        self.held: deque[WorkItem] = deque()
        self.since = time.monotonic()
        if begins is not None:
            self.connection.send(begins)

    def give(self, task: WorkItem) -> None:
        if not self.held:
            self.since = time.monotonic()
        self.held.append(task)
        self.connection.send(task)

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
        for end in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                end()
                self.process.join(PATIENCE_SECONDS)
        self.connection.close()


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
        raise CompatibilityError(
            "Workers: where processes cannot be forked a problem goes to them as a copy, but this "
            f"one cannot be pickled ({error}); use Sequential or Vectorised"
        ) from None


class Pool:
    """Pool of worker processes that share memory with this one."""

    memory: Memory

    def __init__(self, job: Job, workers: int, timeout: float, slots: int | None = None) -> None:
        self._job = job
        self._count = workers
        self._slots = SLOTS_PER_WORKER * workers if slots is None else slots
        self._timeout = timeout
        self._workers: list[_Worker] = []
        self._begins: Begins | None = None
        self._deaths: Counter[int] = Counter()
        self._sizes = (0, 0, 0)

    def reserve(self, shared: int, inputs: int, outputs: int) -> None:
        """Ensure the size of the shared regions; processes are restarted if they must grow."""
        wanted = (shared, inputs, outputs)
        if any(have < want for have, want in zip(self._sizes, wanted, strict=True)):
            self.stop()
            first, second, third = map(max, self._sizes, wanted)
            self._sizes = (first, second, third)
            self.memory = Memory(
                SharedMemory(1, first),
                SharedMemory(self._slots, second),
                SharedMemory(self._slots, third),
            )

    def each(
        self,
        piece: Piece,
        shared: Any,
        numbers: Sequence[int],
        given: Callable[[int], Any],
        sizes: Any = None,
    ) -> Iterator[Any]:
        """The results of tasks in order, as views: going on to the next one may change them.

        Of the tasks that may start, those with the largest of `sizes` come first.
        """
        with torch_threads(1):  # the other cores belong to the workers
            self._begin(piece, shared)
            queue, results = _Queue(numbers, self._slots, sizes), dict[int, Finished]()
            try:
                for position, number in enumerate(numbers):
                    self._feed(queue, position, given)
                    while number not in results:
                        for reply in self._wait():
                            if isinstance(reply, Failed):
                                raise _failure(piece, reply)
                            results[reply.number] = reply
                        self._feed(queue, position, given)
                    result = results.pop(number).result
                    yield self.memory.outputs.read(queue.slot_of(position), result)
            finally:
                if any(worker.held for worker in self._workers):  # left in the middle
                    self.stop()

    def stop(self) -> None:
        """Stop all processes: idle ones by a request, busy ones immediately."""
        for worker in self._workers:
            worker.end(politely=not worker.held)
        self._workers = []

    def _begin(self, piece: Piece, shared: Any) -> None:
        """Start all processes, and send the work to them and to their replacements."""
        self._begins = None
        for index, worker in enumerate(self._workers):
            if not worker.process.is_alive():
                self._replace(index)
        if len(self._workers) < self._count:
            return_freed_memory()
        while len(self._workers) < self._count:
            self._workers.append(_Worker(self._job, self.memory, None))
        self._begins = Begins(piece, self.memory.shared.write(0, shared))
        self._deaths.clear()
        for index, worker in enumerate(self._workers):
            try:
                worker.connection.send(self._begins)
            except OSError:
                self._replace(index)

    def _feed(self, queue: _Queue, position: int, given: Callable[[int], Any]) -> None:
        """Assign waiting tasks to the workers with the fewest tasks, evenly near the end."""
        while queue.waiting:
            worker = min(self._workers, key=lambda one: len(one.held))
            if len(worker.held) >= (AHEAD if len(queue.waiting) > self._count else 1):
                return
            chosen = queue.next(position)
            if chosen is None:
                return
            number, slot = queue.numbers[chosen], queue.slot_of(chosen)
            task = WorkItem(number, slot, self.memory.inputs.write(slot, given(number)))
            with contextlib.suppress(OSError):  # it died; `_wait` finds out whose fault that was
                worker.give(task)

    def _wait(self) -> Iterator[Finished | Failed]:
        """Wait for results, and return those that have arrived; dead workers are replaced."""
        by_handle: dict[Any, int] = {}
        for index, worker in enumerate(self._workers):
            by_handle[worker.connection] = by_handle[worker.process.sentinel] = index
        oldest = min((w.since for w in self._workers if w.held), default=time.monotonic())
        ready = wait(list(by_handle), max(0.0, oldest + self._timeout - time.monotonic()))
        if not ready:
            stuck = min((w for w in self._workers if w.held), key=lambda worker: worker.since)
            self._give_up(
                stuck.held[0],
                f"it ran for more than {self._timeout:g} seconds, the timeout of the workers",
            )
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
            self._recover(index)

    def _replace(self, index: int) -> _Worker:
        dead = self._workers[index]
        dead.end(politely=False)
        self._workers[index] = _Worker(self._job, self.memory, self._begins)
        return dead

    def _recover(self, index: int) -> None:
        """Restart a dead worker's tasks; the one that was running at most once."""
        dead = self._replace(index)
        if dead.held:
            self._deaths[dead.held[0].number] += 1
            if self._deaths[dead.held[0].number] >= ATTEMPTS:
                code = dead.process.exitcode or 0
                cause = f"signal {-code}" if code < 0 else f"exit code {code}"
                self._give_up(
                    dead.held[0],
                    f"its worker process died {ATTEMPTS} times, the last time with {cause}",
                )
        for task in dead.held:
            self._workers[index].give(task)

    def _give_up(self, task: WorkItem, why: str) -> NoReturn:
        assert self._begins is not None
        raise EngineError(f"{self._begins.piece.named(task.number)}: {why}")


def _failure(piece: Piece, reply: Failed) -> Exception:
    """Return the exception of a failed task: its own class for our errors, else EngineError."""
    kind = getattr(errors, reply.kind, None)
    if isinstance(kind, type) and issubclass(kind, errors.FedADMMError):
        return kind(reply.message)
    return EngineError(
        f"{piece.named(reply.number)}: {reply.kind}: {reply.message}\n{reply.traceback}"
    )
