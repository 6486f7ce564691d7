"""Client records as named tensors and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.errors import StateError
from fedadmm.core.protocols import AnyAlgorithm, ClientRecord, ClientStateStore


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


def layout(algorithm: AnyAlgorithm, initial: Tensor, buffers: Tensor | None) -> Layout:
    """The layout of a method's records."""
    # Cloned, since a state may hold the initial vector twice and `is` must tell the two apart.
    state = trees.clone(algorithm.init_client(initial))
    own = algorithm.local_params(state)
    named = trees.named_tensors(state, "state")
    primal = next((name for name, leaf in named if leaf is own), None)
    return Layout(ClientRecord(state, buffers), primal)


def flatten(record: ClientRecord) -> dict[str, Tensor]:
    """The record's tensors by name."""
    named = dict(trees.named_tensors(record.state, "state"))
    if record.buffers is not None:
        named["buffers"] = record.buffers
    return named


def rebuild(template: ClientRecord, named: dict[str, Tensor], where: object) -> ClientRecord:
    """The inverse of `flatten`; `where` names the source should something be missing."""
    wanted = dict(trees.named_tensors(template.state, "state"))
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
    return ClientRecord(trees.rebuild(template.state, restored, "state"), buffers)


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
