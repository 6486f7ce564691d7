"""A disk that knows what is durable: what a file holds, and what a power cut would leave of it.

The model is as strict as POSIX: synchronising a file says nothing about its name, and a folder's
names reach the disk with its own synchronisation only.  A power cut keeps the first few of the
changes to a folder since then, and of a file that was not synchronised anything between nothing
and all.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

from fedadmm.core import atomic_files


class Inode:
    """A file: what it holds, and what of it is durable (None: not even its length)."""

    def __init__(self, data: bytes = b"", durable: bytes | None = None) -> None:
        self.data = data
        self.durable = durable


class Folder:
    """Names, those that are durable, and the changes since then, each of them atomic."""

    def __init__(self) -> None:
        self.entries: dict[str, Inode | Folder] = {}
        self.durable: dict[str, Inode | Folder] = {}
        self.changes: list[dict[str, Inode | Folder | None]] = []

    def change(self, changes: dict[str, Inode | Folder | None]) -> None:
        """Names that get another meaning, or none, in one step."""
        self.changes.append(changes)
        _apply(self.entries, changes)

    def sync(self) -> None:
        """All names are durable now."""
        self.durable, self.changes = dict(self.entries), []


def _apply(entries: dict[str, Any], changes: dict[str, Inode | Folder | None]) -> None:
    for name, entry in changes.items():
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry


def refusal(number: int, path: object) -> OSError:
    """What the operating system says when it does not."""
    return OSError(number, os.strerror(number), str(path))


class SimulatedDisk(atomic_files.Disk):
    """The disks of all machines: `/server/…`, `/site-0/…`.

    `before(operation, path)` is asked before every call; it may raise, and answers for a write how
    much of it happens before the machine or the process stops (None: all).
    """

    def __init__(self, before: Callable[[str, str], float | None]) -> None:
        self._before = before
        self._stop: Callable[[], None] = lambda: None
        self.root = Folder()
        self.replaced: Callable[[str, bytes | None, bytes], None] = lambda *_: None
        """Told of every file that took another's place: path, old and new contents."""
        self._locks: dict[str, object] = {}

    # what the production code calls -----------------------------------------------------------

    def read(self, path: Path, begin: int = 0, size: int = -1) -> bytes:
        self._before("read", str(path))
        return self._file(path).data[begin : None if size < 0 else begin + size]

    def create(self, path: Path) -> BinaryIO:
        self._before("create", str(path))
        folder = self._folder(path.parent)
        if isinstance(folder.entries.get(path.name), Folder):
            raise refusal(errno.EISDIR, path)
        inode = Inode()
        folder.change({path.name: inode})
        return _Stream(self, inode, str(path))

    def append(self, path: Path, data: bytes) -> None:
        self._before("create", str(path))
        folder = self._folder(path.parent)
        inode = folder.entries.get(path.name)
        if inode is None:
            inode = Inode()
            folder.change({path.name: inode})
        assert isinstance(inode, Inode)
        self.put(inode, str(path), data)

    def reserve(self, path: Path, size: int) -> None:
        self._before("write", str(path))
        self._folder(path.parent).change({path.name: Inode()})

    def sync(self, path: Path) -> None:
        self._before("sync", str(path))
        found = self._find(path)
        if isinstance(found, Folder):
            found.sync()
        else:
            found.durable = found.data

    def replace(self, source: Path, target: Path) -> None:
        self._before("replace", str(target))
        folder = self._folder(target.parent)
        assert source.parent == target.parent, "a rename between folders is not atomic for ever"
        moved = self._file(source)
        old = folder.entries.get(target.name)
        folder.change({source.name: None, target.name: moved})
        self.replaced(str(target), old.data if isinstance(old, Inode) else None, moved.data)

    def remove(self, path: Path) -> None:
        self._before("remove", str(path))
        folder = self._folder(path.parent)
        if path.name in folder.entries:
            folder.change({path.name: None})

    def exists(self, path: Path) -> bool:
        self._before("look", str(path))
        try:
            self._find(path)
        except FileNotFoundError:
            return False
        return True

    def is_link(self, path: Path) -> bool:
        return False

    def names(self, folder: Path) -> list[str]:
        self._before("look", str(folder))
        return sorted(self._folder(folder).entries)

    def make_directory(self, path: Path) -> None:
        self._before("make", str(path))
        parent = self._folder(path.parent)
        if path.name not in parent.entries:
            parent.change({path.name: Folder()})

    def protect(self, path: Path, mode: int) -> None:
        self._before("protect", str(path))

    def lock(self, path: Path) -> atomic_files.Held | None:
        self._before("lock", str(path))
        if str(path) in self._locks:
            return None
        self._folder(path.parent).change({path.name: Inode(b"1\n")})
        held = _Held(lambda: self._locks.pop(str(path), None))
        self._locks[str(path)] = held
        return held

    # what happens to disks ----------------------------------------------------------------------

    def put(self, inode: Inode, path: str, data: bytes) -> None:
        """Write at the end; a crash, or a full disk, stops in the middle."""
        share = None
        try:
            share = self._before("write", path)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                inode.data += bytes(data[: len(data) // 2])
            raise
        if share is not None:
            inode.data += bytes(data[: int(share * len(data))])
            self._before("die", path)
        inode.data += bytes(data)

    def is_locked(self, path: str) -> bool:
        """Whether a process holds this lock."""
        return path in self._locks

    def release(self, machine: str) -> None:
        """A process of this machine ended: the system lets go of its locks."""
        for path in [p for p in self._locks if p.startswith(f"/{machine}/")]:
            del self._locks[path]

    def cut_power(self, machine: str, chance: Random) -> None:
        """Only what is durable is sure to be there afterwards."""
        found = self.root.entries.get(machine)
        if isinstance(found, Folder):
            _lose(found, chance)

    def wipe(self, machine: str, below: str) -> None:
        """A folder of this machine is gone."""
        self._folder(Path(f"/{machine}")).entries[below] = Folder()
        self._folder(Path(f"/{machine}")).sync()

    def backup(self, machine: str, below: str) -> Any:
        """A copy of a folder, as somebody makes who reads all files."""
        return _copied(self._folder(Path(f"/{machine}/{below}")))

    def restore(self, machine: str, below: str, saved: Any) -> None:
        """The folder is what it was when the copy was made."""
        self._folder(Path(f"/{machine}")).entries[below] = _restored(saved)
        self._folder(Path(f"/{machine}")).sync()

    def put_back(self, path: str, data: bytes) -> None:
        """Somebody writes a file by hand, and waits until it is on the disk."""
        inode = self._file(path)
        inode.data = inode.durable = data

    def flip(self, path: str, chance: Random) -> None:
        """One bit of a file is another one, on the disk and in every cache."""
        inode = self._file(path)
        if inode.data:
            place = chance.randrange(len(inode.data))
            changed = bytearray(inode.data)
            changed[place] ^= 1 << chance.randrange(8)
            self.put_back(path, bytes(changed))

    # what an observer sees ----------------------------------------------------------------------

    def peek(self, path: str) -> bytes | None:
        """What a file holds now."""
        try:
            return self._file(path).data
        except (FileNotFoundError, NotADirectoryError):
            return None

    def survivor(self, path: str) -> bytes | None:
        """What a file holds after any power cut; None when that is not sure."""
        folder = self.root
        parts = path.strip("/").split("/")
        for depth, name in enumerate(parts):
            if any(name in changes for changes in folder.changes):
                return None
            entry = folder.durable.get(name)
            if depth == len(parts) - 1:
                whole = isinstance(entry, Inode) and entry.data == entry.durable
                return entry.data if whole and isinstance(entry, Inode) else None
            if not isinstance(entry, Folder):
                return None
            folder = entry
        return None

    def below(self, path: str) -> Iterator[str]:
        """Every file below a folder, if there is one."""
        try:
            folder = self._folder(path)
        except FileNotFoundError:
            return
        for name, entry in sorted(folder.entries.items()):
            if isinstance(entry, Folder):
                yield from self.below(f"{path}/{name}")
            else:
                yield f"{path}/{name}"

    def _find(self, path: Path | str) -> Inode | Folder:
        found: Inode | Folder = self.root
        for name in str(path).split("/")[1:]:
            if not isinstance(found, Folder) or name not in found.entries:
                if name:
                    raise refusal(errno.ENOENT, path)
                break
            found = found.entries[name]
        return found

    def _folder(self, path: Path | str) -> Folder:
        found = self._find(path)
        if not isinstance(found, Folder):
            raise refusal(errno.ENOTDIR, path)
        return found

    def _file(self, path: Path | str) -> Inode:
        found = self._find(path)
        if not isinstance(found, Inode):
            raise refusal(errno.EISDIR, path)
        return found


class _Stream(io.BytesIO):
    def __init__(self, disk: SimulatedDisk, inode: Inode, path: str) -> None:
        super().__init__()
        self._disk, self._inode, self._path = disk, inode, path

    def write(self, data: Any) -> int:
        self._disk.put(self._inode, self._path, data)
        return len(data)


class _Held:
    def __init__(self, release: Callable[[], object]) -> None:
        self.release = release  # type: ignore[method-assign]

    def release(self) -> None: ...


def _lose(folder: Folder, chance: Random) -> None:
    kept = folder.changes[: chance.randint(0, len(folder.changes))]
    folder.entries = dict(folder.durable)
    for changes in kept:
        _apply(folder.entries, changes)
    folder.sync()
    for entry in folder.entries.values():
        if isinstance(entry, Folder):
            _lose(entry, chance)
        elif entry.data != entry.durable:
            sure = entry.durable or b""
            assert entry.data.startswith(sure), "files are only ever appended to"
            rest = entry.data[len(sure) :]
            torn = rest[: chance.randint(0, len(rest))]
            entry.data = sure + chance.choice([b"", torn, torn, bytes(len(rest)), rest])
            entry.durable = entry.data


def _copied(folder: Folder) -> dict[str, Any]:
    entries = folder.entries.items()
    return {n: _copied(e) if isinstance(e, Folder) else e.data for n, e in entries}


def _restored(saved: dict[str, Any]) -> Folder:
    folder = Folder()
    for name, entry in saved.items():
        inode = Inode(entry, entry) if isinstance(entry, bytes) else _restored(entry)
        folder.entries[name] = inode
    folder.sync()
    return folder
