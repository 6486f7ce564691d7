"""The manifest of a checkpoint: which files it needs, and what they must hold."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple

from fedadmm.core.errors import ANOTHER_VERSION, StateError

FORMAT = 3
OWN_NAME = re.compile(r"round-(\d{8,})\.(json|server\.safetensors|clients-\d+\.safetensors)")
"""The names of a checkpoint's files."""


def manifest_name(number: int) -> str:
    """The file of a round's manifest."""
    return f"round-{number:08d}.json"


class Manifest(NamedTuple):
    """The contents of a manifest."""

    round: int
    server: dict[str, str]
    parts: list[dict[str, Any]]
    store: dict[str, Any]
    values: dict[str, Any]
    fingerprint: dict[str, Any]
    format: int = FORMAT

    def names(self) -> set[str]:
        """Every file that this checkpoint needs."""
        return {manifest_name(self.round), self.server["file"]} | {p["file"] for p in self.parts}


def understood(path: Path, document: Mapping[str, Any]) -> Manifest:
    """A manifest whose entries are what they should be."""
    try:
        manifest = Manifest(**document)
    except TypeError:
        raise StateError(f"{path} is damaged: it lacks a field") from None
    if manifest.format != FORMAT:
        raise StateError(
            f"{path} has format {manifest.format}, but {FORMAT} is understood; {ANOTHER_VERSION}"
        )
    whole = (
        type(manifest.round) is int
        and path.name == manifest_name(manifest.round)
        and isinstance(manifest.parts, list)
        and all(_has(part, file=str, sha256=str, records=int) for part in manifest.parts)
        and _has(manifest.server, file=str, sha256=str)
        and all(OWN_NAME.fullmatch(part["file"]) for part in (manifest.server, *manifest.parts))
        and _has(manifest.store, kind=str, directory=str | NoneType)
        and _is_path(manifest.store["directory"] or "")
        and isinstance(manifest.values, dict)
        and isinstance(manifest.fingerprint, dict)
    )
    if not whole:
        raise StateError(f"{path} is damaged: a field is not what it should be")
    return manifest


def _has(entry: object, **kinds: type | UnionType) -> bool:
    """Whether an entry of a manifest has values of these kinds."""
    return isinstance(entry, dict) and all(
        isinstance(entry.get(key, ...), kind) for key, kind in kinds.items()
    )


def _is_path(text: str) -> bool:
    """Whether the system could have a folder of this name."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
