"""A run as its directory tells it, finished or not, of this version or the one before."""

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
    config: dict[str, Any]
    config_text: str
    tally: Summary
    """What the records come to, whether or not the run has ended."""

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

    def relabelled(self, label: str, baseline: bool) -> RecordedRun:
        """The same run under the label that a table gives it."""
        return replace(self, label=label, method=label, baseline=baseline)

    def to_target(self, what: str) -> float | None:
        """Rounds, bytes, uploads, seconds or passes to it; a diverged run did not get there."""
        return None if self.diverged else self.tally[f"{what}_to_target"]


def read_run(
    directory: Path, row: Mapping[str, Any] | None = None, target: Target | None = None
) -> RecordedRun:
    """Read a run directory; `row` is what a comparison says about it, `target` its target."""
    run, row = RunDir(directory), dict(row or {})
    records, summary = run.records(), run.summary()
    text, config = run.config()
    table = config.get("algorithm")
    named = table.get("name") if isinstance(table, dict) else table
    algorithm = str(row.get("algorithm") or summary.get("algorithm") or named or directory.name)
    known: dict[str, Any] = {"label": algorithm, "seed": config.get("seed")}
    known |= _about(algorithm) | summary | row
    label = str(known["label"])
    return RecordedRun(
        directory=directory,
        label=label,
        method=str(known["method"]) if label == algorithm else label,
        algorithm=algorithm,
        baseline=bool(known["baseline"]),
        seed=known["seed"],
        records=records,
        summary=summary,
        config=config,
        config_text=text,
        tally=tally(records, target),
    )


def _about(algorithm: str) -> dict[str, Any]:
    """What summaries of the version before do not say about a method."""
    from fedadmm.algorithms import REGISTRY

    method = REGISTRY.get(algorithm)
    if method is None:
        return {"method": algorithm, "baseline": False}
    return {"method": method.title, "baseline": method.baseline}
