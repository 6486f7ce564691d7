"""A run as its directory tells it, finished or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedadmm.run.evaluation import Target
from fedadmm.run.record import Record
from fedadmm.study.rundir import RunDir
from fedadmm.study.summary import RUNNING, Summary, tally


@dataclass(frozen=True)
class RecordedRun:
    """One run that was read."""

    directory: Path
    label: str
    method: str
    """What to call it: the label, or the method's own name where the label is only its key."""
    algorithm: str
    baseline: bool
    seed: int | None
    records: list[Record]
    summary: Summary
    config: Mapping[str, Any]
    tally: Summary
    """What the records come to, whether or not the run has ended."""
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
        """Whether the run ended in nonsense, so that it must not enter any mean."""
        return self.code == "diverged"

    @property
    def final(self) -> dict[str, Any]:
        """The metrics of the last round that was measured."""
        found: dict[str, Any] = self.tally["final"]
        return found

    def to_target(self, what: str) -> float | None:
        """Rounds, bytes, uploads, seconds or passes to it; a diverged run did not get there."""
        return None if self.diverged else self.tally[f"{what}_to_target"]

    def judged(
        self, label: str, target: Target | None, baseline: bool | None = None
    ) -> RecordedRun:
        """The same run under the label and by the target that a table gives it."""
        return replace(
            self,
            label=label,
            method=self.title if label == self.algorithm else label,
            baseline=self.baseline if baseline is None else baseline,
            tally=tally(self.records, target),
        )


def read_run(
    directory: Path, target: Target | None = None, summary: Summary | None = None
) -> RecordedRun:
    """Read a run directory, finished or not; `summary` is its summary.json if that is known."""
    run = RunDir(directory)
    found = run.summary() if summary is None else summary
    return as_recorded(directory, run.records(), found, run.config()[1], target)


def as_recorded(
    directory: Path,
    records: list[Record],
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
        baseline=bool(summary.get("baseline", False)),
        seed=summary.get("seed", config.get("seed")),
        records=records,
        summary=summary,
        config=config,
        tally=tally(records, target),
        title=title,
    )
