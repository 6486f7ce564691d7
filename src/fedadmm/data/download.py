"""Registry of the known data sets: search, download and verification of their files.

Files are searched in the directory FEDADMM_DATA, the user's cache and the package, in this order;
missing files are downloaded.  `fedadmm data list|fetch|path|check` call these functions.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from fedadmm.core.atomic_files import replacing
from fedadmm.core.errors import DataError, ParameterError
from fedadmm.data.checked_files import read_chunks

_CHUNK = 1 << 16
_TIMEOUT = (10, 30)
"""Time limits in seconds for connecting, and for receiving the next bytes."""


def download(address: str, sha256: str, size: int, target: Path, *, progress: bool = False) -> None:
    """Download a file and verify its size and checksum.

    An interrupted download is kept next to the target as `.NAME.part` and resumed by the next call
    if the server supports range requests; otherwise it is deleted.

    Args:
        address: The URL.
        sha256: The expected checksum.
        size: The expected number of bytes.
        target: The path of the file.
        progress: Whether to show a progress bar.

    Raises:
        DataError: The download failed, or the file is not the expected one.
    """
    import requests

    part = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        have = part.stat().st_size if part.exists() else 0
        expected = have == size or _fetch(address, part, size, have, progress)
        expected = expected and _checksum(part, size, part.stat().st_mtime_ns, False) == sha256
        if expected:
            os.replace(part, target)
            return
        part.unlink()
    except (requests.exceptions.RequestException, OSError) as error:
        raise DataError(
            f"{target.name}: cannot be downloaded from {address} ({type(error).__name__}); put the "
            f"file into {target.parent} yourself, or into its folder under FEDADMM_DATA"
        ) from None
    raise DataError(
        f"{target.name}: what {address} sent is not the expected file (its checksum differs); "
        f"put the right file into {target.parent} yourself"
    )


def _fetch(address: str, part: Path, size: int, have: int, progress: bool) -> bool:
    """Download the missing bytes to `part`; False if the server sends more than `size` bytes."""
    import requests
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    bar = Progress(*columns, console=Console(stderr=True), disable=not progress)
    with requests.get(address, headers=headers, stream=True, timeout=_TIMEOUT) as response:
        response.raise_for_status()
        continues = response.status_code == requests.codes.partial_content
        have = have if continues else 0
        try:
            with part.open("ab" if have else "wb") as stream, bar:
                task = bar.add_task(part.name[1:-5], total=size, completed=have)
                for chunk in response.iter_content(_CHUNK):
                    have += len(chunk)
                    if have > size:
                        return False
                    stream.write(chunk)
                    bar.advance(task, len(chunk))
            if have < size:
                raise requests.exceptions.ConnectionError("the connection ended early")
        except BaseException:
            if not continues and response.headers.get("Accept-Ranges") != "bytes":
                part.unlink(missing_ok=True)
            raise
    return True


VARIABLE = "FEDADMM_DATA"
"""Environment variable with the folder whose subfolders (mnist, femnist, …) are the data sets."""


SHIPPED = Path(__file__).parent / "shipped"
"""Folder of the small data sets in the package, each with its source and licence."""


@dataclass(frozen=True)
class File:
    """A file of a data set with its size and checksum.

    Copies compressed as NAME.gz are accepted, and uncompressed copies of a .gz file with the
    checksum `unpacked`.
    """

    name: str
    size: int
    sha256: str
    unpacked: str | None = None
    address: str | None = None

    def names(self) -> tuple[str, ...]:
        """Return the accepted names of the file."""
        if self.unpacked is not None:
            return self.name, self.name.removesuffix(".gz")
        return (
            (self.name,) if self.name.endswith((".gz", ".npz")) else (self.name, f"{self.name}.gz")
        )

    def verify(self, path: Path) -> None:
        """Raise a DataError unless a path has the expected size and checksum."""
        stat = path.stat()
        if path.name == self.name and stat.st_size != self.size:
            raise DataError(
                f"{path}: has {stat.st_size} bytes, but the canonical file has {self.size}; "
                "it is truncated or another file"
            )
        other = path.name != self.name
        expected = self.unpacked if other and self.unpacked is not None else self.sha256
        packed = other and path.suffix == ".gz"
        if _checksum(path, stat.st_size, stat.st_mtime_ns, packed) != expected:
            raise DataError(
                f"{path}: is damaged or another file (its checksum is not the canonical one)"
            )


@dataclass(frozen=True)
class Source:
    """A data set as described in `sets.toml`."""

    name: str
    """The name of the data set, of its folder and of its problem."""
    about: str
    licence: str
    files: tuple[File, ...]
    aliases: tuple[str, ...] = ()
    """Short forms of the name."""
    archive: File | None = None
    """A .tar.gz that contains all files."""
    subfolders: tuple[str, ...] = (".",)
    """Subfolders of its folder that may contain the files."""
    instead: str | None = None
    """The name of a folder that is used in place of the files if it exists."""

    def folders(self) -> list[Path]:
        """Return the folders that may contain the files, in the order of the search."""
        return [root / self.name / sub for root in _roots() for sub in self.subfolders]

    def stand_in(self) -> Path | None:
        """Return the folder that contains the replacement `instead`, or None."""
        if self.instead is None:
            return None
        return next((place for place in self.folders() if (place / self.instead).is_dir()), None)

    def find(self, name: str) -> Path | None:
        """Return the path of a local file, or None if it is missing.

        Raises:
            DataError: The file is damaged.
        """
        file = self._file(name)
        for folder in self.folders():
            for path in (folder / accepted for accepted in file.names()):
                if path.is_file():
                    file.verify(path)
                    return path
        return None

    def locate(self, name: str, *, progress: bool = False) -> Path:
        """Return the path of a file, which is downloaded if it is missing.

        Raises:
            DataError: The file is damaged, or missing and cannot be downloaded.
        """
        found = self.find(name)
        if found is not None:
            return found
        file, cache = self._file(name), cache_folder() / self.name
        if self.archive is not None:
            self._unpack(self.archive, cache, progress)
        elif file.address is not None:
            download(file.address, file.sha256, file.size, cache / name, progress=progress)
        else:
            raise DataError(
                f"{self.name}: {name} is not on this machine and has no public address; put it "
                f"into {cache}, or into the folder {self.name} of the folder that {VARIABLE} names"
            )
        return cache / name

    def _file(self, name: str) -> File:
        for file in self.files:
            if file.name == name:
                return file
        raise ParameterError(f"{self.name}: has no file {name!r}")

    def _unpack(self, archive: File, cache: Path, progress: bool) -> None:
        """Download the archive, and extract and verify the files of the data set."""
        path = cache / archive.name
        if not path.is_file():
            address = archive.address or ""
            download(address, archive.sha256, archive.size, path, progress=progress)
        wanted = {file.name: file for file in self.files}
        try:
            with tarfile.open(path, "r:gz") as members:
                for member in members:
                    file = wanted.get(PurePosixPath(member.name).name)
                    stream = members.extractfile(member) if file and member.isfile() else None
                    if file is None or stream is None or member.size != file.size:
                        continue
                    with replacing(cache / file.name) as into:
                        into.write(stream.read(file.size))
                    file.verify(cache / file.name)
        except (tarfile.TarError, OSError, EOFError) as error:
            raise DataError(
                f"{path}: cannot be unpacked ({error}); delete it to try again"
            ) from None
        missing = [name for name in wanted if not (cache / name).is_file()]
        if missing:
            raise DataError(f"{path}: does not hold {', '.join(missing)}")
        path.unlink()


SOURCES: dict[str, Source] = {}
"""The known data sets by name."""
_TABLES = tomllib.loads((Path(__file__).parent / "sets.toml").read_text("utf-8"))
for _name, _table in _TABLES.items():
    _folder, _archive = _table.pop("address", None), _table.pop("archive", None)
    _rows = ({"address": _folder and _folder + row["name"]} | row for row in _table.pop("files"))
    _rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in _table.items()}
    _files, _packed = tuple(File(**row) for row in _rows), _archive and File(**_archive)
    SOURCES[_name] = Source(_name, files=_files, archive=_packed, **_rest)


def source(name: str) -> Source:
    """Return the data set with a name or alias."""
    for one in SOURCES.values():
        if name in (one.name, *one.aliases):
            return one
    raise ParameterError(f"data: name: got {name!r}, expected one of {', '.join(sorted(SOURCES))}")


def data_folder() -> Path | None:
    """Return the folder FEDADMM_DATA, or None if it is not set.

    Raises:
        DataError: The folder does not exist.
    """
    value = os.environ.get(VARIABLE)
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise DataError(f"{VARIABLE} is {value!r}, but there is no such folder")
    return folder


def cache_folder() -> Path:
    """Return the user's cache folder, the target of downloads."""
    import platformdirs

    return platformdirs.user_cache_path("fedadmm")


def _roots() -> list[Path]:
    folder = data_folder()
    return [*([] if folder is None else [folder]), cache_folder(), SHIPPED]


@lru_cache(maxsize=256)
def _checksum(path: Path, size: int, modified: int, packed: bool) -> str:
    """Return the SHA-256 of a file or of its uncompressed content; cached until it changes."""
    if not packed:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    digest = hashlib.sha256()
    for chunk in read_chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


class DatasetInfo(NamedTuple):
    """A data set in the output of `fedadmm data list`."""

    name: str
    about: str
    licence: str
    aliases: tuple[str, ...]
    present: bool
    """Whether all files are on this machine and intact."""
    folder: Path
    """The folder of the files; if they are missing, the folder to copy them to."""


class FileCheck(NamedTuple):
    """A file in the output of `fedadmm data check`."""

    dataset: str
    file: str
    status: Literal["ok", "missing", "damaged"]
    detail: str
    """The path, or the error message."""


def list_datasets() -> list[DatasetInfo]:
    """Return all known data sets."""
    return [_info(SOURCES[name]) for name in sorted(SOURCES)]


def _info(chosen: Source) -> DatasetInfo:
    folder, rows = chosen.stand_in(), check(chosen.name)
    if folder is None and all(row.status == "ok" for row in rows):
        folder = Path(rows[0].detail).parent
    described = (chosen.name, chosen.about, chosen.licence, chosen.aliases)
    return DatasetInfo(*described, folder is not None, folder or _roots()[0] / chosen.name)


def fetch(name: str, *, progress: bool = False) -> Path:
    """Download the missing files of a data set, and return its folder."""
    chosen = source(name)
    stand_in = chosen.stand_in()
    if stand_in is not None:
        return stand_in
    first, *_ = [chosen.locate(file.name, progress=progress) for file in chosen.files]
    return first.parent


def path(name: str) -> Path:
    """Return the folder of a data set.

    Raises:
        DataError: A file of the data set is missing.
    """
    info = _info(source(name))
    if not info.present:
        looked = ", ".join(str(folder) for folder in source(name).folders())
        raise DataError(f"{info.name}: is not (completely) on this machine; looked into {looked}")
    return info.folder


def check(name: str | None = None) -> list[FileCheck]:
    """Verify the local files of one or all data sets, without downloading or raising errors."""
    rows = []
    for one in [source(name)] if name is not None else [SOURCES[key] for key in sorted(SOURCES)]:
        for file in one.files:
            try:
                found = one.find(file.name)
            except DataError as error:
                rows.append(FileCheck(one.name, file.name, "damaged", str(error)))
                continue
            status: Literal["ok", "missing"] = "missing" if found is None else "ok"
            rows.append(FileCheck(one.name, file.name, status, str(found or "")))
    return rows
