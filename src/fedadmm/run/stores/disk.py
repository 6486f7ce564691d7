"""Client state on disk, for models and federations that memory cannot hold.

Every commit adds a record to the segment that is open.  A segment goes as soon as neither a
client, nor the marked point between two rounds, nor a kept checkpoint needs a record in it; a
checkpoint thus names records that are there already.  Where most of what the segments hold is out
of date, the records of the oldest that are still needed move to the open one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedadmm.core import atomic_files, trees
from fedadmm.core.errors import StateError
from fedadmm.core.messages import ClientRecord
from fedadmm.core.validation import Natural, check
from fedadmm.run.stores import segments
from fedadmm.run.stores.records import Layout, SnapshotStore
from fedadmm.run.stores.segments import NOWHERE, Place, Segments

PART_CLIENTS = 100_000
"""Number of clients in one part of a checkpoint."""
SEGMENT_BYTES = 64 * 2**20
"""Size of a segment, in bytes, from which on no records are appended."""
SPARE_SEGMENTS = 4
"""Segments beyond twice the needed size at which records are moved to new segments."""


class DiskStore(SnapshotStore):
    """Client states on disk, with the most recently used ones in memory.

    Args:
        directory: Folder of the files; an existing store in it is continued.
        primal_dtype: Precision in which local models are stored, such as torch.bfloat16, which
            halves their size; the client starts from the rounded model.  Duals and other vectors
            keep their precision.  None for no conversion.
        cache_bytes: Largest size of recently used records in memory, in bytes.  Default 1 GiB;
            `cached_bytes` is the current size.

    Example:
        >>> import tempfile, torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     work = dict(solver=fa.ExactSolver(), store=fa.DiskStore(folder))
        ...     _ = fa.simulate(fa.FedADMM(rho=1.0), problem, 4, **work)
        ...     len(fa.DiskStore(folder))
        3
    """

    kind = "disk"
    directory: Path

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        primal_dtype: torch.dtype | None = None,
        cache_bytes: int = 2**30,
    ) -> None:
        check("DiskStore", "cache_bytes", cache_bytes, Natural)
        allowed = (None, torch.bfloat16, torch.float16, torch.float32)
        check("DiskStore", "primal_dtype", primal_dtype, Literal[allowed])
        self.directory = Path(directory)
        self.primal_dtype = primal_dtype
        self._cache_bytes = cache_bytes
        self._prefetching: threading.Thread | None = None
        self._layout: Layout | None = None
        atomic_files.make_own_directory(self.directory)
        found, sizes = {}, Counter[int]()
        for number in segments.existing(self.directory):
            for client, place in segments.scan(self.directory, number):
                found[client] = place
                sizes[number] = place.begin + place.size
        self._begin(found, {}, {})
        self._sizes.update(sizes - self._sizes)

    @classmethod
    def temporary(cls, **options: int | torch.dtype | None) -> DiskStore:
        """Return a store in a temporary folder, which is removed with it."""
        directory = Path(tempfile.mkdtemp(prefix="fedadmm-"))
        store = cls(directory, **options)  # type: ignore[arg-type]
        weakref.finalize(store, shutil.rmtree, directory, ignore_errors=True)
        return store

    def _begin(
        self, current: segments.Index, newest: segments.Index, older: segments.Index
    ) -> None:
        """Hold these records, and keep what the newest checkpoint and the older one name."""
        self._current, self._newest, self._older = current, newest, older
        self._changed: set[int] = set()
        self._marked: dict[int, Place | None] | None = None
        self._files: Segments | None = None
        self._open: int | None = None
        held = [*current.values(), *newest.values(), *older.values()]
        self._needed = Counter(place.segment for place in held)
        """How many of the places that a client, a mark or a checkpoint holds are in a segment."""
        self._live = sum(place.size for place in current.values())
        self._sizes = Counter[int]()
        for place in current.values():
            self._sizes[place.segment] += place.size
        self._next = max((0, *segments.existing(self.directory), *self._needed)) + 1
        if self._layout is not None:
            self.bind(*self._layout)

    @property
    def template(self) -> ClientRecord | None:  # type: ignore[override]
        return None if self._layout is None else self._layout.template

    def bind(self, template: ClientRecord, primal: str | None) -> None:
        self._layout = Layout(template, primal)
        self._files = Segments(self.directory, self._layout, self.primal_dtype, self._cache_bytes)

    @property
    def cached_bytes(self) -> int:
        """Bytes of recently used records in memory."""
        return self._reader().cached_bytes

    def __len__(self) -> int:
        return len(self._current)

    def get(self, client: int) -> ClientRecord | None:
        place = self._current.get(client)
        return None if place is None else self._reader().read(place)

    def commit(self, client: int, record: ClientRecord, round_index: int) -> None:
        """Write a record, then release the one that it replaces."""
        segment = self._opened()
        try:
            place = self._reader().write(segment, self._sizes[segment], client, record)
        except StateError:  # where the segment ends is unknown now
            self._close()
            raise
        self.adopt(client, place)

    def adopt(self, client: int, place: Place) -> None:
        """Take over a record that is written already, perhaps by another process."""
        old = self._current.get(client)
        self._put(client, place)
        self._reader().forget(old)

    def place(self, client: int) -> Place | None:
        """Return the location of a client's record, for other processes."""
        return self._current.get(client)

    def new_segment(self) -> int:
        """A segment for another process to write to; one that stays empty has no file."""
        self._next += 1
        return self._next - 1

    def clients(self) -> Sequence[int]:
        return sorted(self._current)

    def clear(self) -> None:
        """Remove every record."""
        self.restore((), ())

    def prefetch(self, clients: Sequence[int]) -> None:
        """Read these records into the cache in a background thread."""
        if self._prefetching is not None:
            self._prefetching.join()
        wanted = [self._current[client] for client in clients if client in self._current]
        if wanted:
            self._prefetching = threading.Thread(target=self._prefetch, args=(wanted,))
            self._prefetching.start()

    def mark(self) -> None:
        """Mark the current state; its records are kept until the next mark."""
        before, self._marked = self._marked, {}
        for place in (before or {}).values():
            self._release(place)

    def undo(self) -> None:
        before, self._marked = self._marked, {}
        for client, place in (before or {}).items():
            undone = self._current.pop(client)
            self._live -= undone.size
            if place is not None:
                self._current[client] = place
                self._live += place.size
            self._reader().forget(undone)
            self._release(undone)

    def changed(self) -> Sequence[int]:
        return sorted(client for client in self._changed if client in self._current)

    def parts(self, clients: Sequence[int]) -> Iterator[dict[str, Tensor]]:
        """Make the clients' records durable and name them; what follows is in another segment."""
        changed = (client for client in clients if client in self._changed)
        written = {self._current[client].segment for client in changed} - {NOWHERE.segment}
        self._close()
        if written:
            for path in [*(segments.path_of(self.directory, n) for n in written), self.directory]:
                atomic_files.sync(path)
        for begin in range(0, len(clients), PART_CLIENTS):
            some = clients[begin : begin + PART_CLIENTS]
            yield segments.pack({client: self._current[client] for client in some})

    def saved(self) -> None:
        changed, dropped = self.changed(), self._older
        self._older = {c: self._newest[c] for c in changed if c in self._newest}
        for client in changed:
            self._newest[client] = self._current[client]
            self._needed[self._current[client].segment] += 1
        self._changed.clear()
        for place in dropped.values():
            self._release(place)

    def restore(
        self, newest: Iterable[dict[str, Tensor]], older: Iterable[dict[str, Tensor]]
    ) -> None:
        named, before = segments.unpack(newest), segments.unpack(older)
        differing = {c: place for c, place in before.items() if named.get(c) != place}
        self._begin(dict(named), named, differing)
        for number in segments.existing(self.directory):
            self.retire(number)

    def _reader(self) -> Segments:
        if self._files is None:
            raise StateError("DiskStore: reading and writing records needs `bind` first")
        return self._files

    def _prefetch(self, places: list[Place]) -> None:
        room = self._cache_bytes // 2
        for place in places:
            # What cannot be read, or was replaced meanwhile, is `get`'s to deal with.
            with suppress(StateError):
                room -= trees.num_bytes(self._reader().read(place))
            if room <= 0:
                return

    def _put(self, client: int, place: Place) -> None:
        """Set the location of a client's record."""
        old = self._current.get(client)
        self._current[client] = place
        self._changed.add(client)
        self._needed[place.segment] += 1
        if place.size:
            self._sizes[place.segment] = max(self._sizes[place.segment], place.begin + place.size)
        self._live += place.size
        if old is not None:
            self._live -= old.size
        if self._marked is not None and client not in self._marked:
            self._marked[client] = old  # which is needed as before
        else:
            self._release(old)

    def _release(self, place: Place | None) -> None:
        """One thing less needs a place; the segment that nothing needs goes."""
        if place is None:
            return
        self._needed[place.segment] -= 1
        if place.segment not in (self._open, NOWHERE.segment):
            self.retire(place.segment)

    def retire(self, number: int) -> None:
        """Remove a segment that nothing needs."""
        if not self._needed[number]:
            del self._needed[number]
            self._sizes.pop(number, None)
            atomic_files.remove(segments.path_of(self.directory, number))

    def _opened(self) -> int:
        """Return the segment for the next record."""
        if self._open is not None and self._sizes[self._open] >= SEGMENT_BYTES:
            self._close()
            self._move_up()
        if self._open is None:
            self._open = self.new_segment()
        return self._open

    def _close(self) -> None:
        number, self._open = self._open, None
        if number is not None:
            self.retire(number)

    def _move_up(self) -> None:
        """Empty the oldest segments, while too much of what the segments hold is out of date."""
        for number in sorted(self._sizes):
            total = sum(self._sizes.values())
            if total <= 2 * self._live + SPARE_SEGMENTS * SEGMENT_BYTES:
                return
            for client, place in list(segments.scan(self.directory, number)):
                if self._current.get(client) == place:
                    if self._open is None:
                        self._open = self.new_segment()
                    data, end = segments.raw(self.directory, place), self._sizes[self._open]
                    moved = segments.append(self.directory, self._open, end, client, data)
                    self.adopt(client, moved)
            self._sizes.pop(number, None)  # a checkpoint may need it, but it is out of the way
            self.retire(number)
