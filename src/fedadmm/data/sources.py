"""Where files come from: FEDADMM_DATA, then the user's cache, then their canonical address."""

from __future__ import annotations

import hashlib
import os
import tarfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from fedadmm.data.download import download
from fedadmm.data.files import EXPANSION, open_plain_or_gz, replace_atomically, sha256
from fedadmm.errors import DataError, ParameterError

VARIABLE = "FEDADMM_DATA"
"""Names the folder whose subfolders (mnist, fashion-mnist, femnist, …) hold the data sets."""


@dataclass(frozen=True)
class File:
    """One file of a data set, known by its checksum.

    The file may also lie there packed (NAME.gz) or, when `unpacked` is known, unpacked.
    """

    name: str
    size: int
    sha256: str
    unpacked: str | None = None
    address: str | None = None

    def names(self) -> tuple[str, ...]:
        """The names under which the file is accepted."""
        if self.unpacked is not None:
            return self.name, self.name.removesuffix(".gz")
        return (
            (self.name,) if self.name.endswith((".gz", ".npz")) else (self.name, f"{self.name}.gz")
        )


@dataclass(frozen=True)
class Archive:
    """A .tar.gz that holds all files of a data set."""

    name: str
    size: int
    sha256: str
    address: str


@dataclass(frozen=True)
class Source:
    """A data set: its folder's name, what it is, and its files."""

    name: str
    about: str
    licence: str
    files: tuple[File, ...]
    archive: Archive | None = None
    subfolders: tuple[str, ...] = (".",)

    def file(self, name: str) -> File:
        """The file with a canonical name."""
        for file in self.files:
            if file.name == name:
                return file
        raise ParameterError(f"{self.name}: has no file {name!r}")


def data_folder() -> Path | None:
    """The folder that FEDADMM_DATA names, or None; one that does not exist is refused."""
    value = os.environ.get(VARIABLE)
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise DataError(f"{VARIABLE} is {value!r}, but there is no such folder")
    return folder


def cache_folder() -> Path:
    """The user's cache, where downloads go."""
    import pooch

    return Path(pooch.os_cache("fedadmm"))


def folders(source: Source) -> list[Path]:
    """Where the data set may lie, in the order of search."""
    root = data_folder()
    roots = ([] if root is None else [root]) + [cache_folder()]
    return [root / source.name / sub for root in roots for sub in source.subfolders]


def find(source: Source, file: File) -> Path | None:
    """The file, if it is on this machine; a damaged one is refused with its name."""
    for folder in folders(source):
        for name in file.names():
            path = folder / name
            if path.is_file():
                verify(path, file)
                return path
    return None


def locate(source: Source, file: File, *, progress: bool = False) -> Path:
    """The file, downloaded if need be."""
    found = find(source, file)
    if found is not None:
        return found
    cache = cache_folder() / source.name
    if source.archive is not None:
        _unpack(source, source.archive, cache, progress)
    elif file.address is not None:
        download(file.address, file.sha256, file.size, cache / file.name, progress=progress)
    else:
        raise DataError(
            f"{source.name}: {file.name} is not on this machine and has no public address; put it "
            f"into {cache}, or into the folder {source.name} of the folder that {VARIABLE} names"
        )
    return cache / file.name


def verify(path: Path, file: File) -> None:
    """Refuse a file whose size or checksum is not the canonical one."""
    stat = path.stat()
    if path.name == file.name and stat.st_size != file.size:
        raise DataError(
            f"{path}: has {stat.st_size} bytes, but the canonical file has {file.size}; "
            "it is truncated or another file"
        )
    expected = file.sha256
    if path.name != file.name and file.unpacked is not None:
        expected = file.unpacked
    packed = path.name != file.name and path.suffix == ".gz"
    if _checksum(path, stat.st_size, stat.st_mtime_ns, packed) != expected:
        raise DataError(
            f"{path}: is damaged or another file (its checksum is not the canonical one)"
        )


@lru_cache(maxsize=256)
def _checksum(path: Path, size: int, modified: int, packed: bool) -> str:
    """The checksum of a file, or of what is packed in it; remembered until the file changes."""
    if not packed:
        return sha256(path)
    digest, left = hashlib.sha256(), size * EXPANSION
    with open_plain_or_gz(path) as stream:
        while left > 0 and (chunk := stream.read(1 << 20)):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def _unpack(source: Source, archive: Archive, cache: Path, progress: bool) -> None:
    """Download the archive and take the data set's files out of it, each checked."""
    path = cache / archive.name
    if not path.is_file():
        download(archive.address, archive.sha256, archive.size, path, progress=progress)
    wanted = {file.name: file for file in source.files}
    try:
        with tarfile.open(path, "r:gz") as members:
            for member in members:
                file = wanted.get(PurePosixPath(member.name).name)
                stream = members.extractfile(member) if file and member.isfile() else None
                if file is None or stream is None or member.size != file.size:
                    continue
                with replace_atomically(cache / file.name) as into:
                    into.write(stream.read(file.size))
                verify(cache / file.name, file)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}); delete it to try again") from None
    missing = [name for name in wanted if not (cache / name).is_file()]
    if missing:
        raise DataError(f"{path}: does not hold {', '.join(missing)}")
    path.unlink()
