"""Nested NamedTuples as named tensors and plain values, for files and for the wire.

No pickle: a tensor is its bytes, its shape and one of a few types; what is not a tensor is a
truth value, a number or a short text.  What arrives is compared with a template before a single
tensor is made of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from fedadmm.errors import StateError
from fedadmm.state.digest import content_sha256

Tree = TypeVar("Tree")
Plain = bool | int | float | str

_TYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "int64": torch.int64,
    "bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
LONGEST_TEXT = 500
"""Characters of a text that a client may send."""


class Packed(NamedTuple):
    """A tree without its types: named tensors and named plain values; None is left out."""

    tensors: dict[str, Tensor]
    plain: dict[str, Plain]


class Raw(NamedTuple):
    """A tensor on the wire: little-endian bytes and what they mean."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def pack(tree: object) -> Packed:
    """Every tensor and every plain value with its dotted path."""
    packed = Packed({}, {})
    _collect(tree, "", packed)
    return packed


def _collect(leaf: object, path: str, into: Packed) -> None:
    if isinstance(leaf, Tensor):
        into.tensors[path] = leaf.detach().cpu().contiguous()
    elif isinstance(leaf, tuple):
        for name, part in _parts(leaf):
            _collect(part, f"{path}.{name}" if path else name, into)
    elif isinstance(leaf, bool | int | float | str):
        into.plain[path] = leaf
    elif leaf is not None:
        raise StateError(f"{path} is {type(leaf).__name__}, which cannot be stored or sent")


def _parts(tree: tuple[Any, ...]) -> list[tuple[str, Any]]:
    names = getattr(tree, "_fields", [str(index) for index in range(len(tree))])
    return list(zip(names, tree, strict=True))


def unpack(template: Tree, packed: Packed, path: str = "") -> Tree:
    """The tree again: types from the template, values from what was packed."""
    if isinstance(template, tuple):
        parts = [
            unpack(part, packed, f"{path}.{name}" if path else name)
            for name, part in _parts(template)
        ]
        return cast(Tree, type(template)(*parts) if hasattr(template, "_fields") else tuple(parts))
    if path in packed.tensors:
        return cast(Tree, packed.tensors[path])
    return cast(Tree, packed.plain.get(path))


def digest(packed: Packed, head: Mapping[str, Plain]) -> str:
    """A fingerprint of the content and of the head that goes with it."""
    text = {"plain": json.dumps(packed.plain, sort_keys=True), "head": json.dumps(dict(head))}
    return content_sha256(packed.tensors, text)


def misfit(template: object, packed: Packed, *, optional: bool = False) -> str | None:
    """Why what arrived is not like the template, or None; with `optional`, less may come."""
    wanted = pack(template)
    names = set(packed.tensors)
    if not names <= wanted.tensors.keys() or not (optional or names >= wanted.tensors.keys()):
        return f"shape: it holds {_listed(packed.tensors)}, but must hold {_listed(wanted.tensors)}"
    for name, got in packed.tensors.items():
        like = wanted.tensors[name]
        if got.dtype != like.dtype:
            return f"dtype: {name} is {_NAMES[got.dtype]}, but must be {_NAMES[like.dtype]}"
        if got.shape != like.shape:
            return f"shape: {name} is {tuple(got.shape)}, but must be {tuple(like.shape)}"
    if packed.plain.keys() != wanted.plain.keys():
        return f"shape: it says {_listed(packed.plain)}, but must say {_listed(wanted.plain)}"
    for name, value in packed.plain.items():
        kind = type(wanted.plain[name])
        if type(value) is not kind:
            return f"dtype: {name} is {type(value).__name__}, but must be {kind.__name__}"
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            return f"size: {name} has {len(value)} characters, but at most {LONGEST_TEXT} may come"
    return None


def _listed(names: Mapping[str, object]) -> str:
    shown = [name[:80] for name in sorted(names)]
    return ", ".join(shown[:8]) + (" …" if len(shown) > 8 else "") or "nothing"


def num_bytes(packed: Packed) -> int:
    """The bytes of all tensors."""
    return sum(leaf.numel() * leaf.element_size() for leaf in packed.tensors.values())


def to_raw(tensor: Tensor) -> Raw:
    """A tensor as bytes."""
    if tensor.dtype not in _NAMES:
        raise StateError(f"a tensor is {tensor.dtype}, but must be one of {', '.join(_TYPES)}")
    array = tensor.numpy()
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return Raw(_NAMES[tensor.dtype], tuple(tensor.shape), little.tobytes())


def from_raw(raw: Raw) -> Tensor:
    """A tensor from bytes; a StateError when they cannot be what they claim to be."""
    if raw.dtype not in _TYPES:
        raise StateError(f"dtype: {raw.dtype[:40]!r} is not one of {', '.join(_TYPES)}")
    if len(raw.shape) > 8 or any(side < 0 for side in raw.shape):
        raise StateError(f"shape: {raw.shape[:8]} is impossible")
    kind = np.dtype(raw.dtype).newbyteorder("<")
    count = 1
    for side in raw.shape:
        count *= side
    if len(raw.data) != count * kind.itemsize:
        raise StateError(
            f"shape: {len(raw.data)} bytes came for {raw.shape} of {raw.dtype}, which need "
            f"{count * kind.itemsize}"
        )
    native = np.frombuffer(raw.data, dtype=kind).astype(kind.newbyteorder("="), copy=True)
    return torch.from_numpy(native.reshape(raw.shape))
