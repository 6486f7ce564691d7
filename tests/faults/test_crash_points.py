"""Dying before the k-th call to the file system, for every k: each leaves a resumable directory."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from fedadmm.core import atomic_files as core_files, codec
from fedadmm.run.checkpoint import Checkpoints
from support.resumable import fingerprints, make_store, run, untimed

ROUNDS = 4
"""Enough for a third checkpoint that sweeps the first, and for one that merges the parts."""


class Death(BaseException):
    """Not an Exception: nothing may catch it, as nothing can catch a kill."""


class Disk(core_files.Disk):
    """Counts calls, dies before one of them, and knows which files were synchronised."""

    def __init__(self, last_call: int, torn: bool) -> None:
        self.calls = 0
        self._last_call = last_call
        self._torn = torn
        self.synchronised: set[int] = set()

    def _count(self) -> None:
        """The dead do nothing: not even what they would do about an error."""
        self.calls += 1
        if self.calls >= self._last_call:
            raise Death

    def create(self, path: Path) -> BinaryIO:
        last = self.calls + 1 == self._last_call
        if not (self._torn and last):
            self._count()
        stream = super().create(path)
        # New contents, perhaps in the place of a lost file.
        self.synchronised.discard(path.stat().st_ino)
        return Torn(self, stream) if last else stream

    def append(self, path: Path, data: bytes) -> None:
        """A death may leave half of what was to be written."""
        if self._torn and self.calls + 1 == self._last_call:
            super().append(path, data[: len(data) // 2])
        self._count()
        super().append(path, data)
        self.synchronised.discard(path.stat().st_ino)

    def sync(self, path: Path) -> None:
        """Only noted: the power that is lost here is not the machine's."""
        self._count()
        self.synchronised.add(path.stat().st_ino)

    def replace(self, source: Path, target: Path) -> None:
        self._count()
        super().replace(source, target)

    def remove(self, path: Path) -> None:
        self._count()
        super().remove(path)

    def lose_power(self, directory: Path) -> None:
        """Empty every file whose contents had not reached the disk."""
        for path in directory.rglob("*"):
            if path.is_file() and path.stat().st_ino not in self.synchronised:
                os.truncate(path, 0)


class Unhurried(core_files.Disk):
    """Nobody waits for the disk: no power is cut here."""

    def sync(self, path: Path) -> None:
        pass


class Torn(io.BytesIO):
    """Writes half of what it is given, and dies."""

    def __init__(self, disk: Disk, stream: BinaryIO) -> None:
        super().__init__()
        self._disk, self._stream = disk, stream

    def write(self, data: Any) -> int:
        with self._stream:
            self._stream.write(data[: len(data) // 2])
        self._disk._count()
        raise AssertionError("it should have died")


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_every_crash_point_leaves_a_resumable_run(kind: str, tmp_path: Path) -> None:
    """Every other death is a power failure, and every other write that it meets is torn."""
    reference = run(ROUNDS, evaluate=False)
    died = True
    number = 0
    while died:
        number += 1
        directory = tmp_path / str(number)
        disk = Disk(number, torn=number % 4 < 2)
        with core_files.using(disk):
            try:
                save_to(directory, kind, resume=False)
                died = False
            except Death:
                if number % 2:
                    disk.lose_power(directory)
        with core_files.using(Unhurried()):
            result = save_to(directory, kind, resume=True)
        assert fingerprints(result) == fingerprints(reference)
        done = len(result.history)
        assert untimed(result.history) == untimed(reference.history)[ROUNDS - done :]
        assert_nothing_left_behind(directory / "checkpoint", kind)
    assert number > 40, "the crash points were not met"


def save_to(directory: Path, kind: str, resume: bool) -> Any:
    store = make_store(kind, directory)
    checkpoints = Checkpoints(directory / "checkpoint")
    options: Any = {"checkpoints": checkpoints, "resume": resume, "evaluate": False}
    return run(ROUNDS, store=store, **options)


def assert_nothing_left_behind(directory: Path, kind: str) -> None:
    """Two checkpoints, the files they name, the lock, and nothing else."""
    assert not list(directory.rglob("*.tmp"))
    manifests = sorted(directory.glob("*.json"))
    assert [path.name for path in manifests][-1] == f"round-{ROUNDS:08d}.json"
    assert len(manifests) <= 2
    documents = [codec.read_json(path) for path in manifests]
    parts = {part["file"] for document in documents for part in document["parts"]}
    servers = {document["server"]["file"] for document in documents}
    names = {path.name for path in directory.iterdir() if path.is_file()}
    assert names == parts | servers | {path.name for path in manifests} | {".lock"}
    if kind == "disk":
        named = set()
        for document in documents:
            newest: dict[int, int] = {}
            for part in document["parts"]:
                tensors = codec.read(directory / part["file"]).tensors
                pairs = zip(tensors["ids"].tolist(), tensors["segment"].tolist(), strict=True)
                newest.update(pairs)
            named |= {f"segment-{number:08d}.records" for number in newest.values()}
        assert {path.name for path in directory.glob("clients/*.records")} == named
