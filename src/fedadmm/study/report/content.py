"""From runs to `Content`: what a report is made of, while its folder may still grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedadmm.core.errors import DataError
from fedadmm.run.evaluation import Target
from fedadmm.study import sweeping
from fedadmm.study.results import Outcome, Results, by_label, read_results, results, target_of
from fedadmm.study.rundir import RecordedRun, RunDir, read_run
from fedadmm.study.study import RESULTS

SHOWN = 8
"""This many of the best trials of a search have a curve."""


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
    """What results.json says; nothing for a run, or for a study that still goes on."""

    @property
    def search(self) -> Any:
        """What a search for learning rates found, as it was written."""
        return self.overview.get("search")

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
    """Read a run or the folder of a study; a DataError says what is wrong with it."""
    if not directory.is_dir():
        raise DataError(f"{directory}: no such directory")
    if (directory / RESULTS).is_file():
        return of_study(read_results(directory))
    comparison = (directory / "runs").is_dir()
    if not comparison and not RunDir(directory).can_be_drawn:
        raise DataError(
            f"{directory}: neither a run (metrics.jsonl) nor a study ({RESULTS}, or runs/ while a "
            "comparison goes on)"
        )
    folders = _runs_below(directory) if comparison else [directory]
    if not folders:
        raise DataError(f"{directory}: the comparison holds no run yet")
    given = (RunDir(folder).summary().get("target") for folder in folders)
    target = target_of(next((found for found in given if found), None))
    runs = [read_run(folder, target) for folder in folders]
    return _content(directory, runs, comparison, _problem(runs), target)


def of_study(found: Outcome) -> Content:
    """A study in one setting; of a search only the best trials."""
    document, rows = found.document, found.document["runs"]
    pairs = list(zip(rows, found.runs, strict=True))
    if document["kind"] == "tuning":
        ranked = sorted((p for p in pairs if p[0]["score"] is not None), key=_score)[:SHOWN]
        pairs = list({row["directory"]: (row, run) for row, run in ranked}.values())
    settings = {row["label"]: sweeping.setting(row["set"]) for row, _ in pairs}
    runs = [run for _, run in pairs]
    if document["kind"] == "comparison":  # it may go on, with runs that are not named yet
        known = {run.directory.resolve() for run in runs}
        new = [one for one in _runs_below(found.directory) if one.resolve() not in known]
        runs += [read_run(folder, target_of(document["target"])) for folder in new]
    if not runs:
        raise DataError(f"{found.directory}: the study holds no run yet")
    target = target_of(document["target"])
    whole = _content(found.directory, runs, True, document["problem"] or _problem(runs), target)
    swept = {label: one for label, one in settings.items() if one}
    return replace(whole, overview=document, settings=swept if document["kind"] == "sweep" else {})


def _score(pair: tuple[Mapping[str, Any], RecordedRun]) -> float:
    return float(pair[0]["score"])


def _runs_below(directory: Path) -> list[Path]:
    return [one for one in sorted((directory / "runs").glob("*")) if RunDir(one).can_be_drawn]


def _content(
    directory: Path, runs: list[RecordedRun], comparison: bool, problem: str, target: Target | None
) -> Content:
    folders = [directory, *(run.directory for run in runs)]
    partitions = (_partition(RunDir(folder)) for folder in folders)
    found = next((one for one in partitions if one is not None), None)
    return Content(directory, comparison, problem, target, runs, found)


def _problem(runs: list[RecordedRun]) -> str:
    named = runs[0].config.get("problem")
    if isinstance(named, Mapping):
        named = named.get("name")
    return str(named or "a problem without a name")


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
