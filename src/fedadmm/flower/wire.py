"""Heads and parcels as Flower messages: plain bytes in array records, plain values in others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from fedadmm.errors import StateError
from fedadmm.flower.codec import LONGEST_TEXT, Packed, Plain, Raw, from_raw, to_raw
from fedadmm.flower.protocol import Kind, Reply, Task

if TYPE_CHECKING:
    from flwr.app import RecordDict

Head = TypeVar("Head", Task, Reply)

STYPE = "fedadmm.raw"
"""The serialisation of arrays: little-endian bytes, nothing else."""
MOST_ARRAYS = 64
HEAD, ARRAYS, PLAIN = "fedadmm.head", "fedadmm.arrays", "fedadmm.plain"


def write(head: Task | Reply, packed: Packed) -> RecordDict:
    """A message's content."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = ArrayRecord()
    for name, tensor in packed.tensors.items():
        raw = to_raw(tensor)
        arrays[name] = Array(raw.dtype, raw.shape, STYPE, raw.data)
    fields: dict[str, Any] = {key: _plain(value) for key, value in head._asdict().items()}
    return RecordDict(
        {HEAD: ConfigRecord(fields), ARRAYS: arrays, PLAIN: ConfigRecord(dict(packed.plain))}
    )


def _plain(value: Plain) -> Plain:
    return str(value) if isinstance(value, str) else value


def read_task(content: RecordDict, most_bytes: int) -> tuple[Task, Packed]:
    """A task and its parcel; a StateError says what is wrong with them."""
    return Task(**_fields(Task, content)), _packed(content, most_bytes)


def read_reply(content: RecordDict, most_bytes: int) -> tuple[Reply, Packed]:
    """A reply and its answer; a StateError says what is wrong with them."""
    fields = _fields(Reply, content)
    if fields["kind"] not in {str(kind) for kind in Kind}:
        raise StateError(f"garbage: kind is {fields['kind'][:40]!r}")
    fields["kind"] = Kind(fields["kind"])
    return Reply(**fields), _packed(content, most_bytes)


def _fields(head: type[Task] | type[Reply], content: RecordDict) -> dict[str, Any]:
    record = content.get(HEAD)
    fields = dict(record) if isinstance(record, Mapping) else {}
    if fields.keys() != set(head._fields):
        raise StateError(f"garbage: there is no head of a {head.__name__.lower()}")
    for name, value in fields.items():
        kind = int if name in _NUMBERS else str
        if type(value) is not kind or (isinstance(value, str) and len(value) > LONGEST_TEXT):
            raise StateError(f"garbage: {name} is no proper {kind.__name__}")
    return fields


_NUMBERS = frozenset(("client", "sequence", "incarnation", "folded", "version"))


def _packed(content: RecordDict, most_bytes: int) -> Packed:
    arrays, plain = content.get(ARRAYS), content.get(PLAIN)
    if not isinstance(arrays, Mapping) or not isinstance(plain, Mapping):
        raise StateError("garbage: there are no arrays")
    if len(arrays) > MOST_ARRAYS or len(plain) > MOST_ARRAYS:
        raise StateError(f"size: more than {MOST_ARRAYS} arrays or values came")
    total = sum(len(getattr(array, "data", b"")) for array in arrays.values())
    if total > most_bytes:
        raise StateError(f"size: {total} bytes came, but at most {most_bytes} may come")
    tensors = {}
    for name, array in arrays.items():
        if getattr(array, "stype", None) != STYPE:
            raise StateError(f"garbage: {name[:40]} is not a plain array")
        tensors[name] = from_raw(Raw(array.dtype, tuple(array.shape), bytes(array.data)))
    for name, value in plain.items():
        if not isinstance(value, bool | int | float | str):
            raise StateError(f"garbage: {name[:40]} is {type(value).__name__}")
    return Packed(tensors, dict(plain))
