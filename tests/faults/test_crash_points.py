"""Dying before the k-th call to the file system, for every k: each leaves a resumable directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedadmm.run.state import Checkpoints, files
from support.resumable import fingerprints, make_store, run, untimed

ROUNDS = 4
"""Enough for a third checkpoint that sweeps the first, and for one that merges the parts."""


class Death(BaseException):
    """Not an Exception: nothing may catch it, as nothing can catch a kill."""


class Disk:
    """Counts calls, dies before one of them, and knows which files were synchronised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last_call: int, torn: bool) -> None:
        self.calls = 0
        self._last_call = last_call
        self._torn = torn
        self.synchronised: set[int] = set()
        monkeypatch.setattr(files.os, "replace", self._counted(os.replace))
        monkeypatch.setattr(files.os, "fsync", self._counted(self._fsync))
        monkeypatch.setattr(Path, "unlink", self._counted(Path.unlink))
        monkeypatch.setattr(files, "_save", self._counted(files._save))
        monkeypatch.setattr(files, "_save_text", self._counted(files._save_text))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self._last_call:
                if self._torn and call in (SAVE, SAVE_TEXT):
                    call(*arguments)
                    os.truncate(arguments[0], os.path.getsize(arguments[0]) // 2)
                raise Death
            result = call(*arguments, **options)
            if call in (SAVE, SAVE_TEXT):  # new contents, perhaps in the place of a lost file
                self.synchronised.discard(arguments[0].stat().st_ino)
            return result

        return counted

    def _fsync(self, handle: int) -> None:
        """Only noted: the power that is lost here is not the machine's."""
        self.synchronised.add(os.fstat(handle).st_ino)

    def lose_power(self, directory: Path) -> None:
        """Empty every file whose contents had not reached the disk."""
        for path in directory.rglob("*"):
            if path.is_file() and path.stat().st_ino not in self.synchronised:
                os.truncate(path, 0)


SAVE, SAVE_TEXT = files._save, files._save_text


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_every_crash_point_leaves_a_resumable_run(kind: str, tmp_path: Path) -> None:
    """Every other death is a power failure, and every other write that it meets is torn."""
    reference = run(ROUNDS, evaluate=False)
    died = True
    number = 0
    while died:
        number += 1
        directory = tmp_path / str(number)
        with pytest.MonkeyPatch.context() as monkeypatch:
            disk = Disk(monkeypatch, number, torn=number % 4 < 2)
            try:
                save_to(directory, kind, resume=False)
                died = False
            except Death:
                if number % 2:
                    disk.lose_power(directory)
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(files.os, "fsync", lambda handle: None)
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
    """Two checkpoints, the files they name, and nothing else."""
    assert not list(directory.rglob("*.tmp"))
    manifests = sorted(directory.glob("*.json"))
    assert [path.name for path in manifests][-1] == f"round-{ROUNDS:08d}.json"
    assert len(manifests) <= 2
    documents = [files.read_json(path) for path in manifests]
    parts = {part["file"] for document in documents for part in document["parts"]}
    servers = {document["server"]["file"] for document in documents}
    names = {path.name for path in directory.iterdir() if path.is_file()}
    assert names == parts | servers | {path.name for path in manifests}
    if kind == "disk":
        named = set()
        for document in documents:
            newest: dict[int, int] = {}
            for part in document["parts"]:
                tensors = files.read_tensors(directory / part["file"]).tensors
                pairs = zip(tensors["ids"].tolist(), tensors["versions"].tolist(), strict=True)
                newest.update(pairs)
            named |= {f"{client}-{version}.safetensors" for client, version in newest.items()}
        assert {path.name for path in directory.glob("clients/*/*")} == named
