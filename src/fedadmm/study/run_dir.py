"""The run directory: config.toml, metrics.jsonl, summary.json, partition.json, checkpoint/.

model.safetensors holds `params` and maybe `buffers`, the best model, and tells in its metadata
which round's it is; `last.params` and `last.buffers` in the same file are the last one, where
that is another.

`RunDir` is its only reader and writer.  Whole files appear under their name only when they are
complete; metrics.jsonl grows by one flushed line a round; summary.json is there from the first
second on, with the code "running".  So a run can be read, drawn and copied while it runs.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedadmm.core import atomic_files, codec, trees
from fedadmm.core.codec import Packed, Plain
from fedadmm.core.errors import ConfigError, DataError, StateError
from fedadmm.core.outputs import Iterate
from fedadmm.core.validation import shown, violation
from fedadmm.run.evaluation import Target
from fedadmm.run.metrics import Best
from fedadmm.run.record import OTHERS, Record, read
from fedadmm.run.stores.records import separate
from fedadmm.study import run_history as reading
from fedadmm.study.config import CONFIG, toml_tables, write
from fedadmm.study.run_history import FAILED, INTERRUPTED, RUNNING, Columns, Summary, best_model

METRICS, SUMMARY, PARTITION, MODEL, REPORT = (
    "metrics.jsonl",
    "summary.json",
    "partition.json",
    "model.safetensors",
    "report.html",
)
STATE_DICT = "state_dict.safetensors"
"""The model by the names of its parameters; a deployed server writes it with every checkpoint."""
CHECKPOINT, CLIENTS = "checkpoint", "clients"
_logger = logging.getLogger("fedadmm")
_ROOM = 1 << 20
"""Bytes that must be free before round 0: configuration, metrics and summary fit in them."""
_BLOCK = 1 << 20
"""Bytes of metrics.jsonl that are read at a time."""


def create(directory: Path) -> None:
    """Make a folder and be sure that it can be written."""
    try:
        atomic_files.make_directory(directory)
        atomic_files.reserve(directory / f"probe.{os.getpid()}{atomic_files.TEMPORARY}", _ROOM)
    except StateError as error:
        cause = error.__cause__
        reason = cause.strerror if isinstance(cause, OSError) else error
        raise ConfigError(f"--out is '{directory}', but cannot be written ({reason})") from None


def write_text(path: Path, text: str) -> None:
    """Write a whole text, or leave the old one."""
    atomic_files.write(path, text.encode())


def write_toml(path: Path, tree: Mapping[str, Any]) -> None:
    """Write one TOML document."""
    write_text(path, write(tree))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write one JSON document."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """What JSON can hold; a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read one JSON document; `missing` is given for a file that is not there."""
    if missing is not None and not atomic_files.exists(path):
        return missing
    try:
        value = _loads(atomic_files.read(path))
    except (StateError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: is not a JSON object")
    return value


def check_entries(origin: Path, document: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Raise a DataError for an entry of a document that its annotation does not allow."""
    for name in kinds.keys() & document.keys():
        wrong = violation(document[name], kinds[name])
        if wrong is not None:
            raise DataError(
                f"{origin}: {name}{wrong.where}: got {shown(wrong.value)}, "
                f"expected {wrong.allowed}."
            )


def _loads(data: bytes) -> Any:
    """Parse JSON; a ValueError also for text that cannot be written again (a lone surrogate)."""
    found = json.loads(data)
    if rb"\ud" in data.lower():
        json.dumps(found, ensure_ascii=False).encode()
    return found


class RunDir:
    """One run's folder; `begin`, `append` and `close` write it, everything else reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / CHECKPOINT
        self.clients = path / CLIENTS
        """The states of clients, for runs that keep them on disk."""
        self._seen = 0

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here, which can be resumed."""
        return (self.path / CONFIG).is_file()

    @property
    def can_be_drawn(self) -> bool:
        """Whether there is anything to show: a configuration, or metrics alone."""
        return self.holds_run or (self.path / METRICS).is_file()

    def begin(
        self,
        config: Mapping[str, Any],
        summary: Summary,
        partition: Mapping[str, Any] | None = None,
    ) -> None:
        """Write what is run, before the first round; `summary` has the code "running"."""
        write_toml(self.path / CONFIG, config)
        if partition is not None:
            write_json(self.path / PARTITION, partition)
        write_json(self.path / SUMMARY, summary)

    def refuse_other_rows(self, partition: Mapping[str, Any] | None) -> None:
        """Refuse to go on with rows that have changed since the run began.

        Clients would go on with the duals of others, and rows that were held out be trained on.
        """
        before, now = self.partition(), json.loads(json.dumps(plain(partition or {})))
        differing = sorted(key for key in before.keys() & now.keys() if before[key] != now[key])
        if differing:
            raise StateError(
                f"{self.path}: the data have changed since this run began, as {PARTITION} tells: "
                f"they differ in {', '.join(differing)}; put them back, or begin another run"
            )

    def keep(self, rounds: int) -> list[Record]:
        """Keep the records up to round `rounds`, -1 for none, so that a resumed run repeats none.

        Lines that a power cut lost are not made again: the model has those rounds.
        """
        records = [one for one in self.records() if one["round"] <= rounds]
        kept = len(reading.rounds(records))
        if kept < rounds:
            _logger.warning(
                "%s has %d of the %d rounds that the checkpoint has done, as after a power cut; "
                "the run goes on, and its curves have a gap",
                *(self.path / METRICS, kept, rounds),
            )
        write_text(self.path / METRICS, "".join(map(_line, records)))
        return records

    def append(self, record: Mapping[str, Any], durable: bool = False) -> None:
        """Append one round; `durable` waits until a power cut cannot take it back."""
        atomic_files.append(self.path / METRICS, _line(record).encode(), durable=durable)

    def write_model(self, best: Best | None, last: Iterate) -> None:
        """Keep the best model, and the last one with it where that is another."""
        chosen = last if best is None else best.model
        named = dict(trees.named_tensors(chosen._replace(mean=None)))
        other = dict(trees.named_tensors(last._replace(mean=None)))
        if not all(torch.equal(value, other[name]) for name, value in named.items()):
            named |= {f"last.{name}": value for name, value in other.items()}
        about: dict[str, Plain] = {"best": json.dumps(plain(best_model(best)), allow_nan=False)}
        codec.write(self.path / MODEL, Packed(separate(named), about))

    def best(self) -> dict[str, Any] | None:
        """Which round's model the best one is, and why; the file tells it, also of a killed run."""
        path = self.path / MODEL
        about = codec.read(path).plain.get("best") if path.is_file() else None
        try:
            found = self.summary().get("best") if about is None else _loads(str(about).encode())
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: best: is not JSON ({error})") from None
        if not isinstance(found, dict):
            return None
        check_entries(path, dict.fromkeys(reading.BEST_ENTRIES) | found, reading.BEST_ENTRIES)
        return found

    def model(self, last: bool = False) -> Iterate:
        """The best model, or the last one."""
        path = self.path / MODEL
        if not path.is_file():
            raise DataError(
                f"{self.path}: holds no {MODEL} yet; it comes with the first checkpoint"
            )
        tensors = codec.read(path).tensors
        prefix = "last." if last and "last.params" in tensors else ""
        if f"{prefix}params" not in tensors:
            raise DataError(f"{path}: holds {', '.join(sorted(tensors))}, expected params")
        return Iterate(tensors[f"{prefix}params"], tensors.get(f"{prefix}buffers"))

    def close(self, summary: Summary) -> None:
        """Write the final summary."""
        write_json(self.path / SUMMARY, summary)

    def documents(self) -> dict[str, bytes | None]:
        """The files that `begin` overwrites, as they are; None for a missing one."""
        return {
            name: atomic_files.read_if_there(self.path / name)
            for name in (CONFIG, SUMMARY, PARTITION)
        }

    def abandon(self, before: Mapping[str, bytes | None]) -> None:
        """Put back the documents of before, when a run was refused before its first round."""
        for name, content in before.items():
            if content is None:
                atomic_files.remove(self.path / name)
            else:
                atomic_files.write(self.path / name, content)
        if not self.records():
            atomic_files.remove(self.path / METRICS)
            atomic_files.remove(self.path / MODEL)

    def write_report(self, page: str) -> Path:
        """Write the page and return its path."""
        write_text(self.path / REPORT, page)
        return self.path / REPORT

    def config(self) -> dict[str, Any]:
        """The tables of config.toml; none when there is no such file."""
        path = self.path / CONFIG
        if not path.is_file():
            return {}
        try:
            return toml_tables(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{path}: is not TOML ({error})") from None

    def summary(self) -> Summary:
        """Return the content of summary.json; empty if the file does not exist yet."""
        path = self.path / SUMMARY
        found = read_json(path, missing={})
        check_entries(path, found, reading.SUMMARY_ENTRIES)
        return found

    def finished(self) -> Summary | None:
        """The summary of a run that needs nothing more; None for any other."""
        found = self.summary()
        return found if found.get("code", RUNNING) not in (RUNNING, INTERRUPTED, FAILED) else None

    def partition(self) -> dict[str, Any]:
        """What partition.json says; nothing for problems that were not split from rows."""
        found = read_json(self.path / PARTITION, missing={})
        check_entries(self.path / PARTITION, found, reading.PARTITION_ENTRIES)
        return found

    def records(self) -> list[Record]:
        """The records so far; a last line that is not complete yet is left out."""
        return list(_records(self.path / METRICS))

    def columns(self) -> Columns:
        """The same by column, however many there are."""
        return Columns(_records(self.path / METRICS))

    def news(self) -> list[Record]:
        """The records since the last call, without reading the others again."""
        path = self.path / METRICS
        if not path.is_file():
            return []
        with path.open("rb") as stream:
            if stream.seek(0, os.SEEK_END) < self._seen:  # a resumed run made them again
                self._seen = 0
            stream.seek(self._seen)
            data = stream.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._seen += len(whole)
        return list(_checked(path, 1, whole.split(b"\n")))


def runs_below(directory: Path) -> list[RunDir]:
    """The folder itself if it holds a run, and every run below it."""
    if not directory.is_dir():
        raise DataError(f"{directory}: no such folder")
    return [RunDir(path.parent) for path in sorted(directory.rglob(METRICS))]


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(plain(record), allow_nan=False) + "\n"


def _records(path: Path) -> Iterator[Record]:
    """The records of a file, block by block; a last line that is not complete is left out."""
    begin, number, rest = 0, 1, b""
    while block := atomic_files.read_if_there(path, begin, _BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        yield from _checked(path, number, lines)
        begin, number = begin + len(block), number + len(lines)
        if len(block) < _BLOCK:
            break
    if rest.strip() and _parsed([rest]) != [None]:
        yield from _checked(path, number, [rest])


def _checked(path: Path, first: int, lines: list[bytes]) -> Iterator[Record]:
    kept = [(number, line) for number, line in enumerate(lines, first) if line.strip()]
    values = _parsed([line for _, line in kept]) if kept else []
    for (number, _), record in zip(kept, values, strict=True):
        if not isinstance(record, dict):
            raise DataError(f"{path}: line {number} is not a JSON object")
        found = read(record)
        if isinstance(found, str):
            raise DataError(f"{path}: line {number} {found}")
        yield found


def _parsed(lines: list[bytes]) -> list[Any]:
    """What lines of JSON hold; None for those that are none.

    All at once, because the keys of a long run are then in memory once.
    """
    try:
        found: list[Any] = _loads(b"[%s]" % b",".join(lines))
    except (ValueError, RecursionError):
        found = []
    if len(found) != len(lines):
        found = [one for line in lines for one in _parsed([line])] if len(lines) > 1 else [None]
    return found


@dataclass(frozen=True)
class RecordedRun:
    """One run that was read."""

    directory: Path
    label: str
    method: str
    """What to call it: the label, or the method's own name where the label is only its key."""
    algorithm: str
    seed: int | None
    columns: Columns
    summary: Summary
    config: Mapping[str, Any]
    tally: Summary
    """The sums over the records, whether or not the run has ended."""
    title: str = ""
    """The method's own name."""

    @property
    def code(self) -> str:
        """completed, target, tolerance, diverged, interrupted or running."""
        return str(self.summary.get("code", RUNNING))

    @property
    def status(self) -> str:
        """The sentence behind the code."""
        done = f"{self.tally['rounds']} rounds so far"
        return done if self.code == RUNNING else str(self.summary.get("status", done))

    @property
    def diverged(self) -> bool:
        """Whether the run diverged, so that it enters no mean."""
        return self.code == "diverged"

    @property
    def final(self) -> dict[str, Any]:
        """The metrics of the last round that was measured."""
        found: dict[str, Any] = self.tally["final"]
        return found

    @cached_property
    def spent(self) -> dict[str, reading.Numbers]:
        """The rounds, the bytes, the time and the virtual time up to each record."""
        up, down, seconds = (
            np.nan_to_num(self.columns.column(*key)).cumsum()
            for key in (("bytes_up", "traffic"), ("bytes_down", "traffic"), ("seconds", "clock"))
        )
        virtual = np.nan_to_num(self.columns.column("virtual_time", *OTHERS))
        rounds = self.columns.column("round", "")
        return {"rounds": rounds, "bytes": up + down, "time": seconds, "virtual": virtual}

    def to_target(self, what: str) -> float | None:
        """Rounds, bytes, uploads, seconds or passes to it; a diverged run did not get there."""
        return None if self.diverged else self.tally[f"{what}_to_target"]

    def judged(self, label: str, target: Target | None) -> RecordedRun:
        """The same run under the label and by the target that a table gives it."""
        return replace(
            self,
            label=label,
            method=self.title if label == self.algorithm else label,
            tally=self.columns.tally(target),
        )


def read_run(
    directory: Path, target: Target | None = None, summary: Summary | None = None
) -> RecordedRun:
    """Read a run directory, finished or not; `summary` is its summary.json if that is known."""
    run = RunDir(directory)
    found = run.summary() if summary is None else summary
    return as_recorded(directory, run.columns(), found, run.config(), target)


def as_recorded(
    directory: Path,
    columns: Columns,
    summary: Summary,
    config: Mapping[str, Any],
    target: Target | None,
) -> RecordedRun:
    """A run from what its directory holds."""
    table = config.get("algorithm")
    named = table.get("name") if isinstance(table, Mapping) else table
    algorithm = str(summary.get("algorithm") or named or directory.name)
    title = str(summary.get("method", algorithm))
    label = str(summary.get("label", algorithm))
    return RecordedRun(
        directory=directory,
        label=label,
        method=title if label == algorithm else label,
        algorithm=algorithm,
        seed=summary.get("seed", config.get("seed")),
        columns=columns,
        summary=summary,
        config=config,
        tally=columns.tally(target),
        title=title,
    )
