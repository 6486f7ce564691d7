"""Base class of stores, the store in memory, and records as named tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.capabilities import local_model
from fedadmm.core.codec import Packed, unpack
from fedadmm.core.errors import StateError
from fedadmm.core.messages import ClientRecord, ClientStateStore
from fedadmm.run.client import Job, record_layout

PART_BYTES = 64 * 2**20
"""Bytes of a checkpoint that are collected in memory before they are written."""


class SnapshotStore(ABC):
    """Base class of stores that can be part of checkpoints."""

    kind: ClassVar[str]
    """Says what the parts are: only a store of this kind can restore them."""
    directory: Path | None
    """Where the store's own files are, if it has any."""
    template: ClientRecord | None
    """A record in the shape of all; None before `bind`."""

    @abstractmethod
    def get(self, client: int) -> ClientRecord | None:
        """The client's record; None before its first round."""

    @abstractmethod
    def commit(self, client: int, record: ClientRecord, round_index: int) -> None:
        """Replace the client's record."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def clients(self) -> Sequence[int]:
        """The ids that have a record."""

    @abstractmethod
    def changed(self) -> Sequence[int]:
        """The ids committed since the last checkpoint."""

    @abstractmethod
    def parts(self, clients: Sequence[int]) -> Iterator[dict[str, Tensor]]:
        """What must be written for these clients; each part holds their "ids"."""

    @abstractmethod
    def saved(self) -> None:
        """All changes are in a checkpoint now; the one before the last is gone."""

    @abstractmethod
    def restore(
        self, newest: Iterable[dict[str, Tensor]], older: Iterable[dict[str, Tensor]]
    ) -> None:
        """Hold exactly the records of the newest checkpoint, and keep those of the older one."""


class StoredStates(Mapping[int, Any]):
    """The states in a store by client, read and copied when they are asked for."""

    def __init__(self, store: ClientStateStore) -> None:
        self._store = store

    def record(self, client: int) -> ClientRecord | None:
        """Return the record of a client, or None if it has not participated."""
        return trees.clone(self._store.get(client))

    def __getitem__(self, client: int) -> Any:
        record = self.record(client)
        if record is None:
            raise KeyError(client)
        return record.state

    def __iter__(self) -> Iterator[int]:
        return iter(self._store.clients())

    def __len__(self) -> int:
        return len(self._store.clients())


class Layout(NamedTuple):
    """Structure of records: a template, and the name of the tensor that is the local model."""

    template: ClientRecord
    primal: str | None


def layout(job: Job) -> Layout:
    """The layout of a run's records."""
    # Its tensors are copies: a state may hold the initial vector twice, and `is` tells them apart.
    record = record_layout(job)
    own = local_model(job.algorithm, record.state)
    named = trees.named_tensors(record.state, "state")
    primal = next((name for name, leaf in named if leaf is own), None)
    return Layout(record, primal)


def rebuild(template: ClientRecord, named: dict[str, Tensor], where: object) -> ClientRecord:
    """The record that these tensors are of; `where` names the source if something is missing."""
    wanted = dict(trees.named_tensors(template))
    restored = {}
    for name, like in wanted.items():
        if name == "buffers" and name not in named:
            continue
        if name not in named or named[name].shape != like.shape:
            raise StateError(
                f"{where} holds {_described(named)}, but this method's clients keep "
                f"{_described(wanted)}"
            )
        restored[name] = named[name].to(like.device, like.dtype)
    return unpack(template, Packed(restored, {}))


def separate(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors on the CPU, contiguous, none sharing memory with another."""
    result: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in named.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != plain.nbytes:
            plain = plain.clone()
        seen.add(plain.untyped_storage().data_ptr())
        result[name] = plain
    return result


def _described(named: dict[str, Tensor]) -> str:
    parts = [f"{name} {tuple(tensor.shape)}" for name, tensor in sorted(named.items())]
    return ", ".join(parts) or "nothing"


def stack_records(store: SnapshotStore, clients: Sequence[int]) -> Iterator[dict[str, Tensor]]:
    """Yield the clients' records as stacks with their ids, in parts of bounded size."""
    if not clients:
        return

    def tensors(client: int) -> dict[str, Tensor]:
        record = store.get(client)
        assert record is not None, "a client of a store has a record"
        return dict(trees.named_tensors(record))

    size = sum(tensor.nbytes for tensor in tensors(clients[0]).values())
    step = max(1, PART_BYTES // max(size, 1))
    for begin in range(0, len(clients), step):
        ids = clients[begin : begin + step]
        records = [tensors(client) for client in ids]
        stacked = {name: torch.stack([one[name] for one in records]) for name in records[0]}
        yield {**stacked, "ids": torch.tensor(ids, dtype=torch.int64)}


class MemoryStore(SnapshotStore):
    """Client states in memory, the default of `simulate`.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem, store = fa.Problem(clients, initial=torch.zeros(1)), fa.MemoryStore()
        >>> work = dict(solver=fa.ExactSolver(), store=store, sampler=fa.CyclicSampling(1))
        >>> _ = fa.simulate(fa.FedADMM(rho=1.0), problem, 2, **work)
        >>> store.clients()  # those that have participated
        [0, 1]
    """

    kind = "memory"
    directory = None

    def __init__(self) -> None:
        self._records: dict[int, ClientRecord] = {}
        self._changed: set[int] = set()
        self._before: dict[int, ClientRecord | None] | None = None
        self.template: ClientRecord | None = None

    def bind(self, template: ClientRecord, primal: str | None) -> None:
        self.template = template

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
        """Do nothing, as all records are in memory."""

    def mark(self) -> None:
        """Mark the current state; `commit` keeps replaced records until the next mark."""
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
        return stack_records(self, clients)

    def saved(self) -> None:
        self._changed.clear()

    def restore(
        self, newest: Iterable[dict[str, Tensor]], older: Iterable[dict[str, Tensor]]
    ) -> None:
        """Hold exactly the records of a checkpoint, whose parts come newest first."""
        if self.template is None:
            raise StateError("MemoryStore: restore needs `bind` first")
        self.clear()
        for part in newest:
            ids = part.pop("ids").tolist()
            for row, client in enumerate(ids):
                if client not in self._records:
                    named = {name: stack[row].clone() for name, stack in part.items()}
                    where = f"the checkpoint's record of client {client}"
                    self._records[client] = rebuild(self.template, named, where)
