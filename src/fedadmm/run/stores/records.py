"""Client records as named tensors and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.codec import Packed, unpack
from fedadmm.core.errors import StateError
from fedadmm.core.protocols import ClientRecord, ClientStateStore
from fedadmm.run.client import Job, record_layout


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


def flatten(record: ClientRecord) -> dict[str, Tensor]:
    """The record's tensors by name."""
    named = _kept(record)
    if record.buffers is not None:
        named["buffers"] = record.buffers
    return named


def rebuild(template: ClientRecord, named: dict[str, Tensor], where: object) -> ClientRecord:
    """The inverse of `flatten`; `where` names the source should something be missing."""
    wanted = _kept(template)
    restored = {}
    for name, like in wanted.items():
        if name not in named or named[name].shape != like.shape:
            raise StateError(
                f"{where} holds {_described(named)}, but this method's clients keep "
                f"{_described(wanted)}"
            )
        restored[name] = named[name].to(like.device, like.dtype)
    buffers = named.get("buffers")
    if buffers is not None:
        buffers = buffers.to(_device(template))
    return unpack(template, Packed(restored, {}))._replace(buffers=buffers)


def _kept(record: ClientRecord) -> dict[str, Tensor]:
    """What every record of a run has."""
    return dict(trees.named_tensors(record.state, "state")) | dict(
        trees.named_tensors(record.error_feedback, "error_feedback")
    )


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


def _device(template: ClientRecord) -> torch.device:
    leaf = next(trees.tensors(template), None)
    return torch.device("cpu") if leaf is None else leaf.device
