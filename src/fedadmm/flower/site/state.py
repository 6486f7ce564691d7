"""A client's state on its own disk: never torn, never half-moved.

Files, each replaced in one rename:

    acked.safetensors     the state of the version that the server is known to have folded
    pending.safetensors   the state of the last upload, with the bytes of its reply

The acknowledgement renames pending to acked; a new upload replaces pending.  Whatever instant a
crash picks, all files are whole.  What was spent of the rows' privacy is in `account.py`, above all
runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from fedadmm.core import codec, files
from fedadmm.core.codec import DamageError, Packed, pack, unpack
from fedadmm.core.errors import StateError
from fedadmm.core.protocols import ClientRecord
from fedadmm.flower.protocol.admission import is_sealed
from fedadmm.flower.protocol.ledger import ClientLedger, Kind, Reply, Slot, slot_of

ACKED, PENDING, DAMAGED = "acked.safetensors", "pending.safetensors", ".damaged"
_REPLY, _BODY = "reply", "body"


class _File(NamedTuple):
    """What one file holds."""

    reply: Reply
    packed: Packed

    @property
    def body(self) -> bytes:
        """The bytes of the reply."""
        return bytes(self.packed.tensors[_BODY].numpy())


class SiteState:
    """The folder of one client in one run."""

    def __init__(self, folder: Path) -> None:
        files.make_private_directory(folder.parent)
        files.make_private_directory(folder)
        self._folder = folder
        self._files: dict[str, _File] = {}

    @contextmanager
    def locked(self, timeout: float = 60.0) -> Iterator[None]:
        """Hold the folder: a restarted node may meet the process it left behind."""
        with files.locked(self._folder, timeout):
            files.remove_leftovers(self._folder)
            self._files = {}
            yield

    def ledger(self) -> ClientLedger:
        """What the disk says; a damaged file is put aside and counts as not there."""
        return ClientLedger(self._slot(ACKED), self._slot(PENDING))

    def promote(self) -> None:
        """The server folded the last upload: its state is the acknowledged one now."""
        files.replace(self._folder / PENDING, self._folder / ACKED)
        self._files[ACKED] = self._files.pop(PENDING)

    def forget(self) -> None:
        """The server started this client again: nothing that was counts any more."""
        for name in (PENDING, ACKED):
            files.remove(self._folder / name)
            self._files.pop(name, None)
        files.sync(self._folder)

    def acked(self, template: ClientRecord) -> ClientRecord | None:
        """The acknowledged state; None is the initial one."""
        file = self._read(ACKED)
        return None if file is None else unpack(template, file.packed)

    def pending(self) -> tuple[Reply, bytes] | None:
        """The last reply and its bytes, to be sent again; None when they are damaged."""
        file = self._read(PENDING)
        if file is None:
            raise StateError(f"{self._folder / PENDING} is not there")
        if not is_sealed(file.reply, file.body):
            self._put_aside(PENDING)
            return None
        # Whoever committed it may have died before its name was on the disk.
        files.sync(self._folder)
        return file.reply, file.body

    def commit(self, reply: Reply, body: bytes, record: ClientRecord) -> None:
        """Keep a new state with the reply that leads to it, before that reply leaves."""
        packed = pack(record)
        packed.plain[_REPLY] = json.dumps(reply._asdict())
        content = torch.empty(0, dtype=torch.uint8)
        if body:
            content = torch.frombuffer(bytearray(body), dtype=torch.uint8)
        codec.write_checksummed(self._folder / PENDING, packed, body=content)
        self._files.pop(PENDING, None)

    def _slot(self, name: str) -> Slot | None:
        file = self._read(name)
        return None if file is None else slot_of(file.reply)

    def _read(self, name: str) -> _File | None:
        if name not in self._files:
            try:
                file = _read_file(self._folder / name)
            except DamageError:
                self._put_aside(name)
                return None
            if file is not None:
                self._files[name] = file
        return self._files.get(name)

    def _put_aside(self, name: str) -> None:
        files.replace(self._folder / name, self._folder / (name + DAMAGED))
        self._files.pop(name, None)


def _read_file(path: Path) -> _File | None:
    # The digest of the body stands in the reply, so that it is hashed only when it is sent again.
    packed = codec.read_checksummed(path, _BODY)
    if packed is None:
        return None
    try:
        fields = json.loads(str(packed.plain.pop(_REPLY)))
        reply = Reply(**fields)._replace(kind=Kind(fields["kind"]))
        packed.tensors[_BODY]
    except (KeyError, TypeError, ValueError):
        raise DamageError(f"{path} is damaged: it holds no reply") from None
    return _File(reply, packed)
