"""Whole files: in which order the disk is asked, and what is left when it refuses."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from fedadmm.core import atomic_files
from fedadmm.core.errors import StateError


class Noting(atomic_files.Disk):
    """Writes down what changes the disk, and refuses one kind of call on demand."""

    def __init__(self, refused: str = "", number: int = errno.EIO) -> None:
        self.calls: list[tuple[str, str]] = []
        self._refused, self._number = refused, number

    def _note(self, call: str, path: Path) -> None:
        self.calls.append((call, path.name))
        if call == self._refused:
            raise OSError(self._number, os.strerror(self._number))

    def create(self, path: Path) -> BinaryIO:
        self._note("create", path)
        return super().create(path)

    def sync(self, path: Path) -> None:
        self._note("sync", path)
        super().sync(path)

    def replace(self, source: Path, target: Path) -> None:
        self._note("replace", target)
        super().replace(source, target)

    def make_directory(self, path: Path) -> None:
        self._note("make", path)
        super().make_directory(path)


def test_a_file_and_its_name_are_durable_when_it_is_written(tmp_path: Path) -> None:
    disk, folder = Noting(), tmp_path.name
    with atomic_files.using(disk):
        atomic_files.write(tmp_path / "a", b"1")
    temporary = f"a.{os.getpid()}.tmp"
    after = [("sync", temporary), ("replace", "a"), ("sync", folder)]
    assert disk.calls == [("create", temporary), *after]
    assert (tmp_path / "a").read_bytes() == b"1"


@pytest.mark.parametrize("refused", ["create", "sync", "replace"])
def test_a_rejected_write_leaves_the_old_file_and_nothing_else(
    refused: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"old")
    told = pytest.raises(StateError, match=r"cannot write .*/a: Input/output error")
    with atomic_files.using(Noting(refused)), told:
        atomic_files.write(tmp_path / "a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_new_folder_is_durable_with_all_its_parents(tmp_path: Path) -> None:
    disk = Noting()
    with atomic_files.using(disk):
        atomic_files.make_directory(tmp_path / "a" / "b")
    made = [("make", "a"), ("sync", tmp_path.name), ("make", "b"), ("sync", "a")]
    assert disk.calls == made
    disk.calls.clear()
    with atomic_files.using(disk):
        atomic_files.make_directory(
            tmp_path / "a" / "b"
        )  # perhaps made by somebody who died at once
    assert ("sync", "a") in disk.calls


def test_a_folder_whose_parent_may_not_be_read_is_no_error(tmp_path: Path) -> None:
    with atomic_files.using(Noting("sync", errno.EACCES)):
        atomic_files.make_directory(tmp_path / "a")
    with (
        atomic_files.using(Noting("sync", errno.EIO)),
        pytest.raises(StateError, match="Input/output"),
    ):
        atomic_files.make_directory(tmp_path / "a")


def test_the_first_durable_line_makes_its_file_durable_too(tmp_path: Path) -> None:
    disk = Noting()
    with atomic_files.using(disk):
        atomic_files.append(tmp_path / "a", b"1\n", durable=True)
        atomic_files.append(tmp_path / "a", b"2\n", durable=True)
    assert disk.calls == [("sync", "a"), ("sync", tmp_path.name), ("sync", "a")]
    assert (tmp_path / "a").read_bytes() == b"1\n2\n"


def test_a_file_that_cannot_be_read_is_not_one_that_is_not_there(tmp_path: Path) -> None:
    assert atomic_files.read_if_there(tmp_path / "a") is None
    (tmp_path / "a").mkdir()
    with pytest.raises(StateError, match=r"cannot read .*Is a directory"):
        atomic_files.read_if_there(tmp_path / "a")
