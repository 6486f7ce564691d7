"""Checkpoints, from which a run that was killed continues bit-identically.

    round-00000012.json                    the manifest: names the exact files, written last
    round-00000012.server.safetensors      server state and buffers
    round-00000012.clients-0.safetensors   what changed about the clients since the one before

A manifest lists the client files of earlier checkpoints that it depends on; the newest file that
contains a client is valid.  The last two checkpoints are kept.  Other files are deleted, so that
commits after a checkpoint do not affect a run that is resumed from it.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple

from torch import Tensor

from fedadmm.core import atomic_files, codec
from fedadmm.core.codec import Packed
from fedadmm.core.errors import ANOTHER_VERSION, StateError
from fedadmm.core.validation import Natural, check
from fedadmm.run.stores import disk, segments
from fedadmm.run.stores.records import MemoryStore, SnapshotStore, stack_records

FORMAT = 4
OWN_NAME = re.compile(r"round-(\d{8,})\.(json|server\.safetensors|clients-\d+\.safetensors)")
"""The names of a checkpoint's files."""
KEPT = 2
_logger = logging.getLogger("fedadmm")


class Checkpoint(NamedTuple):
    """State of a run in a checkpoint, without the clients' records."""

    round: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]
    """Plain values that JSON can hold."""


class Checkpoints:
    """Checkpoints of one run in a directory.

    Args:
        directory: Folder of the files, which is created if necessary.
        every: Rounds between two checkpoints; 0 writes one only when the run is interrupted.
            Default 1.

    Attributes:
        warnings: Messages about damaged files.

    Example:
        >>> import tempfile, torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     work = dict(solver=fa.ExactSolver(), checkpoints=fa.Checkpoints(folder))
        ...     first = fa.simulate(fa.FedADMM(rho=1.0), problem, 4, **work)
        ...     more = fa.simulate(fa.FedADMM(rho=1.0), problem, 6, resume=True, **work)
        >>> [record["round"] for record in more.history]
        [5, 6]
    """

    def __init__(self, directory: str | os.PathLike[str], every: int = 1) -> None:
        check("Checkpoints", "every", every, Natural)
        self.directory = Path(directory)
        self.every = every
        self.warnings: list[str] = []
        self._kept: list[Manifest] | None = None
        self._seen: list[int] = []

    def shares(self, directory: Path) -> bool:
        """Whether the checkpoints are in this very folder."""
        return self.directory.resolve() == directory.resolve()

    def latest_round(self) -> int | None:
        """Return the round of the newest valid checkpoint, or None without any."""
        kept = self._good()
        return kept[0].round if kept else None

    def begin(
        self, resume: bool, fingerprint: Mapping[str, Any], store: SnapshotStore
    ) -> Checkpoint | None:
        """Prepare the directory and the store; what to go on from, or None for round 0.

        Without `resume`, checkpoints of an earlier run are removed.
        """
        atomic_files.make_own_directory(self.directory)
        atomic_files.remove_leftovers(self.directory)
        probe = self.directory / f"probe.{os.getpid()}{atomic_files.TEMPORARY}"
        # Before round 0, so that a folder that cannot be written ends the run at once.
        atomic_files.write(probe, b"", durable=False)
        atomic_files.remove(probe)
        if self._rounds() != self._seen:  # another run has been here since they were looked at
            self._kept = None
        if not resume:
            self._kept = []
        kept = self._good()
        if kept:
            _compare(f"the checkpoint in {self.directory}", kept[0].fingerprint, fingerprint)
            self._check_store(kept[0], store)
        self._sweep()
        restored = [self._parts(manifest) for manifest in kept[:KEPT]]
        if resume:
            store.restore(*(restored + [iter(())] * KEPT)[:KEPT])
        if not kept:
            return None
        server = codec.read(self.directory / kept[0].server["file"])
        return Checkpoint(kept[0].round, server.tensors, kept[0].values)

    def client(self, client: int) -> dict[str, Tensor] | None:
        """Return a client's record in the newest checkpoint, or None if it has no state."""
        kept = self._good()
        if not kept:
            raise StateError(f"{self.directory}: holds no checkpoint")
        if kept[0].store["kind"] == disk.DiskStore.kind:
            place = segments.unpack(self._parts(kept[0])).get(client)
            if place is None or place == segments.NOWHERE:
                return None
            directory = self.directory / (kept[0].store["directory"] or "")
            return codec.decode(segments.raw(directory, place)).tensors
        for part in self._parts(kept[0]):
            ids = part.pop("ids").tolist()
            if client in ids:
                return {name: stack[ids.index(client)] for name, stack in part.items()}
        return None

    def save(
        self, checkpoint: Checkpoint, fingerprint: Mapping[str, Any], store: SnapshotStore
    ) -> None:
        """Write what changed since the last checkpoint; the manifest comes last."""
        kept = self._good()
        changed = store.changed()
        inherited = kept[0].parts if kept else []
        recorded = sum(part["records"] for part in inherited) + len(changed)
        if len(changed) == len(store) or recorded > 2 * len(store):
            changed, inherited = store.clients(), []
        try:
            manifest = Manifest(
                checkpoint.round,
                self._write(checkpoint.round, "server", checkpoint.tensors),
                inherited + self._write_parts(checkpoint.round, store.parts(changed)),
                {"kind": store.kind, "directory": self._relative(store.directory)},
                checkpoint.values,
                _plain(fingerprint),
            )
            atomic_files.sync(self.directory)
            codec.write_json(self.directory / manifest_name(manifest.round), manifest._asdict())
        except StateError:
            self._sweep()
            raise
        self._kept = [manifest, *(old for old in kept if old.round != manifest.round)][:KEPT]
        self._sweep()
        store.saved()

    def _write_parts(self, number: int, parts: Iterable[dict[str, Tensor]]) -> list[dict[str, Any]]:
        return [
            self._write(number, f"clients-{index}", part) | {"records": len(part["ids"])}
            for index, part in enumerate(parts)
        ]

    def _write(self, number: int, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        packed = Packed(tensors, {"round": number})
        path = self.directory / f"round-{number:08d}.{name}.safetensors"
        # Its name need not be durable before the manifest's: the folder is synchronised once.
        codec.write(path, packed, durable=False)
        atomic_files.sync(path)
        return {"file": path.name, "sha256": packed.sha256()}

    def _good(self) -> list[Manifest]:
        """Return the valid checkpoints, newest first; damaged ones are added to `warnings`."""
        if self._kept is not None:
            return self._kept
        good: list[Manifest] = []
        bad: list[str] = []
        checked: set[str] = set()
        self._seen = self._rounds()
        for number in self._seen:
            try:
                good.append(self._verified(number, checked))
            except StateError as error:
                bad.append(f"the checkpoint of round {number} is damaged ({error})")
        if bad and not good:
            raise StateError(f"no usable checkpoint in {self.directory}: {'; '.join(bad)}")
        for sentence in bad:
            self.warnings.append(f"{sentence}; the one of round {good[0].round} is used")
            _logger.warning(self.warnings[-1])
        self._kept = good[:KEPT]
        return self._kept

    def _rounds(self) -> list[int]:
        atomic_files.reject_link(self.directory)
        if not atomic_files.exists(self.directory):
            return []
        found = map(OWN_NAME.fullmatch, atomic_files.names(self.directory))
        return sorted((int(one[1]) for one in found if one and one[2] == "json"), reverse=True)

    def _verified(self, number: int, checked: set[str]) -> Manifest:
        path = self.directory / manifest_name(number)
        manifest = understood(path, codec.read_json(path))
        self._read(manifest.server, checked)
        if manifest.store["kind"] == disk.DiskStore.kind:
            directory = self.directory / (manifest.store["directory"] or "")
            segments.verify(directory, segments.unpack(self._parts(manifest)), checked)
        else:
            for part in manifest.parts:
                self._read(part, checked)
        return manifest

    def _read(self, entry: dict[str, Any], checked: set[str]) -> None:
        """Check the digest of a file once."""
        if entry["sha256"] not in checked:
            codec.read(self.directory / entry["file"], entry["sha256"])
            checked.add(entry["sha256"])

    def _parts(self, manifest: Manifest) -> Iterator[dict[str, Tensor]]:
        for part in reversed(manifest.parts):
            yield codec.read(self.directory / part["file"], part["sha256"]).tensors

    def _check_store(self, manifest: Manifest, store: SnapshotStore) -> None:
        expected, found = manifest.store, self._relative(store.directory)
        if expected["kind"] != store.kind or expected["directory"] != found:
            raise StateError(
                f"the checkpoint in {self.directory} was written with client state in "
                f"{_place(expected['kind'], expected['directory'])}, but this run keeps it in "
                f"{_place(store.kind, found)}"
            )

    def _relative(self, directory: Path | None) -> str | None:
        return None if directory is None else os.path.relpath(directory, self.directory)

    def _sweep(self) -> None:
        """Remove the files that no kept checkpoint references, manifests first."""
        named: set[str] = set().union(*(manifest.names() for manifest in self._kept or []))
        ours = (name for name in atomic_files.names(self.directory) if OWN_NAME.fullmatch(name))
        for name in sorted(ours, key=lambda name: not name.endswith(".json")):
            if name not in named:
                atomic_files.remove(self.directory / name)


def _place(kind: str, directory: str | None) -> str:
    return "memory" if directory is None else f"{directory} ({kind})"


def _plain(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprint as JSON gives it back, so that a tuple equals the list it became."""
    return dict(json.loads(json.dumps(dict(fingerprint))))


class MemoryCheckpoints:
    """The newest checkpoint of one run as bytes in memory, for a caller that stores them itself.

    Args:
        content: bytes of a checkpoint by name, replaced in place at every save; empty before the
            first one.
        every: rounds between two saves.

    Example:
        >>> import torch, fedadmm as fa
        >>> from fedadmm.run.checkpoint import MemoryCheckpoints
        >>> problem = fa.Problem([fa.Quadratic(torch.eye(1), torch.ones(1))], initial=torch.ones(1))
        >>> saved = MemoryCheckpoints({}, every=2)
        >>> options = {"solver": fa.ExactSolver(), "checkpoints": saved}
        >>> first = fa.simulate(fa.FedADMM(rho=1.0), problem, 2, **options)
        >>> second = fa.simulate(fa.FedADMM(rho=1.0), problem, 4, resume=True, **options)
        >>> [record["round"] for record in second.history]
        [3, 4]
    """

    directory = None

    def __init__(self, content: dict[str, bytes], every: int = 1) -> None:
        check("MemoryCheckpoints", "every", every, Natural)
        self.content = content
        self.every = every

    def shares(self, directory: Path) -> bool:
        """Whether the checkpoints are in this folder; they are in none."""
        return False

    def begin(
        self, resume: bool, fingerprint: Mapping[str, Any], store: SnapshotStore
    ) -> Checkpoint | None:
        """Restore the store; return the checkpoint to resume from, or None for round 0."""
        if not resume:
            self.content.clear()
        if not self.content:
            return None
        about = json.loads(self.content["about"])
        _compare("the run so far", about["fingerprint"], fingerprint)
        parts = [codec.decode(self.content[f"part {k}"]).tensors for k in range(about["parts"])]
        memory = MemoryStore()
        memory.template = store.template
        memory.restore(parts, ())
        for client in memory.clients():
            record = memory.get(client)
            assert record is not None, "a client of a store has a record"
            store.commit(client, record, about["round"] - 1)
        server = codec.decode(self.content["server"])
        return Checkpoint(about["round"], dict(server.tensors), about["values"])

    def save(
        self, checkpoint: Checkpoint, fingerprint: Mapping[str, Any], store: SnapshotStore
    ) -> None:
        """Replace the checkpoint by that of a later round."""
        parts = list(stack_records(store, store.clients()))
        about = {
            "round": checkpoint.round,
            "values": checkpoint.values,
            "fingerprint": _plain(fingerprint),
            "parts": len(parts),
        }
        found = {"about": json.dumps(about).encode()}
        found["server"] = codec.encode(codec.Packed(checkpoint.tensors, {}))
        for k, part in enumerate(parts):
            found[f"part {k}"] = codec.encode(codec.Packed(part, {}))
        self.content.clear()
        self.content.update(found)
        store.saved()


def _compare(place: str, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    now = _plain(given)
    missing = "missing"
    differing = [
        f"{key} is {_shown(stored, key, missing)} there and {_shown(now, key, missing)} here"
        for key in sorted({*stored, *now})
        if stored.get(key, missing) != now.get(key, missing)
    ]
    if differing:
        raise StateError(f"{place} belongs to another configuration: " + "; ".join(differing))


def _shown(values: Mapping[str, Any], key: str, missing: str) -> str:
    return json.dumps(values[key]) if key in values else missing


def manifest_name(number: int) -> str:
    """The file of a round's manifest."""
    return f"round-{number:08d}.json"


class Manifest(NamedTuple):
    """The contents of a manifest."""

    round: int
    server: dict[str, str]
    parts: list[dict[str, Any]]
    store: dict[str, Any]
    values: dict[str, Any]
    fingerprint: dict[str, Any]
    format: int = FORMAT

    def names(self) -> set[str]:
        """Return all files of this checkpoint."""
        return {manifest_name(self.round), self.server["file"]} | {p["file"] for p in self.parts}


def understood(path: Path, document: Mapping[str, Any]) -> Manifest:
    """A manifest whose entries are what they should be."""
    try:
        manifest = Manifest(**document)
    except TypeError:
        raise StateError(f"{path} is damaged: it lacks a field") from None
    if manifest.format != FORMAT:
        raise StateError(
            f"{path} has format {manifest.format}, but {FORMAT} is understood; {ANOTHER_VERSION}"
        )
    whole = (
        type(manifest.round) is int
        and path.name == manifest_name(manifest.round)
        and isinstance(manifest.parts, list)
        and all(_has(part, file=str, sha256=str, records=int) for part in manifest.parts)
        and _has(manifest.server, file=str, sha256=str)
        and all(OWN_NAME.fullmatch(part["file"]) for part in (manifest.server, *manifest.parts))
        and _has(manifest.store, kind=str, directory=str | NoneType)
        and _is_path(manifest.store["directory"] or "")
        and isinstance(manifest.values, dict)
        and isinstance(manifest.fingerprint, dict)
    )
    if not whole:
        raise StateError(f"{path} is damaged: a field is not what it should be")
    return manifest


def _has(entry: object, **kinds: type | UnionType) -> bool:
    """Whether an entry of a manifest has values of these kinds."""
    return isinstance(entry, dict) and all(
        isinstance(entry.get(key, ...), kind) for key, kind in kinds.items()
    )


def _is_path(text: str) -> bool:
    """Whether the system could have a folder of this name."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
