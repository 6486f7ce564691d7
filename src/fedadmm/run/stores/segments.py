"""Client records in segments: files that grow until a checkpoint, or until they are full.

    segment-00000012.records       the records of many clients, one behind the other

A record is a frame (its length, client and digest) and the bytes of a safetensors file.  What was
written is never changed, so a reader that knows a record's place reads what was committed
there, however often the client moved on since.
"""

from __future__ import annotations

import hashlib
import re
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedadmm.core import atomic_files, codec, trees
from fedadmm.core.codec import FormatError, Packed
from fedadmm.core.errors import StateError
from fedadmm.core.messages import ClientRecord
from fedadmm.run.stores import records

_FRAME = struct.Struct("<QQ32s")
_NAME = re.compile(r"segment-(\d{8,})\.records")


class Place(NamedTuple):
    """Where a record is, and the digest of its bytes."""

    segment: int
    begin: int
    size: int
    digest: bytes


NOWHERE = Place(0, 0, 0, hashlib.sha256().digest())
"""The place of a record that holds no tensor: nothing is written for it."""

Index = dict[int, Place]


class Segments:
    """Reads and writes client records, and keeps recently used ones in memory.

    `primal_dtype` is the precision in which the local model is stored (None for no conversion).
    """

    def __init__(
        self,
        directory: Path,
        layout: records.Layout,
        primal_dtype: torch.dtype | None,
        cache_bytes: int,
    ) -> None:
        self._directory = directory
        self._layout = layout
        self._primal_dtype = primal_dtype
        self._cache_bytes = cache_bytes
        self._cache: OrderedDict[Place, ClientRecord] = OrderedDict()
        self._lock = threading.RLock()  # records are also read ahead, in a thread
        self.cached_bytes = 0

    def write(self, segment: int, end: int, client: int, record: ClientRecord) -> Place:
        """Write a record at the end of a segment, and remember it as it would be read back."""
        named = records.separate(dict(trees.named_tensors(record)))
        if not named:
            return NOWHERE
        name, dtype = self._layout.primal, self._primal_dtype
        if dtype is not None and name is not None:
            named[name] = named[name].to(dtype)
        data = codec.encode(Packed(named, {}))
        place = append(self._directory, segment, end, client, data)
        self._remember(place, records.rebuild(self._layout.template, named, f"client {client}"))
        return place

    def read(self, place: Place) -> ClientRecord:
        """Read a record, unless it is in memory."""
        if place == NOWHERE:
            return self._layout.template
        with self._lock:
            if place in self._cache:
                self._cache.move_to_end(place)
                return self._cache[place]
        path = path_of(self._directory, place.segment)
        try:
            found = codec.decode(raw(self._directory, place)).tensors
        except FormatError as error:
            raise StateError(f"cannot read {path}: {error}") from error
        record = records.rebuild(self._layout.template, found, path)
        self._remember(place, record)
        return record

    def _remember(self, place: Place, record: ClientRecord) -> None:
        """Keep a record in memory, in the place of those that were not used for longest."""
        with self._lock:
            self.forget(place)
            size = trees.num_bytes(record)
            if size > self._cache_bytes:
                return
            self._cache[place] = record
            self.cached_bytes += size
            while self.cached_bytes > self._cache_bytes:
                self.forget(next(iter(self._cache)))

    def forget(self, place: Place | None) -> None:
        """Let a record go that was replaced."""
        with self._lock:
            record = None if place is None else self._cache.pop(place, None)
            self.cached_bytes -= trees.num_bytes(record)


def path_of(directory: Path, segment: int) -> Path:
    """The file of a segment."""
    return directory / f"segment-{segment:08d}.records"


def append(directory: Path, segment: int, end: int, client: int, data: bytes) -> Place:
    """Write the bytes of a record at the end of a segment, which is known."""
    digest = hashlib.sha256(data).digest()
    atomic_files.append(path_of(directory, segment), _FRAME.pack(len(data), client, digest) + data)
    return Place(segment, end + _FRAME.size, len(data), digest)


def raw(directory: Path, place: Place) -> bytes:
    """The bytes of a record."""
    return atomic_files.read(path_of(directory, place.segment), place.begin, place.size)


def existing(directory: Path) -> list[int]:
    """The segments in a folder, in order."""
    found = (_NAME.fullmatch(name) for name in atomic_files.names(directory))
    return sorted(int(match[1]) for match in found if match is not None)


def scan(directory: Path, segment: int) -> Iterator[tuple[int, Place]]:
    """The client and the place of every record in a segment; a torn end is left out."""
    path, begin = path_of(directory, segment), 0
    while len(head := atomic_files.read(path, begin, _FRAME.size)) == _FRAME.size:
        size, client, digest = _FRAME.unpack(head)
        begin += _FRAME.size
        if size == 0 or not atomic_files.read(path, begin + size - 1, 1):
            return
        yield client, Place(segment, begin, size, digest)
        begin += size


def pack(index: Index) -> dict[str, Tensor]:
    """The places of many clients' records as tensors."""
    columns = {
        name: torch.tensor([getattr(place, name) for place in index.values()], dtype=torch.int64)
        for name in ("segment", "begin", "size")
    }
    digests = b"".join(place.digest for place in index.values())
    digest = torch.frombuffer(bytearray(digests), dtype=torch.uint8).view(-1, 32)
    return {"ids": torch.tensor([*index], dtype=torch.int64), **columns, "digest": digest}


def unpack(parts: Iterable[dict[str, Tensor]]) -> Index:
    """The places by client, from parts that come newest first."""
    index: Index = {}
    for part in parts:
        digests = part["digest"].numpy().tobytes()
        columns = (part[name].tolist() for name in ("ids", "segment", "begin", "size"))
        for row, (client, number, begin, size) in enumerate(zip(*columns, strict=True)):
            if client not in index:
                index[client] = Place(number, begin, size, digests[32 * row : 32 * row + 32])
    return index


def verify(directory: Path, index: Index, checked: set[str]) -> None:
    """Refuse an index that names a missing or damaged record; `checked` digests are known."""
    for place in index.values():
        expected = place.digest.hex()
        if place == NOWHERE or expected in checked:
            continue
        if hashlib.sha256(raw(directory, place)).digest() != place.digest:
            path = path_of(directory, place.segment)
            raise StateError(f"{path} is damaged: the digest of a record is not the recorded one")
        checked.add(expected)
