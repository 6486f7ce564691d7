"""Client state on disk, for models and federations that memory cannot hold.

Every commit makes a new version of the client's file.  An old version goes as soon as neither the
client, nor the marked point between two rounds, nor a kept checkpoint needs it; a checkpoint thus
names the files that are there already, and nothing is written twice.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedadmm.core import files, trees
from fedadmm.core.errors import StateError
from fedadmm.core.messages import ClientRecord
from fedadmm.core.validation import Natural, check
from fedadmm.run.stores import record_files
from fedadmm.run.stores.record_files import NO_FILE, RecordFiles
from fedadmm.run.stores.records import Layout, SnapshotStore

PART_CLIENTS = 100_000
"""How many clients one part of a checkpoint names."""


class DiskStore(SnapshotStore):
    """A file a client, with the most recently used records in memory.

    Args:
        directory: the folder of the files; a store opened on an existing one goes on from it.
        primal_dtype: the precision in which the client's own model is stored, such as
            torch.bfloat16; duals and all else keep theirs.  It halves the primal's bytes, and
            the model that a client starts from next time is the rounded one.
        cache_bytes: how much memory recently used records may take; `cached_bytes` says how much
            they take.
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
        self._files: RecordFiles | None = None
        files.make_own_directory(self.directory)
        record_files.remove_leftovers(self.directory)
        self._forget()
        for client, version in sorted(record_files.existing(self.directory)):
            if client in self._current:
                self._stale.setdefault(client, []).append(self._current[client])
            self._current[client] = version

    @classmethod
    def temporary(cls, **options: int | torch.dtype | None) -> DiskStore:
        """A store whose folder goes when the store does."""
        directory = Path(tempfile.mkdtemp(prefix="fedadmm-"))
        store = cls(directory, **options)  # type: ignore[arg-type]
        weakref.finalize(store, shutil.rmtree, directory, ignore_errors=True)
        return store

    def _forget(self) -> None:
        self._current: dict[int, int] = {}
        self._stale: dict[int, list[int]] = {}
        self._digests: dict[int, str] = {}
        self._changed: set[int] = set()
        self._marked: dict[int, int | None] | None = None
        # Versions that the newest checkpoint names, and the older one where it differs.
        self._newest: dict[int, int] = {}
        self._older: dict[int, int] = {}
        if self._files is not None:
            self._files.clear()

    def bind(self, template: ClientRecord, primal: str | None) -> None:
        layout = Layout(template, primal)
        self._files = RecordFiles(self.directory, layout, self.primal_dtype, self._cache_bytes)

    @property
    def cached_bytes(self) -> int:
        """How much memory recently used records take."""
        return self._reader().cached_bytes

    def __len__(self) -> int:
        return len(self._current)

    def get(self, client: int) -> ClientRecord | None:
        version = self._current.get(client)
        return None if version is None else self._reader().read(client, version)

    def commit(self, client: int, record: ClientRecord, round_index: int) -> None:
        """Keep a record: write it, then forget the version it replaces."""
        number = self._current.get(client, NO_FILE) + 1
        version, kept = self._reader().write(client, number, record, round_index)
        self.adopt(client, version)
        self._reader().remember(client, version, kept)

    def adopt(self, client: int, version: int) -> None:
        """Take over a version that is written already, perhaps by another process."""
        old = self._current.get(client)
        self._current[client] = version
        for gone in (old, version):  # after an undo a version is written again
            self._reader().forget(client, gone)
        self._digests.pop(client, None)
        self._changed.add(client)
        if self._marked is not None:
            self._marked.setdefault(client, old)
        for superseded in (old, *self._stale.pop(client, ())):
            self._retire(client, superseded)

    def version(self, client: int) -> int | None:
        """The version of the client's record, for whoever reads it in another process."""
        return self._current.get(client)

    def clients(self) -> Sequence[int]:
        return sorted(self._current)

    def clear(self) -> None:
        """Remove every record."""
        self.restore((), ())

    def prefetch(self, clients: Sequence[int]) -> None:
        """Read these records into the cache, in a thread, while others compute."""
        if self._prefetching is not None:
            self._prefetching.join()
        wanted = [client for client in clients if client in self._current]
        if wanted:
            self._prefetching = threading.Thread(target=self._prefetch, args=(wanted,))
            self._prefetching.start()

    def mark(self) -> None:
        """Remember this point; files that it needs stay until the next mark."""
        before, self._marked = self._marked, {}
        for client, version in (before or {}).items():
            self._retire(client, version)

    def undo(self) -> None:
        before, self._marked = self._marked, {}
        for client, version in (before or {}).items():
            undone = self._current.pop(client)
            if version is not None:
                self._current[client] = version
            self._reader().forget(client, undone)
            self._digests.pop(client, None)
            self._retire(client, undone)

    def changed(self) -> Sequence[int]:
        return sorted(client for client in self._changed if client in self._current)

    def parts(self, clients: Sequence[int]) -> Iterator[dict[str, Tensor]]:
        """Make the clients' files durable and name them."""
        self._synchronise([client for client in clients if client in self._changed])
        for begin in range(0, len(clients), PART_CLIENTS):
            some = clients[begin : begin + PART_CLIENTS]
            yield record_files.pack([(c, self._current[c], self._digest(c)) for c in some])

    def saved(self) -> None:
        changed = self.changed()
        dropped = self._older
        self._older = {c: self._newest[c] for c in changed if c in self._newest}
        self._newest.update((client, self._current[client]) for client in changed)
        self._changed.clear()
        for client, version in dropped.items():
            self._retire(client, version)

    def restore(
        self, newest: Iterable[dict[str, Tensor]], older: Iterable[dict[str, Tensor]]
    ) -> None:
        index = record_files.unpack(newest)
        current = {client: version for client, (version, _) in index.items()}
        before = {c: version for c, (version, _) in record_files.unpack(older).items()}
        self._forget()
        for client, version in record_files.existing(self.directory):
            if version not in (current.get(client), before.get(client)):
                files.remove(record_files.path_of(self.directory, client, version))
        self._current, self._newest = current, dict(current)
        self._digests = {client: sha256 for client, (_, sha256) in index.items()}
        self._older = {c: v for c, v in before.items() if current.get(c) != v}

    def _reader(self) -> RecordFiles:
        if self._files is None:
            raise StateError("DiskStore: reading and writing records needs `bind` first")
        return self._files

    def _prefetch(self, clients: list[int]) -> None:
        room = self._cache_bytes // 2
        for client in clients:
            version = self._current.get(client)
            if version is None:
                continue
            # What cannot be read, or was replaced meanwhile, is `get`'s to deal with.
            with suppress(StateError):
                room -= trees.num_bytes(self._reader().read(client, version))
            if room <= 0:
                return

    def _retire(self, client: int, version: int | None) -> None:
        """Remove a version unless somebody still needs it."""
        if version is None or version == NO_FILE:
            return
        marked = (self._marked or {}).get(client)
        named = (self._newest.get(client), self._older.get(client))
        if version not in (self._current.get(client), marked, *named):
            files.remove(record_files.path_of(self.directory, client, version))

    def _synchronise(self, clients: Sequence[int]) -> None:
        paths = [
            record_files.path_of(self.directory, client, self._current[client])
            for client in clients
            if self._current[client] != NO_FILE
        ]
        for path in [*paths, *sorted({path.parent for path in paths})]:
            files.sync(path)

    def _digest(self, client: int) -> str:
        if client not in self._digests:
            version = self._current[client]
            self._digests[client] = record_files.digest(self.directory, client, version)
        return self._digests[client]
