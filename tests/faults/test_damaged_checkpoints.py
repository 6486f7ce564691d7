"""Damaged files and full disks: the checkpoint before is used, and nobody is left in the dark."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import fedadmm as fa
from fedadmm.core import atomic_files as core_files, codec
from fedadmm.run.checkpoint import Checkpoints
from support.resumable import assert_continued, contents, interrupted, make_store, run


def flipped(path: Path, place: float = 0.5) -> None:
    """One bit; in a safetensors file the middle is in the header here, and the end in the data."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 0x10
    path.write_bytes(data)


def flipped_late(path: Path) -> None:
    flipped(path, 0.97)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def removed(path: Path) -> None:
    path.unlink()


def bracketed(path: Path) -> None:
    """Deeper than any parser goes."""
    path.write_bytes(b"[" * 200_000)


def forged(field: str, value: object) -> Any:
    """A manifest with its own right digest, one field of which is nonsense."""

    def damage(path: Path) -> None:
        codec.write_json(path, codec.read_json(path) | {field: value})

    return damage


FORGED = {
    "round": 7,
    "server": {"file": "x"},
    "parts": [{"file": "x", "sha256": "x"}],
    "store": {"kind": "memory"},
    "values": [],
    "fingerprint": None,
}


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


@pytest.mark.parametrize("damage", [flipped, flipped_late, cut, emptied, removed])
@pytest.mark.parametrize("which", ["server.safetensors", "clients-0.safetensors", "record"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    which: str,
    damage: Any,
    saved: tuple[str, Path],
    reference: fa.Result,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kind, directory = copied(saved, tmp_path)
    checkpoint = directory / "checkpoint"
    victim = checkpoint / f"round-00000006.{which}"
    if which == "record":
        victim = own_file(kind, checkpoint, reference.history[5]["cohort"]["clients"][0])
    damage(victim)
    checkpoints = Checkpoints(checkpoint)
    with caplog.at_level(logging.WARNING, "fedadmm"):
        assert checkpoints.latest_round() == 5
    assert "the checkpoint of round 6 is damaged" in caplog.text
    assert "the one of round 5 is used" in caplog.text
    assert victim.name in caplog.text
    assert_goes_on(kind, directory, checkpoints, reference)
    assert len(checkpoints.warnings) == 1


@pytest.mark.parametrize(
    "damage",
    [flipped, flipped_late, cut, emptied, bracketed, *(forged(*one) for one in FORGED.items())],
    ids=["flipped", "flipped late", "cut", "emptied", "bracketed", *FORGED],
)
def test_a_damaged_manifest_gives_way_to_the_one_before(
    damage: Any, saved: tuple[str, Path], reference: fa.Result, tmp_path: Path
) -> None:
    kind, directory = copied(saved, tmp_path)
    damage(directory / "checkpoint" / "round-00000006.json")
    checkpoints = Checkpoints(directory / "checkpoint")
    assert_goes_on(kind, directory, checkpoints, reference)
    assert "round-00000006.json is damaged" in checkpoints.warnings[0]


def copied(saved: tuple[str, Path], tmp_path: Path) -> tuple[str, Path]:
    kind, original = saved
    shutil.copytree(original, tmp_path / "run")
    return kind, tmp_path / "run"


def own_file(kind: str, checkpoint: Path, client: int) -> Path:
    """Where the newest record of a client is that took part in round 6."""
    path = checkpoint / "round-00000006.clients-0.safetensors"
    if kind == "memory":
        return path
    part = codec.read(path).tensors
    number = part["segment"][part["ids"].tolist().index(client)]
    return checkpoint / "clients" / f"segment-{number:08d}.records"


def assert_goes_on(
    kind: str, directory: Path, checkpoints: Checkpoints, reference: fa.Result
) -> None:
    """From round 5, whose successor is damaged."""
    result = run(8, store=make_store(kind, directory), checkpoints=checkpoints, resume=True)
    assert_continued(result, reference, 5)
    assert Checkpoints(directory / "checkpoint").latest_round() == 8


def test_with_every_checkpoint_damaged_the_directory_is_named(
    saved: tuple[str, Path], tmp_path: Path
) -> None:
    kind, directory = copied(saved, tmp_path)
    for path in directory.rglob("*.server.safetensors"):
        flipped_late(path)
    before = contents(directory)
    with pytest.raises(fa.errors.StateError, match="no usable checkpoint in") as refused:
        Checkpoints(directory / "checkpoint").latest_round()
    assert str(directory / "checkpoint") in str(refused.value)
    with pytest.raises(fa.errors.StateError, match="no usable checkpoint in"):
        run(
            8,
            store=make_store(kind, directory),
            checkpoints=Checkpoints(directory / "checkpoint"),
            resume=True,
        )
    assert contents(directory) == before


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("failing", range(1, 4))
def test_a_full_disk_leaves_the_checkpoint_before(failing: int, kind: str, tmp_path: Path) -> None:
    """The file system refuses the first, second or third file of the fourth checkpoint."""
    store = make_store(kind, tmp_path)
    checkpoints = Checkpoints(tmp_path / "checkpoint")
    left = [failing]

    class Full(core_files.Disk):
        def create(self, path: Path) -> BinaryIO:
            stream = super().create(path)
            if path.name.startswith("round-00000004"):
                left[0] -= 1
                if left[0] == 0:
                    stream.write(b"half")
                    stream.close()
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return stream

    told = pytest.raises(fa.errors.StateError, match=r"round-00000004.*No space left on device")
    with core_files.using(Full()), told:
        run(8, store=store, checkpoints=checkpoints)
    assert not [p for p in tmp_path.rglob("*") if "round-00000004" in p.name]
    again = Checkpoints(tmp_path / "checkpoint")
    assert again.latest_round() == 3
    result = run(8, store=make_store(kind, tmp_path), checkpoints=again, resume=True)
    assert_continued(result, run(8), 3)
