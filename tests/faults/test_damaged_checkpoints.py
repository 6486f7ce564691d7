"""Damaged files and full disks: the checkpoint before is used, and nobody is left in the dark."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import fedadmm as fa
from fedadmm.state import Checkpoints, files
from support.resumable import assert_continued, contents, interrupted, make_store, run


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def removed(path: Path) -> None:
    path.unlink()


@pytest.fixture(scope="module")
def reference() -> fa.Result:
    return run(8)


@pytest.fixture(scope="module", params=["memory", "disk"])
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A run that ended after round 6 of 8."""
    directory = tmp_path_factory.mktemp("saved")
    interrupted(directory, 6, kind=request.param)
    return request.param, directory


@pytest.mark.parametrize("damage", [flipped, cut, emptied, removed])
@pytest.mark.parametrize("which", ["json", "server.safetensors", "clients-0.safetensors", "record"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    which: str,
    damage: Any,
    saved: tuple[str, Path],
    reference: fa.Result,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kind, original = saved
    directory = tmp_path / "run"
    shutil.copytree(original, directory)
    checkpoint = directory / "checkpoint"
    victim = checkpoint / f"round-00000006.{which}"
    if which == "record":
        if kind == "memory":
            pytest.skip("client records are in the checkpoint itself")
        part = files.read_tensors(checkpoint / "round-00000006.clients-0.safetensors").tensors
        client = reference.history[5]["clients"][0]
        version = part["versions"][part["ids"].tolist().index(client)]
        victim = checkpoint / "clients" / "0000" / f"{client}-{version}.safetensors"
    damage(victim)
    checkpoints = Checkpoints(checkpoint)
    if which == "json" and damage is removed:
        assert checkpoints.latest_round() == 5
        return
    with caplog.at_level(logging.WARNING, "fedadmm"):
        assert checkpoints.latest_round() == 5
    assert "the checkpoint of round 6 is damaged" in caplog.text
    assert "the one of round 5 is used" in caplog.text
    assert victim.name in caplog.text
    assert len(checkpoints.warnings) == 1
    result = run(8, store=make_store(kind, directory), checkpoints=checkpoints, resume=True)
    assert_continued(result, reference, 5)
    assert len(checkpoints.warnings) == 1
    assert Checkpoints(checkpoint).latest_round() == 8


def test_with_every_checkpoint_damaged_the_directory_is_named(
    saved: tuple[str, Path], tmp_path: Path
) -> None:
    kind, original = saved
    directory = tmp_path / "run"
    shutil.copytree(original, directory)
    for path in directory.rglob("*.server.safetensors"):
        flipped(path)
    before = contents(directory)
    with pytest.raises(fa.StateError, match="no usable checkpoint in") as refused:
        Checkpoints(directory / "checkpoint").latest_round()
    assert str(directory / "checkpoint") in str(refused.value)
    with pytest.raises(fa.StateError, match="no usable checkpoint in"):
        run(
            8,
            store=make_store(kind, directory),
            checkpoints=Checkpoints(directory / "checkpoint"),
            resume=True,
        )
    assert contents(directory) == before


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("failing", range(1, 4))
def test_a_full_disk_leaves_the_checkpoint_before(
    failing: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system refuses the first, second or third file of the fourth checkpoint."""
    store = make_store(kind, tmp_path)
    checkpoints = Checkpoints(tmp_path / "checkpoint")
    save, save_text = files._save, files._save_text
    left = [failing]

    def limited(call: Any) -> Any:
        def write(path: Path, *arguments: Any) -> None:
            if path.name.startswith("round-00000004"):
                left[0] -= 1
                if left[0] == 0:
                    path.write_bytes(b"half")
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            call(path, *arguments)

        return write

    monkeypatch.setattr(files, "_save", limited(save))
    monkeypatch.setattr(files, "_save_text", limited(save_text))
    with pytest.raises(fa.StateError, match=r"round-00000004.*No space left on device"):
        run(8, store=store, checkpoints=checkpoints)
    assert not [p for p in tmp_path.rglob("*") if "00000004" in p.name]
    again = Checkpoints(tmp_path / "checkpoint")
    assert again.latest_round() == 3
    monkeypatch.undo()
    result = run(8, store=make_store(kind, tmp_path), checkpoints=again, resume=True)
    assert_continued(result, run(8), 3)
