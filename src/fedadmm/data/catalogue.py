"""The functions behind `fedadmm data list|fetch|path|check`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from fedadmm.core.errors import DataError
from fedadmm.data.sources import SOURCES, Source, source


class DatasetInfo(NamedTuple):
    """One line of `fedadmm data list`."""

    name: str
    about: str
    licence: str
    aliases: tuple[str, ...]
    """Short forms of the name."""
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
    return DatasetInfo(
        chosen.name,
        chosen.about,
        chosen.licence,
        chosen.aliases,
        folder is not None,
        folder or chosen.home(),
    )


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
    chosen = [source(name)] if name is not None else [SOURCES[key] for key in sorted(SOURCES)]
    return [_check(one, file.name) for one in chosen for file in one.files]


def _check(one: Source, file: str) -> FileCheck:
    try:
        found = one.find(file)
    except DataError as error:
        return FileCheck(one.name, file, "damaged", str(error))
    return FileCheck(one.name, file, "missing" if found is None else "ok", str(found or ""))
