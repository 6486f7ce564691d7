"""The run directory: config.toml, metrics.jsonl, summary.json, partition.json, checkpoint/.

Whole files appear under their name only when they are complete; metrics.jsonl grows by one
flushed line a round.  So a run can be read, drawn and copied while it goes on.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedadmm.errors import ConfigError, DataError, StateError
from fedadmm.round import Record, RoundReport

CONFIG, METRICS, SUMMARY, PARTITION = (
    "config.toml",
    "metrics.jsonl",
    "summary.json",
    "partition.json",
)
CHECKPOINT, CLIENTS = "checkpoint", "clients"
_ROOM = 1 << 20
"""Bytes that must be free before round 0: configuration, metrics and summary fit in them."""


def create(directory: Path, room: int = 0) -> None:
    """Make a folder and be sure that it can be written, with `room` bytes beyond the usual."""
    probe = directory / f".probe-{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with probe.open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, _ROOM + room)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"--out is '{directory}', but cannot be written ({reason})") from None
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def holds_run(directory: Path) -> bool:
    """Whether a folder is a run directory."""
    return (directory / CONFIG).is_file()


def write_text(path: Path, text: str) -> None:
    """Write a whole file, or leave the old one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def plain(value: Any) -> Any:
    """What JSON can hold; a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write one JSON document."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON document."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: holds no JSON object")
    return value


def read_metrics(directory: Path) -> list[Record]:
    """The records so far; a last line that is not complete yet is left out."""
    path = directory / METRICS
    return list(_lines(path)) if path.is_file() else []


def _lines(path: Path) -> Iterator[Record]:
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
        except ValueError:
            raise DataError(f"{path}: line {number} is not a JSON object") from None
        if not isinstance(record, dict):
            raise DataError(f"{path}: line {number} is not a JSON object")
        yield record


def cut_metrics(directory: Path, rounds: int) -> list[Record]:
    """Keep the first `rounds` records, so that a resumed run has neither gap nor repetition."""
    records = [record for record in read_metrics(directory) if record["round"] <= rounds]
    found = [record["round"] for record in records]
    if found != list(range(1, rounds + 1)):
        raise StateError(
            f"{directory / METRICS}: has {len(found)} of the {rounds} rounds that the checkpoint "
            "has done, so the run cannot be resumed without a gap"
        )
    text = "".join(_line(record) for record in records)
    write_text(directory / METRICS, text)
    return records


def _line(record: Record) -> str:
    return json.dumps(plain(record), allow_nan=False) + "\n"


class MetricsWriter:
    """An observer that appends every round to metrics.jsonl."""

    def __init__(self, directory: Path) -> None:
        self._stream = (directory / METRICS).open("a", encoding="utf-8")

    def __call__(self, report: RoundReport) -> None:
        """Append and flush one line."""
        self._stream.write(_line(report.record))
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
