"""Atomic and durable files, and locks of folders.

A file is written under a temporary name, synchronised, and renamed; its folder is synchronised
too.  A crash between any two of these calls leaves the old file or the new one, and at worst a
temporary file, which `remove_leftovers` takes away at the next start.

All calls to the operating system are those of `Disk`; a simulation puts its own in its place.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from filelock import FileLock, Timeout

from fedadmm.core import clock
from fedadmm.core.errors import StateError

TEMPORARY = ".tmp"
_LEFTOVER = re.compile(rf".+\.\d+{re.escape(TEMPORARY)}")
"""Names of temporary files: target, purpose and process."""
_LOCK = ".lock"
_LOOK_AGAIN = 0.05


class Held(Protocol):
    """A lock that is held."""

    def release(self) -> None:
        """Release the lock."""


def _sign(handle: int) -> None:
    """Write the id of this process into the lock's file."""
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())


class Disk:
    """Calls to the operating system, on which the other functions are based."""

    def read(self, path: Path, begin: int = 0, size: int = -1) -> bytes:
        """Return `size` bytes of a file from `begin` on, or fewer at its end; all by default.

        A pipe or a device is rejected, because reading it could block forever.
        """
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        with path.open("rb") as stream:
            stream.seek(begin)
            return stream.read(size)

    def is_link(self, path: Path) -> bool:
        """Return whether a path is a symbolic link."""
        return path.is_symlink()

    def create(self, path: Path) -> BinaryIO:
        """Open a new or truncated file for writing."""
        return path.open("wb")

    def append(self, path: Path, data: bytes) -> None:
        """Append to a file."""
        with path.open("ab") as stream:
            stream.write(data)

    def reserve(self, path: Path, size: int) -> None:
        """Create a file that occupies this many bytes."""
        with path.open("wb") as stream:
            if hasattr(os, "posix_fallocate"):  # neither macOS nor Windows
                os.posix_fallocate(stream.fileno(), 0, size)
            else:
                stream.write(bytes(size))

    def sync(self, path: Path) -> None:
        """Flush a file, or the entries of a folder, to the disk."""
        if os.name == "nt" and path.is_dir():
            return  # Windows opens no folder, and keeps names by itself
        handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def replace(self, source: Path, target: Path) -> None:
        """Atomically rename `source` to `target`, replacing an existing file."""
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        path.unlink(missing_ok=True)

    def exists(self, path: Path) -> bool:
        """Return whether a path exists; raise an error if this cannot be determined."""
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self, folder: Path) -> list[str]:
        """Return the sorted contents of a folder."""
        return sorted(os.listdir(folder))

    def make_directory(self, path: Path) -> None:
        """Create a folder in an existing one, unless it exists."""
        path.mkdir(exist_ok=True)

    def protect(self, path: Path, mode: int) -> None:
        """Set the permissions of a file."""
        path.chmod(mode)

    def lock(self, path: Path) -> Held | None:
        """Acquire a lock, which the system releases when the process ends; None if it is held."""
        held = FileLock(
            path,
            thread_local=False,
            fallback_to_soft=False,
            preserve_lock_file=True,
            on_acquired=_sign,
        )
        try:
            held.acquire(blocking=False)
        except Timeout:
            return None
        return held


_disk = Disk()


@contextmanager
def using(disk: Disk) -> Iterator[None]:
    """Replace the calls to the operating system, to simulate another disk."""
    global _disk
    before, _disk = _disk, disk
    try:
        yield
    finally:
        _disk = before


class explained:  # noqa: N801
    """Convert an OSError into a StateError that names file and cause."""

    def __init__(self, what: str, path: Path) -> None:
        self._what, self._path = what, path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, OSError):
            reason = error.strerror or error
            raise StateError(f"cannot {self._what} {self._path}: {reason}") from error


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a stream whose bytes replace the file atomically when it is closed without an error.

    `durable` waits until the file survives a power failure.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with _disk.create(temporary) as stream:
            yield stream
        if durable:
            _disk.sync(temporary)
        _disk.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            _disk.remove(temporary)
        raise
    if durable:
        _disk.sync(path.parent)


def write(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file atomically."""
    with explained("write", path), replacing(path, durable=durable) as stream:
        stream.write(data)


def append(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Append to a file; `durable` waits until the data survive a power failure."""
    with explained("write", path):
        fresh = durable and not _disk.exists(path)
        _disk.append(path, data)
        if durable:
            _disk.sync(path)
        if fresh:
            _disk.sync(path.parent)


def read(path: Path, begin: int = 0, size: int = -1) -> bytes:
    """Return `size` bytes of a file from `begin` on, or fewer at its end; all by default."""
    with explained("read", path):
        return _disk.read(path, begin, size)


def read_if_there(path: Path, begin: int = 0, size: int = -1) -> bytes | None:
    """Return the bytes as `read` does, or None if there is no file."""
    with explained("read", path):
        try:
            return _disk.read(path, begin, size)
        except FileNotFoundError:
            return None


def replace(source: Path, target: Path) -> None:
    """Rename a file durably, so that the new name survives a power failure."""
    with explained("replace", target):
        _disk.replace(source, target)
        _disk.sync(target.parent)


def exists(path: Path) -> bool:
    """Return whether a path exists."""
    with explained("look for", path):
        return _disk.exists(path)


def names(folder: Path) -> list[str]:
    """Return the sorted contents of a folder."""
    with explained("look into", folder):
        return _disk.names(folder)


def make_directory(path: Path) -> None:
    """Create a folder and its parents durably.

    One that is there already may have been made by a process that died before that was sure.
    """
    with explained("create the folder", path):
        missing = [path]
        while not _disk.exists(missing[-1].parent):
            missing.append(missing[-1].parent)
        for folder in reversed(missing):
            _disk.make_directory(folder)
            with suppress(PermissionError):  # who may not look into the parent did not make it
                _disk.sync(folder.parent)


def make_own_directory(path: Path) -> None:
    """Create a folder that belongs to fedadmm; a link is rejected."""
    reject_link(path)
    make_directory(path)


def reject_link(path: Path) -> None:
    """Raise an error for a folder that is a link, whose files may belong to other programs."""
    with explained("look for", path):
        if _disk.is_link(path):
            raise StateError(
                f"{path} is a link to another folder, in which files would be deleted; put a real "
                "folder in its place"
            )


def make_private_directory(path: Path) -> None:
    """Create a folder that other users of the machine cannot read."""
    make_own_directory(path)
    with explained("protect", path):
        _disk.protect(path, 0o700)


def reserve(path: Path, size: int) -> None:
    """Check whether this many bytes can be written to a folder."""
    with explained("write", path):
        try:
            _disk.reserve(path, size)
        finally:
            with suppress(OSError):
                _disk.remove(path)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    with explained("synchronise", path):
        _disk.sync(path)


def remove(path: Path) -> None:
    """Remove a file that is no longer referenced."""
    with explained("remove", path):
        _disk.remove(path)


def remove_leftovers(folder: Path) -> None:
    """Remove incomplete files of a crash; no other process may use the folder."""
    for name in names(folder):
        if _LEFTOVER.fullmatch(name):
            remove(folder / name)


@contextmanager
def locked(folder: Path, timeout: float) -> Iterator[None]:
    """Hold a folder, made if need be; raise after `timeout` seconds of another process holding it.

    The system lets go of the lock when the process ends, killed or not, also when workers that it
    forked live on.  The file stays behind: who removes it may remove the one that another process
    has just locked.
    """
    path, deadline = folder / _LOCK, clock.now() + timeout
    make_directory(folder)
    while True:
        with explained("lock", path):
            held = _disk.lock(path)
        if held is not None:
            break
        if clock.now() > deadline:
            raise StateError(
                f"{folder} is in use by process {_owner(path)}; waited {timeout:g} s for it to end"
            )
        clock.sleep(_LOOK_AGAIN)
    try:
        yield
    finally:
        held.release()


def _owner(path: Path) -> str:
    """Return the process that holds a lock, from the lock's file."""
    with explained("read", path):
        try:
            text = _disk.read(path)[:20].decode(errors="replace").strip()
        except PermissionError:  # Windows refuses to read what is locked
            text = ""
    return text if text.isdecimal() else "unknown"


def is_abandoned(folder: Path) -> bool:
    """Return whether a folder contains nothing except a free lock."""
    if names(folder) != [_LOCK]:
        return False
    try:
        with locked(folder, 0):
            return True
    except StateError:
        return False
