"""The functions behind `fedadmm data list|fetch|path|check`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedadmm.data.known import SOURCES, find_leaf_folder
from fedadmm.data.sources import Source, cache_folder, data_folder, find, folders, locate
from fedadmm.errors import DataError, ParameterError


class DatasetInfo(NamedTuple):
    """One line of `fedadmm data list`."""

    name: str
    about: str
    licence: str
    present: bool
    """Whether every file is on this machine (a damaged file counts as absent)."""
    folder: Path
    """Where it lies, or where a download or you would put it."""


class FileCheck(NamedTuple):
    """One line of `fedadmm data check`."""

    dataset: str
    file: str
    status: str
    """ok, missing or damaged."""
    detail: str
    """The path, or what is wrong."""


def source(name: str) -> Source:
    """The data set with a name."""
    if name not in SOURCES:
        raise ParameterError(
            f"data: name is {name!r}, but must be one of {', '.join(sorted(SOURCES))}"
        )
    return SOURCES[name]


def list_datasets() -> list[DatasetInfo]:
    """Every data set that fedadmm knows."""
    return [_info(SOURCES[name]) for name in sorted(SOURCES)]


def _info(chosen: Source) -> DatasetInfo:
    leaf = find_leaf_folder() if chosen.name == "femnist" else None
    rows = [] if leaf else check(chosen.name)
    present = all(row.status == "ok" for row in rows)
    if leaf is not None:
        folder = leaf
    elif present:
        folder = Path(rows[0].detail).parent
    else:
        folder = (data_folder() or cache_folder()) / chosen.name
    return DatasetInfo(chosen.name, chosen.about, chosen.licence, present, folder)


def fetch(name: str, *, progress: bool = False) -> Path:
    """Make sure that a data set is on this machine, and return its folder."""
    chosen = source(name)
    if chosen.name == "femnist" and (leaf := find_leaf_folder()):
        return leaf
    paths = [locate(chosen, file, progress=progress) for file in chosen.files]
    return paths[0].parent


def path(name: str) -> Path:
    """The folder of a data set that is on this machine; one that is not is an error."""
    info = _info(source(name))
    if not info.present:
        looked = ", ".join(str(folder) for folder in folders(source(name)))
        raise DataError(f"{name}: is not (completely) on this machine; looked into {looked}")
    return info.folder


def check(name: str | None = None) -> list[FileCheck]:
    """Look for every file and verify its checksum; nothing is downloaded, nothing raised."""
    chosen = [source(name)] if name is not None else [SOURCES[key] for key in sorted(SOURCES)]
    rows = []
    for one in chosen:
        for file in one.files:
            try:
                found = find(one, file)
            except DataError as error:
                rows.append(FileCheck(one.name, file.name, "damaged", str(error)))
                continue
            status = "missing" if found is None else "ok"
            rows.append(FileCheck(one.name, file.name, status, str(found or "")))
    return rows
