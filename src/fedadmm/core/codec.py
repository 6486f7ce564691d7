"""Nested NamedTuples as bytes, the same on the wire and on disk: safetensors with a small header.

No pickle: a tensor is its bytes, its shape and its type; what is not a tensor is a truth value, a
number or a text, and is written in the header.  What is read is judged by its header before a
single tensor is made of it.

A checksummed file holds its own digest.  A file that cannot be read may be good: too many open
files, a disk that is busy.  Only one that was read and does not hold what its digest says is
damaged.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedadmm.core import atomic_files
from fedadmm.core.errors import StateError

Tree = TypeVar("Tree")
Plain = bool | int | float | str

_METADATA, _PLAIN, _SHA256 = "__metadata__", "plain", "sha256"
_MOST_SIDES = 8
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


class Limits(NamedTuple):
    """Larger sizes are rejected without reading."""

    header: int
    """Bytes of the header."""
    entries: int
    """Tensors and plain values."""


MESSAGE = Limits(1 << 20, 64)
FILE = Limits(100_000_000, 1_000_000)
"""Limit of the safetensors format."""


class FormatError(StateError):
    """Bytes that are not what `encode` makes: garbage, or of an impossible size or shape."""

    def __init__(self, kind: Literal["garbage", "size", "shape"], detail: str) -> None:
        self.kind, self.detail = kind, detail
        super().__init__(detail)


class DamageError(StateError):
    """The contents of a file differ from what was written."""


class Packed(NamedTuple):
    """Named tensors and named plain values of a tree; None is omitted."""

    tensors: dict[str, Tensor]
    plain: dict[str, Plain]

    def sha256(self) -> str:
        """Digest of the tensors with their types and shapes, and of the plain values."""
        names = sorted(self.tensors)
        described = [[n, str(self.tensors[n].dtype), list(self.tensors[n].shape)] for n in names]
        plain = sorted((name, repr(value)) for name, value in self.plain.items())
        found = hashlib.sha256(json.dumps([described, plain]).encode())
        for name in names:
            found.update(raw_bytes(self.tensors[name]))
        return found.hexdigest()


def pack(tree: object) -> Packed:
    """Return all tensors and plain values with their dotted paths."""
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
    """The tree again: types from the template, values from what was packed.

    A tensor that was not packed is None, a plain value the template's.
    """
    if isinstance(template, tuple):
        parts = [
            unpack(part, packed, f"{path}.{name}" if path else name)
            for name, part in _parts(template)
        ]
        return cast(Tree, type(template)(*parts) if hasattr(template, "_fields") else tuple(parts))
    if path in packed.tensors:
        return cast(Tree, packed.tensors[path])
    usual = None if isinstance(template, Tensor) else template
    return cast(Tree, packed.plain.get(path, usual))


def encode(packed: Packed) -> bytes:
    """Return a packed tree as bytes."""
    # The format is written here, because its own writer rejects states that share memory, and takes
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


def decode(data: bytes, limits: Limits = FILE) -> Packed:
    """Return the packed tree from the bytes of `encode`; raise a FormatError for others."""
    header = _header(data, limits.header)
    metadata = header.pop(_METADATA, None)
    try:
        plain = json.loads(metadata[_PLAIN])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise FormatError("garbage", "the header says no plain values") from None
    if not isinstance(plain, dict) or len(header) + len(plain) > limits.entries:
        raise FormatError("size", f"more than {limits.entries} tensors and values came")
    for name, entry in header.items():
        _check_entry(name, entry, len(data))
    for name, value in plain.items():
        if not isinstance(value, bool | int | float | str):
            raise FormatError("garbage", f"{name[:40]} is {type(value).__name__}")
    try:
        return Packed(load(data), plain)
    except (SafetensorError, KeyError) as error:
        raise FormatError("garbage", f"no tensors can be read: {error}") from None


def _header(data: bytes, most: int) -> dict[str, Any]:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(most, len(data) - 8):
        raise FormatError("garbage", f"{len(data)} bytes came, which are no message")
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError):
        raise FormatError("garbage", "the header cannot be understood") from None
    if not isinstance(header, dict):
        raise FormatError("garbage", "the header cannot be understood")
    return header


def _check_entry(name: str, entry: object, most: int) -> None:
    """A shape whose sides cannot even be multiplied would end in an error deep inside torch."""
    shape = entry.get("shape") if isinstance(entry, dict) else None
    proper = isinstance(shape, list) and len(shape) <= _MOST_SIDES
    if not proper or not all(type(side) is int and side >= 0 for side in shape or ()):
        raise FormatError("shape", f"{name[:40]} has no possible shape")
    if math.prod(side or 1 for side in shape or ()) > most:
        raise FormatError("shape", f"{name[:40]} is {shape}, but {most} bytes came")


def digest(body: bytes, head: Mapping[str, Plain] | None = None) -> str:
    """Return the digest of a body together with its head."""
    found = hashlib.sha256(json.dumps(dict(head or {}), sort_keys=True).encode())
    found.update(body)
    return found.hexdigest()


def params_sha256(params: Tensor) -> str:
    """Return the SHA-256 of a vector's bytes, which is equal for bit-identical vectors only."""
    return hashlib.sha256(raw_bytes(params)).hexdigest()


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor in row-major order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    bytes_of: Any = flat.view(torch.uint8).numpy()
    return memoryview(bytes_of)


def write(path: Path, packed: Packed, *, durable: bool = True) -> None:
    """Write a packed tree atomically."""
    atomic_files.write(path, encode(packed), durable=durable)


def read(path: Path, sha256: str | None = None) -> Packed:
    """Read a packed tree, and check its digest if one is given."""
    try:
        packed = decode(atomic_files.read(path))
    except FormatError as error:
        raise StateError(f"cannot read {path}: {error}") from error
    if sha256 is not None and packed.sha256() != sha256:
        raise StateError(f"{path} is damaged: its digest is not the recorded one")
    return packed


def write_checksummed(
    path: Path, packed: Packed, *, durable: bool = True, **vouched: Tensor
) -> None:
    """Write a file with its own digest.

    `vouched` are tensors whose digest is among the plain values.
    """
    checksummed = packed.plain | {_SHA256: packed.sha256()}
    write(path, Packed(packed.tensors | vouched, checksummed), durable=durable)


def read_checksummed(path: Path, *vouched: str) -> Packed | None:
    """Return what was written, None without a file; raise a DamageError if it was changed."""
    data = atomic_files.read_if_there(path)
    if data is None:
        return None
    try:
        packed = decode(data)
    except FormatError as error:
        raise DamageError(f"{path} is damaged: {error.detail}") from None
    claimed = packed.plain.pop(_SHA256, None)
    covered = {name: tensor for name, tensor in packed.tensors.items() if name not in vouched}
    if Packed(covered, packed.plain).sha256() != claimed:
        raise DamageError(f"{path} is damaged: its digest is not the recorded one")
    return packed


def metadata(data: bytes) -> dict[str, Any]:
    """Return the metadata of any safetensors file."""
    found = _header(data, FILE.header).get(_METADATA)
    return found if isinstance(found, dict) else {}


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document with its digest to a JSON file atomically."""
    text = json.dumps({**document, _SHA256: _json_sha256(document)}, indent=1)
    atomic_files.write(path, text.encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a document and check its digest."""
    data = atomic_files.read(path)
    try:
        document = json.loads(data)
        claimed = document.pop(_SHA256)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise DamageError(f"{path} is damaged: it cannot be understood") from None
    if _json_sha256(document) != claimed:
        raise DamageError(f"{path} is damaged: its digest is not the recorded one")
    return dict(document)


def _json_sha256(document: Mapping[str, Any]) -> str:
    """Return the digest of a document, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
