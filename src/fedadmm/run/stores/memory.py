"""Client state in memory; only clients that took part occupy any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.errors import StateError
from fedadmm.core.messages import ClientRecord
from fedadmm.run.stores import records

PART_BYTES = 64 * 2**20
"""How much of a checkpoint is gathered in memory before it is written."""


class MemoryStore(records.SnapshotStore):
    """A dictionary of records."""

    kind = "memory"
    directory = None

    def __init__(self) -> None:
        self._records: dict[int, ClientRecord] = {}
        self._changed: set[int] = set()
        self._before: dict[int, ClientRecord | None] | None = None
        self._template: ClientRecord | None = None

    def bind(self, template: ClientRecord, primal: str | None) -> None:
        self._template = template

    def __len__(self) -> int:
        return len(self._records)

    def get(self, client: int) -> ClientRecord | None:
        return self._records.get(client)

    def commit(self, client: int, record: ClientRecord, round_index: int) -> None:
        if self._before is not None:
            self._before.setdefault(client, self._records.get(client))
        self._records[client] = record
        self._changed.add(client)

    def clients(self) -> Sequence[int]:
        return sorted(self._records)

    def clear(self) -> None:
        self._records.clear()
        self._changed.clear()
        self._before = None

    def prefetch(self, clients: Sequence[int]) -> None:
        """Everything is here already."""

    def mark(self) -> None:
        """Remember this point; from now on `commit` keeps what it replaces, until the next mark."""
        self._before = {}

    def undo(self) -> None:
        for client, record in (self._before or {}).items():
            if record is None:
                del self._records[client]
            else:
                self._records[client] = record
        self._before = {}

    def changed(self) -> Sequence[int]:
        return sorted(client for client in self._changed if client in self._records)

    def parts(self, clients: Sequence[int]) -> Iterator[dict[str, Tensor]]:
        """The clients' records as stacks of rows, with their ids, in pieces of bounded size."""
        if not clients:
            return
        size = trees.num_bytes(self._records[clients[0]])
        step = max(1, PART_BYTES // max(size, 1))
        for begin in range(0, len(clients), step):
            ids = clients[begin : begin + step]
            rows = [dict(trees.named_tensors(self._records[client])) for client in ids]
            stacked = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
            yield {**stacked, "ids": torch.tensor(ids, dtype=torch.int64)}

    def saved(self) -> None:
        self._changed.clear()

    def restore(
        self, newest: Iterable[dict[str, Tensor]], older: Iterable[dict[str, Tensor]]
    ) -> None:
        """Hold exactly the records of a checkpoint, whose parts come newest first."""
        if self._template is None:
            raise StateError("MemoryStore: restore needs `bind` first")
        self.clear()
        for part in newest:
            ids = part.pop("ids").tolist()
            for row, client in enumerate(ids):
                if client not in self._records:
                    named = {name: stack[row].clone() for name, stack in part.items()}
                    where = f"the checkpoint's record of client {client}"
                    self._records[client] = records.rebuild(self._template, named, where)
