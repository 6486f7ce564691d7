"""Data sets by name: where their files are found, how they are downloaded and checked.

They are sought in FEDADMM_DATA, the user's cache and the package, in this order; what is missing
comes from its canonical address.  `fedadmm data list|fetch|path|check` call these functions.
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

from fedadmm.core.errors import DataError, ParameterError
from fedadmm.core.files import replacing
from fedadmm.data.files import read_chunks

_CHUNK = 1 << 16
_TIMEOUT = (10, 30)
"""Seconds to wait for a connection, and for the next bytes."""


def download(address: str, sha256: str, size: int, target: Path, *, progress: bool = False) -> None:
    """Put a file where it belongs, if it has the expected size and checksum.

    What has arrived of an interrupted download waits beside the target as `.NAME.part` and is
    continued the next time, if the server can do that; otherwise nothing stays behind.
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
    """Fetch what is missing; False if more than expected is sent."""
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
"""Names the folder whose subfolders (mnist, fashion-mnist, femnist, …) hold the data sets."""


SHIPPED = Path(__file__).parent / "shipped"
"""The small data sets that come with the package, each beside its source and licence."""


@dataclass(frozen=True)
class File:
    """One file, known by its checksum.

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

    def verify(self, path: Path) -> None:
        """Refuse a path whose size or checksum is not the canonical one."""
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
    """A data set, as `sets.toml` describes it."""

    name: str
    """Its folder is called so, and its problem."""
    about: str
    licence: str
    files: tuple[File, ...]
    aliases: tuple[str, ...] = ()
    """Short forms of the name."""
    archive: File | None = None
    """A .tar.gz that holds all files."""
    subfolders: tuple[str, ...] = (".",)
    """Where in its folder the files may lie."""
    instead: str | None = None
    """A folder that replaces the files if it is there."""

    def folders(self) -> list[Path]:
        """Where the data set may lie, in the order of search."""
        return [root / self.name / sub for root in _roots() for sub in self.subfolders]

    def stand_in(self) -> Path | None:
        """The folder that holds what is taken instead of the files, if there is one."""
        if self.instead is None:
            return None
        return next((place for place in self.folders() if (place / self.instead).is_dir()), None)

    def find(self, name: str) -> Path | None:
        """A file, if it is on this machine; a damaged one is refused with its path."""
        file = self._file(name)
        for folder in self.folders():
            for path in (folder / accepted for accepted in file.names()):
                if path.is_file():
                    file.verify(path)
                    return path
        return None

    def locate(self, name: str, *, progress: bool = False) -> Path:
        """A file, downloaded if need be."""
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
        """Download the archive and take the data set's files out of it, each checked."""
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
"""Every data set by its name."""
_TABLES = tomllib.loads((Path(__file__).parent / "sets.toml").read_text("utf-8"))
for _name, _table in _TABLES.items():
    _folder, _archive = _table.pop("address", None), _table.pop("archive", None)
    _rows = ({"address": _folder and _folder + row["name"]} | row for row in _table.pop("files"))
    _rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in _table.items()}
    _files, _packed = tuple(File(**row) for row in _rows), _archive and File(**_archive)
    SOURCES[_name] = Source(_name, files=_files, archive=_packed, **_rest)


def source(name: str) -> Source:
    """The data set with a name, or with a short form of one."""
    for one in SOURCES.values():
        if name in (one.name, *one.aliases):
            return one
    raise ParameterError(f"data: name is {name!r}, but must be one of {', '.join(sorted(SOURCES))}")


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
    import platformdirs

    return platformdirs.user_cache_path("fedadmm")


def _roots() -> list[Path]:
    folder = data_folder()
    return [*([] if folder is None else [folder]), cache_folder(), SHIPPED]


@lru_cache(maxsize=256)
def _checksum(path: Path, size: int, modified: int, packed: bool) -> str:
    """The checksum of a file, or of what is packed in it; remembered until the file changes."""
    if not packed:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    digest = hashlib.sha256()
    for chunk in read_chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


class DatasetInfo(NamedTuple):
    """One line of `fedadmm data list`."""

    name: str
    about: str
    licence: str
    aliases: tuple[str, ...]
    present: bool
    """Whether every file is on this machine (a damaged file counts as absent)."""
    folder: Path
    """Where it lies, or where a download or you would put it."""


class FileCheck(NamedTuple):
    """One line of `fedadmm data check`."""

    dataset: str
    file: str
    status: Literal["ok", "missing", "damaged"]
    detail: str
    """The path, or what is wrong."""


def list_datasets() -> list[DatasetInfo]:
    """Every data set that fedadmm knows."""
    return [_info(SOURCES[name]) for name in sorted(SOURCES)]


def _info(chosen: Source) -> DatasetInfo:
    folder, rows = chosen.stand_in(), check(chosen.name)
    if folder is None and all(row.status == "ok" for row in rows):
        folder = Path(rows[0].detail).parent
    described = (chosen.name, chosen.about, chosen.licence, chosen.aliases)
    return DatasetInfo(*described, folder is not None, folder or _roots()[0] / chosen.name)


def fetch(name: str, *, progress: bool = False) -> Path:
    """Make sure that a data set is on this machine, and return its folder."""
    chosen = source(name)
    stand_in = chosen.stand_in()
    if stand_in is not None:
        return stand_in
    first, *_ = [chosen.locate(file.name, progress=progress) for file in chosen.files]
    return first.parent


def path(name: str) -> Path:
    """The folder of a data set that is on this machine; one that is not is an error."""
    info = _info(source(name))
    if not info.present:
        looked = ", ".join(str(folder) for folder in source(name).folders())
        raise DataError(f"{info.name}: is not (completely) on this machine; looked into {looked}")
    return info.folder


def check(name: str | None = None) -> list[FileCheck]:
    """Look for every file and verify its checksum; nothing is downloaded, nothing raised."""
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
