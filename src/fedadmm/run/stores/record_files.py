"""One safetensors file a client and version, in folders of a thousand clients.

    0000/17-3.safetensors      version 3 of client 17

A version is never changed once it has its name, so whoever knows (client, version) reads what was
committed under it, however often the client moved on since.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from fedadmm.core import codec, files, trees
from fedadmm.core.codec import Packed, Plain
from fedadmm.core.errors import StateError
from fedadmm.core.messages import ClientRecord
from fedadmm.run.stores import records

FOLDER_CLIENTS = 1000
NO_FILE = 0
"""The version of a client whose record holds no tensor: nothing is written for it."""

Index = dict[int, tuple[int, str]]
"""Version and digest by client."""

_NAME = re.compile(r"(\d+)-(\d+)\.safetensors")


class RecordFiles:
    """Reads and writes the versions of client records, and keeps recently used ones in memory.

    `primal_dtype` is the precision in which the client's own model is stored (None: as it is).
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
        self._cache: OrderedDict[tuple[int, int], ClientRecord] = OrderedDict()
        self._lock = threading.RLock()  # records are also read ahead, in a thread
        self.cached_bytes = 0

    def write(
        self, client: int, version: int, record: ClientRecord, round_index: int
    ) -> tuple[int, ClientRecord]:
        """Write a version; the version and the record exactly as it would be read back."""
        named = records.separate(dict(trees.named_tensors(record)))
        if not named:
            return NO_FILE, record
        name, dtype = self._layout.primal, self._primal_dtype
        if dtype is not None and name is not None:
            named[name] = named[name].to(dtype)
        about: dict[str, Plain] = {"client": client, "version": version, "round": round_index}
        path = path_of(self._directory, client, version)
        if not files.exists(path.parent):
            files.make_directory(path.parent)
        codec.write(path, Packed(named, about), durable=False)
        return version, records.rebuild(self._layout.template, named, path)

    def read(self, client: int, version: int) -> ClientRecord:
        """Read a version, unless it is in memory."""
        if version == NO_FILE:
            return self._layout.template
        with self._lock:
            if (client, version) in self._cache:
                self._cache.move_to_end((client, version))
                return self._cache[client, version]
        path = path_of(self._directory, client, version)
        record = records.rebuild(self._layout.template, codec.read(path).tensors, path)
        self.remember(client, version, record)
        return record

    def remember(self, client: int, version: int, record: ClientRecord) -> None:
        """Keep a version in memory, in the place of those that were not used for longest."""
        size = trees.num_bytes(record)
        with self._lock:
            self.forget(client, version)
            if size > self._cache_bytes:
                return
            self._cache[client, version] = record
            self.cached_bytes += size
            while self.cached_bytes > self._cache_bytes:
                self.forget(*next(iter(self._cache)))

    def forget(self, client: int, version: int | None) -> None:
        """Let a version go that was replaced, or that is about to be written again."""
        with self._lock:
            record = None if version is None else self._cache.pop((client, version), None)
            self.cached_bytes -= trees.num_bytes(record)

    def clear(self) -> None:
        """Let all of them go."""
        self._cache.clear()
        self.cached_bytes = 0


def path_of(directory: Path, client: int, version: int) -> Path:
    """The file of one version of one client."""
    return directory / f"{client // FOLDER_CLIENTS:04d}" / f"{client}-{version}.safetensors"


def existing(directory: Path) -> Iterator[tuple[int, int]]:
    """Every (client, version) in the folder."""
    for folder in _folders(directory):
        for name in files.names(folder):
            if (match := _NAME.fullmatch(name)) is not None:
                yield int(match[1]), int(match[2])


def remove_leftovers(directory: Path) -> None:
    """Take away what a crash left half-written."""
    for folder in _folders(directory):
        files.remove_leftovers(folder)


def _folders(directory: Path) -> list[Path]:
    return [directory / name for name in files.names(directory) if name.isdigit()]


def digest(directory: Path, client: int, version: int) -> str:
    """The digest of a version as it is on the disk."""
    if version == NO_FILE:
        return Packed({}, {}).sha256()
    return codec.read(path_of(directory, client, version)).sha256()


def pack(entries: list[tuple[int, int, str]]) -> dict[str, Tensor]:
    """(client, version, digest) of many clients as tensors."""
    digests = b"".join(bytes.fromhex(sha256) for _, _, sha256 in entries)
    return {
        "ids": torch.tensor([client for client, _, _ in entries], dtype=torch.int64),
        "versions": torch.tensor([version for _, version, _ in entries], dtype=torch.int64),
        "digests": torch.frombuffer(bytearray(digests), dtype=torch.uint8).view(-1, 32),
    }


def unpack(parts: Iterable[dict[str, Tensor]]) -> Index:
    """Versions and digests by client, from parts that come newest first."""
    index: Index = {}
    for part in parts:
        digests = part["digests"].numpy().tobytes().hex()
        pairs = zip(part["ids"].tolist(), part["versions"].tolist(), strict=True)
        for row, (client, version) in enumerate(pairs):
            if client not in index:
                index[client] = (version, digests[64 * row : 64 * row + 64])
    return index


def verify(directory: Path, index: Index, checked: set[str]) -> None:
    """Refuse an index that names a missing or damaged version; `checked` digests are known."""
    for client, (version, expected) in index.items():
        if expected in checked:
            continue
        if digest(directory, client, version) != expected:
            path = path_of(directory, client, version)
            raise StateError(f"{path} is damaged: its digest is not the recorded one")
        checked.add(expected)
