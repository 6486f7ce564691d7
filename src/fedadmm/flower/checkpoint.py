"""The server's own state on disk: what it folded and the versions that say so, in one rename.

    server.safetensors             the server's state, the ledger, the roster
    contribution-3-1-12.safetensors    ledger="disk": what client 3 (incarnation 1) has brought up
                                       to version 12, already weighted

Contributions are written first and named by version, so that whatever instant a crash picks, the
files that server.safetensors asks for are there.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedadmm import trees
from fedadmm.errors import StateError
from fedadmm.flower.codec import Packed, pack, unpack
from fedadmm.flower.protocol import Entry, ServerLedger
from fedadmm.resuming import known_from, plain_known
from fedadmm.round import RunState
from fedadmm.state.files import (
    Contents,
    make_directory,
    read_tensors,
    remove,
    remove_leftovers,
    write_tensors,
)

SERVER = "server.safetensors"


class Saved(NamedTuple):
    """All that a server needs to go on."""

    state: RunState
    ledger: ServerLedger
    roster: Mapping[int, int]
    """Node id -> client."""
    opened: bool = False
    """Whether the initial round with everybody is done."""
    boots: int = 0
    """How often a server started on this run; asynchronous tasks are numbered from it."""


def new_run() -> ServerLedger:
    """The ledger of a run that begins, with a name that no other run has."""
    return ServerLedger(uuid.uuid4().hex)


class ServerVault:
    """The checkpoint folder of one run."""

    def __init__(
        self, folder: Path, keep_contributions: bool, fingerprint: Mapping[str, str]
    ) -> None:
        make_directory(folder)
        remove_leftovers(folder)
        self._folder = folder
        self._keep = keep_contributions
        self._fingerprint = dict(fingerprint)

    def load(self, template: RunState) -> Saved | None:
        """The last checkpoint, or None for a run that begins."""
        path = self._folder / SERVER
        if not path.exists():
            return None
        contents = read_tensors(path)
        metadata = dict(contents.metadata)
        claimed = metadata.pop("sha256", "")
        if Contents(contents.tensors, metadata).sha256() != claimed:
            raise StateError(f"{path} is damaged: its digest is not the recorded one")
        values = json.loads(metadata["values"])
        self._compare(values["fingerprint"])
        state = unpack(template, Packed(contents.tensors, values["plain"]))
        entries = {int(client): Entry(*entry) for client, entry in values["entries"].items()}
        return Saved(
            state._replace(notes=values["notes"], known=known_from(values.get("known"))),
            ServerLedger(values["run"], entries),
            {int(node): client for node, client in values["roster"].items()},
            values["opened"],
            values["boots"],
        )

    def _compare(self, before: Mapping[str, str]) -> None:
        now = self._fingerprint
        changed = [key for key in before.keys() | now.keys() if before.get(key) != now.get(key)]
        if changed:
            shown = ", ".join(f"{k} ({before.get(k)} -> {now.get(k)})" for k in sorted(changed))
            raise StateError(f"{self._folder}: holds another run, which differs in {shown}")

    def save(self, saved: Saved, brought: Mapping[int, Any]) -> None:
        """Write a checkpoint; `brought` are the weighted uploads that it folded, by client."""
        if self._keep:
            self._add(saved.ledger, brought)
        packed = pack(saved.state._replace(notes=None, known=None))
        values = {
            "plain": packed.plain,
            "notes": saved.state.notes,
            "known": plain_known(saved.state.known),
            "fingerprint": self._fingerprint,
            "run": saved.ledger.run,
            "entries": {str(client): list(entry) for client, entry in saved.ledger.entries.items()},
            "roster": {str(node): client for node, client in saved.roster.items()},
            "opened": saved.opened,
            "boots": saved.boots,
        }
        _seal_and_write(self._folder / SERVER, packed.tensors, {"values": json.dumps(values)})
        if self._keep:
            self._sweep(saved.ledger)

    def contribution(self, client: int, entry: Entry, template: Any) -> Any | None:
        """a_i times the sum of all uploads of a client; None when the server does not keep it."""
        path = self._path(client, entry)
        if not self._keep or not path.exists():
            return None
        contents = read_tensors(path)
        return unpack(template, Packed(contents.tensors, {}))

    def _add(self, ledger: ServerLedger, brought: Mapping[int, Any]) -> None:
        for client, message in brought.items():
            entry = ledger.entry(client)
            before = self.contribution(client, entry._replace(version=entry.version - 1), message)
            # Sums in double precision: what is taken out one day must be what was put in.
            total = trees.map_tensors(lambda leaf: leaf.double(), message)
            if before is not None:
                total = trees.add_scaled_(trees.clone(total), before, 1.0)
            _seal_and_write(self._path(client, entry), pack(total).tensors, {})

    def _sweep(self, ledger: ServerLedger) -> None:
        needed = {self._path(client, entry) for client, entry in ledger.entries.items()}
        for path in self._folder.glob("contribution-*.safetensors"):
            if path not in needed:
                remove(path)

    def _path(self, client: int, entry: Entry) -> Path:
        name = f"contribution-{client}-{entry.incarnation}-{entry.version}.safetensors"
        return self._folder / name


def _seal_and_write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    contents = Contents(copies, metadata)
    write_tensors(path, Contents(copies, {**metadata, "sha256": contents.sha256()}), durable=True)
