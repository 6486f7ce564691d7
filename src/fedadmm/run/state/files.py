"""Files that are either whole or not there.

A file is written under a temporary name, synchronised, and renamed; its folder is synchronised
too.  A crash between any two of these calls leaves the old file or the new one, and at worst a
temporary file, which `remove_leftovers` takes away at the next start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedadmm.core.errors import StateError
from fedadmm.run.state.digest import content_sha256, json_sha256

TEMPORARY = ".tmp"


class Contents(NamedTuple):
    """The named tensors of a file and its metadata."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]

    def sha256(self) -> str:
        """The digest of everything in the file."""
        return content_sha256(self.tensors, self.metadata)


@contextmanager
def explained(what: str, path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into a StateError that names file and cause."""
    try:
        yield
    except OSError as error:
        raise StateError(f"cannot {what} {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise StateError(f"cannot {what} {path}: {error}") from error


def write_tensors(path: Path, contents: Contents, *, durable: bool) -> None:
    """Put named tensors into a safetensors file, atomically."""
    _atomically(path, lambda temporary: _save(temporary, contents), durable)


def write_bytes(path: Path, data: bytes, *, durable: bool) -> None:
    """Put bytes into a file, atomically."""
    _atomically(path, lambda temporary: temporary.write_bytes(data), durable)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Put a document with its own digest into a JSON file, atomically."""
    text = json.dumps({**document, "sha256": json_sha256(document)}, indent=1)
    _atomically(path, lambda temporary: _save_text(temporary, text), durable=True)


def read_tensors(path: Path, expected_sha256: str | None = None) -> Contents:
    """Named tensors from a file, compared with a digest when there is one."""
    with explained("read", path), safe_open(path, framework="pt") as file:
        # Copies: what is computed must not depend on how a mapped file happens to be aligned.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        contents = Contents(tensors, file.metadata() or {})
    if expected_sha256 is not None and contents.sha256() != expected_sha256:
        raise StateError(f"{path} is damaged: its digest is not the recorded one")
    return contents


def read_json(path: Path) -> dict[str, Any]:
    """A document whose digest was checked."""
    with explained("read", path):
        data = path.read_bytes()
    try:
        document = json.loads(data)
        claimed = document.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise StateError(f"{path} is damaged: it cannot be understood") from None
    if json_sha256(document) != claimed:
        raise StateError(f"{path} is damaged: its digest is not the recorded one")
    return dict(document)


def make_directory(path: Path) -> None:
    """Create a folder and its parents."""
    with explained("create the folder", path):
        path.mkdir(parents=True, exist_ok=True)


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    with explained("synchronise", path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove(path: Path) -> None:
    """Take a file away that nothing names any more."""
    with explained("remove", path):
        path.unlink(missing_ok=True)


def remove_leftovers(directory: Path) -> None:
    """Take away what a crash left half-written, under our temporary names or safetensors' own."""
    for pattern in (f"*{TEMPORARY}", f"{TEMPORARY}??????"):
        for path in directory.glob(pattern):
            remove(path)


def _atomically(path: Path, save: Callable[[Path], object], durable: bool) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with explained("write", path):
            save(temporary)
            if durable:
                sync(temporary)
            os.replace(temporary, path)
            if durable:
                sync(path.parent)
    except StateError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _save(path: Path, contents: Contents) -> None:
    save_file(contents.tensors, path, contents.metadata)


def _save_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
