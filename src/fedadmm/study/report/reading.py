"""From files to `Content`: what a run or comparison directory says, while it may still grow."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedadmm.errors import DataError

Record = dict[str, Any]

RUNNING = "running"
LOWER_IS_BETTER = re.compile(r"loss|objective|gradient|residual|error|bound|seconds|staleness")
"""Metrics whose names match are good when small; all others when large."""


@dataclass(frozen=True)
class Target:
    """The value of a metric that a comparison counts rounds to."""

    metric: str
    value: float
    at_least: bool

    def reached(self, record: Record) -> bool:
        """Whether a round's record meets it; a round without the metric does not."""
        value = record.get(self.metric)
        if not isinstance(value, int | float) or math.isnan(value):
            return False
        return value >= self.value if self.at_least else value <= self.value


@dataclass(frozen=True)
class Run:
    """One run directory."""

    directory: Path
    label: str
    algorithm: str
    seed: int | None
    records: list[Record]
    summary: dict[str, Any]
    config: dict[str, Any]
    config_text: str

    @property
    def code(self) -> str:
        """completed, target, tolerance, diverged …; "running" while there is no summary."""
        return str(self.summary.get("code", RUNNING))

    @property
    def status(self) -> str:
        """The sentence behind the code."""
        done = f"{len(self.records)} rounds so far"
        return str(self.summary.get("status", done))

    @property
    def diverged(self) -> bool:
        """Whether the run ended in nonsense, so that it must not enter any mean."""
        return self.code == "diverged"

    def last(self, metric: str) -> float | None:
        """The newest measurement of a metric."""
        for record in reversed(self.records):
            value = record.get(metric)
            if isinstance(value, int | float):
                return float(value)
        return None

    def total(self, *names: str) -> float:
        """The sum of some per-round quantities over the run so far."""
        return float(sum(record.get(name, 0) or 0 for record in self.records for name in names))

    def first_at(self, target: Target) -> int | None:
        """The position of the first record that meets the target."""
        hits = (i for i, record in enumerate(self.records) if target.reached(record))
        return next(hits, None)


@dataclass(frozen=True)
class Partition:
    """How many rows of each label each client holds; of many clients only the first are listed."""

    clients: int
    sizes: list[int]
    names: list[str] = field(default_factory=list)
    """What the clients are called, when they have names."""
    labels: list[str] = field(default_factory=list)
    counts: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Content:
    """All that a report is made of."""

    directory: Path
    comparison: bool
    problem: str
    target: Target | None
    runs: list[Run]
    partition: Partition | None
    search: Any = None
    """What a search for learning rates found, as it was written."""

    @property
    def labels(self) -> dict[str, list[Run]]:
        """The runs of each label, in the order of their first appearance."""
        groups: dict[str, list[Run]] = {}
        for run in self.runs:
            groups.setdefault(run.label, []).append(run)
        return groups


def read(directory: Path) -> Content:
    """Read a run or a comparison directory; a DataError says what is wrong with it."""
    if not directory.is_dir():
        raise DataError(f"{directory}: no such directory")
    overview = _json(directory / "comparison.json")
    comparison = overview is not None or (directory / "runs").is_dir()
    if not comparison and not _is_run(directory):
        raise DataError(
            f"{directory}: neither a run (metrics.jsonl) nor a comparison (comparison.json, runs/)"
        )
    overview = overview or {}
    runs = _runs(directory, overview) if comparison else [_run(directory, {})]
    partition = _partition(directory) or next(
        (found for run in runs if (found := _partition(run.directory))), None
    )
    return Content(
        directory=directory,
        comparison=comparison,
        problem=_problem(overview, runs),
        target=_target(overview, runs),
        runs=runs,
        partition=partition,
        search=overview.get("learning_rate_search"),
    )


def _is_run(directory: Path) -> bool:
    return any((directory / name).is_file() for name in ("metrics.jsonl", "config.toml"))


def _runs(directory: Path, overview: dict[str, Any]) -> list[Run]:
    """Those that the comparison names, in its order, then any that it does not name yet."""
    listed = {str(row.get("directory")): row for row in overview.get("runs", [])}
    found = sorted(path for path in (directory / "runs").glob("*") if _is_run(path))
    rows: list[tuple[Path, dict[str, Any]]] = []
    for name, row in listed.items():
        path = directory / name
        if _is_run(path):
            rows.append((path, row))
    known = {path.resolve() for path, _ in rows}
    rows += [(path, {}) for path in found if path.resolve() not in known]
    if not rows:
        raise DataError(f"{directory}: the comparison holds no run yet")
    return [_run(path, row) for path, row in rows]


def _run(directory: Path, row: dict[str, Any]) -> Run:
    summary = _json(directory / "summary.json") or {}
    text, config = _config(directory / "config.toml")
    section = config.get("algorithm")
    named = section.get("name") if isinstance(section, dict) else section
    folder = re.fullmatch(r"(.+)-seed(\d+)", directory.name)
    algorithm = summary.get("algorithm") or row.get("algorithm") or named
    label = summary.get("label") or row.get("label") or (folder and folder[1]) or algorithm
    seed = summary.get("seed", row.get("seed", config.get("seed")))
    return Run(
        directory=directory,
        label=str(label or directory.name),
        algorithm=str(algorithm or label or directory.name),
        seed=seed if seed is not None or folder is None else int(folder[2]),
        records=_records(directory / "metrics.jsonl"),
        summary=summary,
        config=config,
        config_text=text,
    )


def _records(path: Path) -> list[Record]:
    """One record a line; the last line may still be on its way and is then left out."""
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            if number == len(lines):
                break
            raise DataError(f"{path}: line {number} is not a JSON object") from None
        if not isinstance(record, dict):
            raise DataError(f"{path}: line {number} is not a JSON object")
        records.append(record)
    return records


def _config(path: Path) -> tuple[str, dict[str, Any]]:
    if not path.is_file():
        return "", {}
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not TOML ({error})") from None


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: is not a JSON object")
    return value


def _problem(overview: dict[str, Any], runs: list[Run]) -> str:
    named = overview.get("problem") or runs[0].config.get("problem")
    if isinstance(named, dict):
        named = named.get("name")
    return str(named or "a problem without a name")


def _target(overview: dict[str, Any], runs: list[Run]) -> Target | None:
    """The comparison's target, or the one that a run was given."""
    given = [overview.get("target"), *(run.summary.get("target") for run in runs)]
    for value in given:
        if isinstance(value, dict) and "metric" in value and "value" in value:
            metric = str(value["metric"])
            at_least = value.get("at_least", not LOWER_IS_BETTER.search(metric))
            return Target(metric, float(value["value"]), bool(at_least))
    return None


def _partition(directory: Path) -> Partition | None:
    value = _json(directory / "partition.json")
    if value is None:
        return None
    counts = value.get("counts") or []
    sizes = value.get("sizes") or [sum(row) for row in counts]
    names = [str(name) for name in value.get("names") or []]
    return Partition(
        clients=int(value.get("clients", len(sizes))),
        sizes=sizes,
        names=[] if all(name.isdecimal() for name in names) else names,
        labels=[str(label) for label in value.get("labels") or []],
        counts=counts,
    )
