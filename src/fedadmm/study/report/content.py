"""From files to `Content`: what a run or comparison directory says, while it may still grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedadmm.core.errors import DataError
from fedadmm.run.evaluation import Target
from fedadmm.study import sweeping
from fedadmm.study.comparing import OVERVIEW
from fedadmm.study.grid import target_of
from fedadmm.study.recorded import RecordedRun, read_run
from fedadmm.study.results import Results, by_label, results
from fedadmm.study.rundir import RunDir, read_json


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
    runs: list[RecordedRun]
    partition: Partition | None
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """What each label of a sweep sets; empty when this is none."""
    overview: Mapping[str, Any] = field(default_factory=dict)
    """What comparison.json says; nothing for a run."""

    @property
    def search(self) -> Any:
        """What a search for learning rates found, as it was written."""
        return self.overview.get("learning_rate_search")

    @cached_property
    def labels(self) -> dict[str, list[RecordedRun]]:
        """The runs of each label, in the order of their first appearance."""
        return by_label(self.runs)

    @cached_property
    def names(self) -> dict[str, str]:
        """What each label is called."""
        return {label: runs[0].method for label, runs in self.labels.items()}

    @cached_property
    def results(self) -> Results:
        """The rows that every other output shows too."""
        return results(self.runs, self.target)


def read(directory: Path) -> Content:
    """Read a run or a comparison directory; a DataError says what is wrong with it."""
    if not directory.is_dir():
        raise DataError(f"{directory}: no such directory")
    path = directory / OVERVIEW
    overview = read_json(path) if path.is_file() else {}
    comparison = path.is_file() or (directory / "runs").is_dir() or _is_sweep(directory)
    if not comparison and not RunDir(directory).can_be_drawn:
        raise DataError(
            f"{directory}: neither a run (metrics.jsonl) nor a comparison (comparison.json, runs/) "
            f"nor a finished sweep ({sweeping.OVERVIEW})"
        )
    swept = _swept(directory)
    rows = swept or (_rows(directory, overview) if comparison else {directory: {}})
    target = _target(overview, list(rows))
    runs = [read_run(folder, row, target) for folder, row in rows.items()]
    partitions = (_partition(RunDir(folder)) for folder in (directory, *rows))
    return Content(
        directory=directory,
        comparison=comparison,
        problem=_problem(overview, runs),
        target=target,
        runs=runs,
        partition=next((found for found in partitions if found is not None), None),
        settings={row["label"]: row["setting"] for row in swept.values() if row["setting"]},
        overview=overview,
    )


def _is_sweep(directory: Path) -> bool:
    return (directory / sweeping.OVERVIEW).is_file()


def _swept(directory: Path) -> dict[Path, dict[str, Any]]:
    """The cells of a sweep; its settings are compared with each other, not with baselines."""
    rows: dict[Path, dict[str, Any]] = {}
    cells = read_json(directory / sweeping.OVERVIEW)["cells"] if _is_sweep(directory) else []
    for cell in cells:
        setting = sweeping.setting(cell["set"])
        label = ", ".join(
            value if key == "method" else f"{key}={value}" for key, value in setting.items()
        )
        about = {"seed": cell["seed"], "setting": setting, "baseline": False, "label": label}
        rows[directory / cell["directory"]] = about if label else {"setting": {}}
    return {folder: row for folder, row in rows.items() if RunDir(folder).can_be_drawn}


def _rows(directory: Path, overview: dict[str, Any]) -> dict[Path, dict[str, Any]]:
    """The runs that the comparison names, in its order, then any that it does not name yet."""
    rows: dict[Path, dict[str, Any]] = {}
    for row in overview.get("runs", []):
        folder = directory / str(row.get("directory"))
        if RunDir(folder).can_be_drawn:
            about = ("label", "method", "algorithm", "baseline", "seed")
            rows[folder] = {key: row[key] for key in about if row.get(key) is not None}
    known = {folder.resolve() for folder in rows}
    for folder in sorted((directory / "runs").glob("*")):
        if RunDir(folder).can_be_drawn and folder.resolve() not in known:
            rows[folder] = {}
    if not rows:
        raise DataError(f"{directory}: the comparison holds no run yet")
    return rows


def _problem(overview: dict[str, Any], runs: list[RecordedRun]) -> str:
    named = overview.get("problem") or runs[0].config.get("problem")
    if isinstance(named, dict):
        named = named.get("name")
    return str(named or "a problem without a name")


def _target(overview: dict[str, Any], folders: list[Path]) -> Target | None:
    """The comparison's target, or the one that a run was given."""
    given = overview.get("target") or next(
        (found for folder in folders if (found := RunDir(folder).summary().get("target"))), None
    )
    return target_of(given)


def _partition(run: RunDir) -> Partition | None:
    value = run.partition()
    if not value:
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
