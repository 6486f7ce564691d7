"""Readers for files that may be damaged or malicious: sizes are validated before allocation.

The size in a header is compared with the size of the file.  A compressed file may expand at most by
the largest ratio of its format, and at most to a fixed limit.
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
"""Limit of the compression ratio; the largest ratio of Deflate is 1032."""

UNPACKED = 1 << 27
"""Limit in bytes for the content of a compressed text file; its table takes ten times as much."""
PROMISED = 1 << 31
"""Limit in bytes for the content of a compressed file of arrays."""

_CHUNK = 1 << 20
_SEPARATORS = (",", ";", "\t")
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+(e[+-]?\d+)?\s*", re.IGNORECASE)
_READ_ERRORS = (OSError, EOFError, zlib.error)


def check_promise(path: Path, promised: int) -> None:
    """Raise a DataError if a header declares more bytes than the file can contain."""
    size = path.stat().st_size
    packed = path.suffix in (".gz", ".npz")
    if promised > (max(size, min(size * EXPANSION, PROMISED)) if packed else size):
        raise DataError(
            f"{path}: its header promises {promised} bytes, more than {size} bytes of file can hold"
        )


@contextmanager
def open_plain_or_gz(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed if its name ends in .gz.

    Raises:
        DataError: The file is missing, or a read inside the context fails.
    """
    try:
        if path.exists() and not path.is_file():  # reading a pipe could block forever
            raise DataError(f"{path}: it is no regular file")
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            yield cast(BinaryIO, stream)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except _READ_ERRORS as error:
        raise DataError(f"{path}: cannot be read, it is truncated or damaged ({error})") from None


def read_exactly(stream: BinaryIO, count: int, path: Path, what: str) -> NDArray[np.uint8]:
    """Return the next `count` bytes as a writable array; a DataError if there are fewer."""
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


def reject_more(stream: BinaryIO, path: Path) -> None:
    """Raise a DataError if there are bytes after the end declared by the header."""
    if stream.read(1):
        raise DataError(f"{path}: goes on behind the end that its header announces")


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file, plain or .gz, in blocks; a DataError above the size limit."""
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
    """Return the content of a file, plain or .gz."""
    data = bytearray()
    for chunk in read_chunks(path):
        data += chunk
    return data


def read_text(path: Path) -> str:
    """Return the content of a UTF-8 text file, plain or .gz; a DataError if it is not UTF-8."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no UTF-8 text ({error.reason} at {error.start})") from None


def read_csv(path: Path) -> list[list[str]]:
    """Return the cells of a CSV file, plain or .gz, without byte-order mark and empty lines.

    The separator is that of comma, semicolon and tab which splits the first line into most columns.
    With semicolons, decimal commas in numbers are replaced by points.

    Raises:
        DataError: The file is missing, damaged or not CSV.
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
    """Return all arrays of an .npz file by name, without unpickling objects.

    Raises:
        DataError: The file is missing or damaged, or one of the `required` arrays is missing.
    """
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
        reject_more(stream, path)
    return data.view(dtype).reshape(shape, order="F" if fortran else "C")
