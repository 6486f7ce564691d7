"""Named tensors and sealed documents in files that are either whole or not there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedadmm.core import files
from fedadmm.core.errors import StateError
from fedadmm.run.state.digest import content_sha256, json_sha256


class Contents(NamedTuple):
    """The named tensors of a file and its metadata."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]

    def sha256(self) -> str:
        """The digest of everything in the file."""
        return content_sha256(self.tensors, self.metadata)


def write_tensors(path: Path, contents: Contents, *, durable: bool) -> None:
    """Put named tensors into a safetensors file, atomically."""
    files.write(path, save(contents.tensors, contents.metadata), durable=durable)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Put a document with its own digest into a JSON file, atomically."""
    text = json.dumps({**document, "sha256": json_sha256(document)}, indent=1)
    files.write(path, text.encode())


def read_tensors(path: Path, expected_sha256: str | None = None) -> Contents:
    """Named tensors from a file, compared with a digest when there is one."""
    try:
        with files.explained("read", path), safe_open(path, framework="pt") as file:
            # Copies: what is computed must not depend on how a mapped file happens to be aligned.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            contents = Contents(tensors, file.metadata() or {})
    except SafetensorError as error:
        raise StateError(f"cannot read {path}: {error}") from error
    if expected_sha256 is not None and contents.sha256() != expected_sha256:
        raise StateError(f"{path} is damaged: its digest is not the recorded one")
    return contents


def read_json(path: Path) -> dict[str, Any]:
    """A document whose digest was checked."""
    data = files.read(path)
    try:
        document = json.loads(data)
        claimed = document.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise StateError(f"{path} is damaged: it cannot be understood") from None
    if json_sha256(document) != claimed:
        raise StateError(f"{path} is damaged: its digest is not the recorded one")
    return dict(document)
