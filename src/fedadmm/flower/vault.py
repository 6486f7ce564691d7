"""A client's state on its own disk: never torn, never half-moved.

Two files, each replaced in one rename:

    acked.safetensors     the state of the version that the server is known to have folded
    pending.safetensors   the state of the last upload, with the upload itself for repetitions

The acknowledgement renames pending to acked; a new upload replaces pending.  Whatever instant a
crash picks, both files are whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedadmm.errors import StateError
from fedadmm.flower.codec import Packed, pack, unpack
from fedadmm.flower.parcels import Kept
from fedadmm.flower.protocol import ClientLedger, Kind, Reply, Slot, slot_of
from fedadmm.protocols import ClientRecord
from fedadmm.state.files import Contents, make_directory, read_tensors, sync, write_tensors
from fedadmm.state.locks import locked

ACKED, PENDING, DAMAGED = (
    "acked.safetensors",
    "pending.safetensors",
    ".damaged",
)


class _File(NamedTuple):
    """What one file holds."""

    reply: Reply
    packed: Packed


class Vault:
    """The folder of one client in one run."""

    def __init__(self, folder: Path) -> None:
        make_directory(folder)
        folder.chmod(0o700)
        self._folder = folder
        self._files: dict[str, _File] = {}

    @contextmanager
    def locked(self, timeout: float = 60.0) -> Iterator[None]:
        """Hold the folder: a restarted node may meet the process it left behind."""
        with locked(self._folder, timeout):
            self._files = {}
            yield

    def ledger(self) -> ClientLedger:
        """What the disk says; a damaged file is put aside and counts as not there."""
        return ClientLedger(self._slot(ACKED), self._slot(PENDING))

    def promote(self) -> None:
        """The server folded the last upload: its state is the acknowledged one now."""
        os.replace(self._folder / PENDING, self._folder / ACKED)
        sync(self._folder)
        self._files[ACKED] = self._files.pop(PENDING)

    def forget(self) -> None:
        """The server started this client again: nothing that was counts any more."""
        for name in (PENDING, ACKED):
            (self._folder / name).unlink(missing_ok=True)
            self._files.pop(name, None)
        sync(self._folder)

    def acked(self, template: ClientRecord) -> ClientRecord | None:
        """The acknowledged state; None is the initial one."""
        file = self._read(ACKED)
        return None if file is None else unpack(template, file.packed, "record")

    def pending(self, template: Kept) -> tuple[Reply, Kept]:
        """The last upload, to be sent again."""
        file = self._read(PENDING)
        if file is None:
            raise StateError(f"{self._folder / PENDING} is not there")
        return file.reply, unpack(template, file.packed)

    def commit(self, reply: Reply, kept: Kept) -> None:
        """Keep a new state with the upload that leads to it, before that upload leaves."""
        packed = pack(kept)
        metadata = {"reply": json.dumps(reply._asdict()), "plain": json.dumps(packed.plain)}
        # Clones, because states may share memory, which the format has no way to say.
        tensors = {name: tensor.clone() for name, tensor in packed.tensors.items()}
        contents = Contents(tensors, metadata)
        sealed = {**metadata, "sha256": contents.sha256()}
        write_tensors(self._folder / PENDING, Contents(tensors, sealed), durable=True)
        self._files[PENDING] = _File(reply, packed)

    def _slot(self, name: str) -> Slot | None:
        file = self._read(name)
        return None if file is None else slot_of(file.reply)

    def _read(self, name: str) -> _File | None:
        path = self._folder / name
        if name not in self._files and path.exists():
            try:
                self._files[name] = _read_file(path)
            except StateError:
                os.replace(path, path.with_name(name + DAMAGED))
        return self._files.get(name)


def _read_file(path: Path) -> _File:
    contents = read_tensors(path)
    try:
        metadata = dict(contents.metadata)
        claimed = metadata.pop("sha256")
        fields = json.loads(metadata["reply"])
        reply = Reply(**fields)._replace(kind=Kind(fields["kind"]))
        plain = json.loads(metadata["plain"])
    except (KeyError, TypeError, ValueError):
        raise StateError(f"{path} is damaged: it cannot be understood") from None
    if Contents(contents.tensors, metadata).sha256() != claimed:
        raise StateError(f"{path} is damaged: its digest is not the recorded one")
    return _File(reply, Packed(contents.tensors, plain))
