"""Client records as named tensors and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.codec import Packed, unpack
from fedadmm.core.errors import StateError
from fedadmm.core.messages import ClientRecord, ClientStateStore
from fedadmm.run.client import Job, record_layout


class SnapshotStore(ABC):
    """A `ClientStateStore` that checkpoints can hold."""

    kind: ClassVar[str]
    """Says what the parts are: only a store of this kind can restore them."""
    directory: Path | None
    """Where the store's own files are, if it has any."""

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

    def __getitem__(self, client: int) -> Any:
        record = self._store.get(client)
        if record is None:
            raise KeyError(client)
        return trees.clone(record.state)

    def __iter__(self) -> Iterator[int]:
        return iter(self._store.clients())

    def __len__(self) -> int:
        return len(self._store.clients())


class Layout(NamedTuple):
    """How the records of a run look: a template, and the name of the client's own model in it."""

    template: ClientRecord
    primal: str | None


def layout(job: Job) -> Layout:
    """The layout of a run's records."""
    # Its tensors are copies: a state may hold the initial vector twice, and `is` tells them apart.
    record = record_layout(job)
    own = job.algorithm.local_params(record.state)
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
