"""The manifest of a checkpoint: which files it needs, and what they must hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple

from fedadmm.core.errors import StateError

FORMAT = 1


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
        raise StateError(f"{path} has format {manifest.format}, but {FORMAT} is understood")
    whole = (
        type(manifest.round) is int
        and path.name == manifest_name(manifest.round)
        and isinstance(manifest.parts, list)
        and all(_has(part, file=str, sha256=str, records=int) for part in manifest.parts)
        and _has(manifest.server, file=str, sha256=str)
        and _has(manifest.store, kind=str, directory=str | NoneType)
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
