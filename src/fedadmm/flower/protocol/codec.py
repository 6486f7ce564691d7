"""Nested NamedTuples as bytes, the same on the wire and on disk: safetensors with a small header.

No pickle: a tensor is its bytes, its shape and its type; what is not a tensor is a truth value, a
number or a short text, and stands in the header.  What arrives is judged by its header before a
single tensor is made of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedadmm.core.errors import StateError
from fedadmm.flower.protocol.refusal import LONGEST_TEXT, RefusedError, Word
from fedadmm.run.state.digest import raw_bytes

Tree = TypeVar("Tree")
Plain = bool | int | float | str

_METADATA, _PLAIN = "__metadata__", "plain"
_MOST_ENTRIES, _MOST_SIDES = 64, 8
"""Tensors and values of a message, sides of a tensor: more is refused unread."""
MOST_HEADER = 1 << 20
"""Bytes of a message's header."""
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Packed(NamedTuple):
    """A tree without its types: named tensors and named plain values; None is left out."""

    tensors: dict[str, Tensor]
    plain: dict[str, Plain]


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


def encode(packed: Packed) -> bytes:
    """A packed tree as bytes."""
    # The format is written here, because its own writer refuses states that share memory, and takes
    # ten times as long for small ones.  Wide numbers first, so that all of them are aligned.
    order = sorted(packed.tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {_METADATA: {_PLAIN: json.dumps(packed.plain)}}
    raws, end = [raw_bytes(tensor) for _, tensor in order], 0
    for (name, tensor), raw in zip(order, raws, strict=True):
        begin, end = end, end + raw.nbytes
        kind, shape = _TYPES[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return b"".join([len(head).to_bytes(8, "little"), head, *raws])


def decode(data: bytes, most_header: int = MOST_HEADER) -> Packed:
    """What `encode` made; anything else is refused, whatever it is."""
    header = _header(data, most_header)
    metadata = header.pop(_METADATA, None)
    try:
        plain = json.loads(metadata[_PLAIN])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise RefusedError(Word.GARBAGE, "the header says no plain values") from None
    if not isinstance(plain, dict) or len(header) + len(plain) > _MOST_ENTRIES:
        raise RefusedError(Word.SIZE, f"more than {_MOST_ENTRIES} tensors and values came")
    for name, entry in header.items():
        _check_entry(name, entry, len(data))
    for name, value in plain.items():
        if not isinstance(value, bool | int | float | str):
            raise RefusedError(Word.GARBAGE, f"{name[:40]} is {type(value).__name__}")
    try:
        return Packed(load(data), plain)
    except (SafetensorError, KeyError) as error:
        raise RefusedError(Word.GARBAGE, f"no tensors can be read: {error}") from None


def _header(data: bytes, most: int) -> dict[str, Any]:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(most, len(data) - 8):
        raise RefusedError(Word.GARBAGE, f"{len(data)} bytes came, which are no message")
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError):
        raise RefusedError(Word.GARBAGE, "the header cannot be understood") from None
    if not isinstance(header, dict):
        raise RefusedError(Word.GARBAGE, "the header cannot be understood")
    return header


def _check_entry(name: str, entry: object, most: int) -> None:
    """A shape whose sides cannot even be multiplied would end in an error deep inside torch."""
    shape = entry.get("shape") if isinstance(entry, dict) else None
    proper = isinstance(shape, list) and len(shape) <= _MOST_SIDES
    if not proper or not all(type(side) is int and side >= 0 for side in shape or ()):
        raise RefusedError(Word.SHAPE, f"{name[:40]} has no possible shape")
    if math.prod(side or 1 for side in shape or ()) > most:
        raise RefusedError(Word.SHAPE, f"{name[:40]} is {shape}, but {most} bytes came")


def digest(body: bytes, head: Mapping[str, Plain] | None = None) -> str:
    """A fingerprint of a body and of the head that goes with it."""
    found = hashlib.sha256(json.dumps(dict(head or {}), sort_keys=True).encode())
    found.update(body)
    return found.hexdigest()


def check_like(template: object, packed: Packed, *, optional: bool = False) -> None:
    """Refuse what is not like the template; with `optional`, less may come."""
    wanted = pack(template)
    names = set(packed.tensors)
    if not names <= wanted.tensors.keys() or not (optional or names >= wanted.tensors.keys()):
        held, must = _listed(packed.tensors), _listed(wanted.tensors)
        raise RefusedError(Word.SHAPE, f"it holds {held}, but must hold {must}")
    for name, got in packed.tensors.items():
        like = wanted.tensors[name]
        if got.dtype != like.dtype:
            raise RefusedError(Word.DTYPE, f"{name} is {got.dtype}, but must be {like.dtype}")
        if got.shape != like.shape:
            raise RefusedError(
                Word.SHAPE, f"{name} is {tuple(got.shape)}, but must be {tuple(like.shape)}"
            )
    if packed.plain.keys() != wanted.plain.keys():
        held, must = _listed(packed.plain), _listed(wanted.plain)
        raise RefusedError(Word.SHAPE, f"it says {held}, but must say {must}")
    for name, value in packed.plain.items():
        kind = type(wanted.plain[name])
        if type(value) is not kind:
            raise RefusedError(
                Word.DTYPE, f"{name} is {type(value).__name__}, but must be {kind.__name__}"
            )
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise RefusedError(
                Word.SIZE,
                f"{name} has {len(value)} characters, but at most {LONGEST_TEXT} may come",
            )


def _listed(names: Mapping[str, object]) -> str:
    shown = [name[:80] for name in sorted(names)]
    return ", ".join(shown[:8]) + (" …" if len(shown) > 8 else "") or "nothing"


def num_bytes(packed: Packed) -> int:
    """The bytes of all tensors."""
    return sum(leaf.numel() * leaf.element_size() for leaf in packed.tensors.values())
