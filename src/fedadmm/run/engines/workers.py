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

import os
from collections.abc import Iterator, Sequence
from typing import Any

from fedadmm.core import errors, trees
from fedadmm.core.errors import EngineError, PairingError
from fedadmm.core.messages import ClientInfo, ClientRecord, ClientRecords, Download, Engine, Upload
from fedadmm.core.parts import Count, Positive, part
from fedadmm.core.protocols import LocalResult
from fedadmm.run.client import Job, caught_up, record_layout
from fedadmm.run.engines.choice import EngineChoice
from fedadmm.run.engines.pool import Pool
from fedadmm.run.engines.threads import torch_threads
from fedadmm.run.engines.worker_process import (
    Failed,
    Finished,
    RoundBegins,
    RunClient,
    region_bytes,
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
