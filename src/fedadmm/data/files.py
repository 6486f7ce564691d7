"""Read files that may be damaged or hostile: what a header promises is checked first.

A header is compared with the size of the file before anything is allocated; a compressed file
may promise at most what its compressor could have packed into it, and has a limit of its own.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from fedadmm.core.errors import DataError

EXPANSION = 1100
"""Deflate packs at most 1032 bytes into one; a promise beyond this is a lie or an attack."""

UNPACKED = 1 << 27
"""Bytes that a compressed file of text may unpack to: cells of a table take ten times as many."""
PROMISED = 1 << 31
"""Bytes that a compressed file of arrays may unpack to."""

_CHUNK = 1 << 20
_SEPARATORS = (",", ";", "\t")
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+(e[+-]?\d+)?\s*", re.IGNORECASE)
_READ_ERRORS = (OSError, EOFError, zlib.error)


def check_promise(path: Path, promised: int) -> None:
    """Refuse a header that promises more bytes than the file can hold."""
    size = path.stat().st_size
    packed = path.suffix in (".gz", ".npz")
    if promised > (max(size, min(size * EXPANSION, PROMISED)) if packed else size):
        raise DataError(
            f"{path}: its header promises {promised} bytes, more than {size} bytes of file can hold"
        )


@contextmanager
def open_plain_or_gz(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked when the name ends in .gz; reading errors name the file."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            yield cast(BinaryIO, stream)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except _READ_ERRORS as error:
        raise DataError(f"{path}: cannot be read, it is truncated or damaged ({error})") from None


def read_exactly(stream: BinaryIO, count: int, path: Path, what: str) -> NDArray[np.uint8]:
    """`count` bytes as a writable array, or a refusal that names the file."""
    data = np.empty(count, np.uint8)
    view, filled = data.data, 0
    while filled < count:
        got: int = cast(Any, stream).readinto(view[filled:])
        if not got:
            raise DataError(
                f"{path}: ends after {filled} of the {count} bytes of its {what}, it is truncated"
            )
        filled += got
    return data


def refuse_more(stream: BinaryIO, path: Path) -> None:
    """Refuse bytes behind the end that the header announced."""
    if stream.read(1):
        raise DataError(f"{path}: goes on behind the end that its header announces")


def read_chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, plain or .gz, a piece at a time, and no more than can be in it."""
    with open_plain_or_gz(path) as stream:
        size = path.stat().st_size
        most = left = max(size, UNPACKED) if path.suffix == ".gz" else size
        while chunk := stream.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                raise DataError(
                    f"{path}: holds more than {most} bytes; unpack it first if it is what it "
                    "should be"
                )
            yield chunk


def read_bytes(path: Path) -> bytearray:
    """All bytes of a file, plain or .gz."""
    data = bytearray()
    for chunk in read_chunks(path):
        data += chunk
    return data


def read_text(path: Path) -> str:
    """A UTF-8 text, plain or .gz."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no UTF-8 text ({error.reason} at {error.start})") from None


def read_csv(path: Path) -> list[list[str]]:
    """The cells of a CSV file, plain or .gz, without its byte-order mark and its empty lines.

    Of comma, semicolon and tab the one that makes most columns of the first line separates cells.
    With semicolons a number may have a decimal comma, which becomes a point.
    """
    text = read_text(path).removeprefix("\ufeff")

    def lines(separator: str) -> Iterator[list[str]]:
        return filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=separator))

    try:
        separator = max(_SEPARATORS, key=lambda one: len(next(lines(one), [])))
        if separator != ";":
            return list(lines(separator))
        return [
            [cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell for cell in row]
            for row in lines(separator)
        ]
    except csv.Error as error:
        raise DataError(f"{path}: is no CSV file ({error})") from None


def read_npz(path: Path, required: Sequence[str]) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file, never unpickling; the `required` names must be there."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
            missing = [name for name in required if name not in members]
            if missing:
                raise DataError(
                    f"{path}: has no array {', '.join(missing)} (it has {', '.join(members)})"
                )
            check_promise(path, sum(member.file_size for member in members.values()))
            return {name: _read_member(archive, m, path) for name, m in members.items()}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (
        *(zipfile.BadZipFile, NotImplementedError, RuntimeError, UnicodeDecodeError),
        *_READ_ERRORS,
    ) as error:
        raise DataError(f"{path}: is no readable .npz file ({error})") from None


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    with cast(BinaryIO, archive.open(member)) as stream:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                version = np.lib.format.read_magic(stream)
                read_header = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }[version]
                shape, fortran, dtype = read_header(stream)
        except (ValueError, KeyError, Warning) as error:
            raise DataError(f"{path}: {member.filename} is no .npy array ({error})") from None
        if dtype.hasobject:
            raise DataError(f"{path}: {member.filename} holds pickled objects, which are refused")
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or size > member.file_size:
            raise DataError(
                f"{path}: {member.filename} promises {size} bytes, but holds {member.file_size}"
            )
        data = read_exactly(stream, size, path, f"array {member.filename}")
        refuse_more(stream, path)
    return data.view(dtype).reshape(shape, order="F" if fortran else "C")
