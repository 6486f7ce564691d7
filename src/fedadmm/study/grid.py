"""Many runs at once: run what is missing, read what is there.

Comparisons, sweeps, searches and reproductions are grids of cells.  A cell is one run and the
folder that it lies in, which is named after its label, or by the hash of its configuration.  A
finished cell is never run again, an interrupted one goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.core.errors import ConfigError
from fedadmm.run.evaluation import Target
from fedadmm.run.experiment import Experiment
from fedadmm.study import records
from fedadmm.study.pool import Job, Watch, nobody, run_jobs
from fedadmm.study.recorded import RecordedRun, read_run
from fedadmm.study.rundir import RunDir, create
from fedadmm.study.summary import Summary

_NO_MATTER = ("engine", "device", "threads", "checkpoint")
"""How a result is computed, not what it is; an engine that shapes the run does matter."""


def cell_hash(run: Experiment) -> str:
    """Sixteen hexadecimal digits for everything that the result depends on."""
    tree = run.affecting(*_NO_MATTER)
    tree["store"] = run.store.primal
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def check_distinct(key: str, values: Sequence[Any]) -> None:
    """Refuse values of which one is there twice: it would count as two results."""
    texts = [repr(value) for value in values]
    for text in texts:
        if texts.count(text) > 1:
            raise ConfigError(f"{key} is [{', '.join(texts)}], but must not hold {text} twice")


def slug(text: str) -> str:
    """A label as a folder's name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "x"


def folder_names(texts: Iterable[str]) -> dict[str, str]:
    """A folder's name for each text; where another one has it already, with a hash of the text."""
    names: dict[str, str] = {}
    for text in dict.fromkeys(texts):
        name = slug(text)
        taken = name in names.values()
        names[text] = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}" if taken else name
    return names


class Cell(NamedTuple):
    """One run of a grid."""

    label: str
    run: Experiment
    directory: Path
    judged_by: Target | None = None
    """The target that it is read by, when that is not the run's own."""

    @classmethod
    def by_hash(
        cls, root: Path, label: str, run: Experiment, judged_by: Target | None = None
    ) -> Cell:
        """A cell that is found again by everything that its result depends on."""
        return cls(label, run, root / cell_hash(run), judged_by)

    @property
    def target(self) -> Target | None:
        """The target that it is read by."""
        return self.judged_by or self.run.target

    def finished(self) -> Summary | None:
        """The summary of a cell that needs nothing more."""
        return RunDir(self.directory).finished()

    def forget(self) -> None:
        """Remove what is there, so that the cell is run again."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def read(self) -> RecordedRun:
        """What the cell's run came to, under the cell's label."""
        return read_run(self.directory, {"label": self.label}, self.target)


def complete(cells: Sequence[Cell], processes: int = 1, watch: Watch = nobody) -> None:
    """Run the cells that are not finished; cells that share a folder are run once.

    A cell is finished when its folder says so and holds the same configuration.
    """
    for root in {cell.directory.parent for cell in cells}:
        create(root)
    missing: dict[Path, Cell] = {}
    for cell in cells:
        if not _hashed_and_finished(cell):
            missing.setdefault(cell.directory, cell)
    jobs = [Job(c.label, c.run, c.directory, resume=True) for c in missing.values()]
    run_jobs(jobs, processes, watch)


def _hashed_and_finished(cell: Cell) -> bool:
    """A folder that is named by the hash need not be compared with its configuration."""
    return cell.directory.name == cell_hash(cell.run) and cell.finished() is not None


class Trial(NamedTuple):
    """One value of a searched key, tried by one label."""

    label: str
    key: str
    value: Any
    cell: Cell
    place: str | None = None
    """Where it was tried, when a label tries its values in several places."""


def search(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """How every trial that is finished did, in the order of the trials."""
    return [_standing(trial) for trial in trials if trial.cell.finished() is not None]


def ranking(target: Mapping[str, Any] | None) -> str:
    """How a search chooses, in words."""
    if target is None:
        return "best last measurement of the compared metric; a diverged run comes last"
    return (
        f"fewest rounds to {target['metric']} {target['value']}, then best {target['metric']} of "
        "any round; a diverged run comes last"
    )


def _standing(trial: Trial) -> dict[str, Any]:
    """What a search needs to know about one of its runs."""
    found, target = trial.cell.read(), trial.cell.target
    metric = records.primary(list(found.final), target) or "loss"
    up = records.metric(metric).up if target is None else target.at_least
    values = [one for r in found.records if (one := records.value(r, metric)) is not None]
    if target is None:
        values = values[-1:]
    return {
        "rounds_to_target": found.tally["rounds_to_target"],
        "metric": metric,
        "best": (max(values) if up else min(values)) if values else None,
        "more_is_better": up,
        "code": found.code,
        "label": trial.label,
        "place": trial.place,
        "key": trial.key,
        "value": trial.value,
    }


def choose(tried: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The best value for each label; of equals, the one that was tried first.

    A value that a label tried in several places is judged by all of them, and only when it was
    tried in as many places as any other.
    """
    chosen: dict[str, dict[str, Any]] = {}
    for label in dict.fromkeys(row["label"] for row in tried):
        values: dict[str, list[Mapping[str, Any]]] = {}
        for row in tried:
            if row["label"] == label:
                values.setdefault(json.dumps(row["value"]), []).append(row)
        most = max(map(len, values.values()))
        best = min((rows for rows in values.values() if len(rows) == most), key=_rank)[0]
        chosen[label] = {key: best[key] for key in ("key", "value", "rounds_to_target", "best")}
    return chosen


def _rank(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int, float, float]:
    """Fewest diverged, fewest that missed the target, then geometrically fewest rounds."""
    rounds = [row["rounds_to_target"] for row in rows]
    return (
        sum(row["code"] == "diverged" for row in rows),
        rounds.count(None),
        sum(math.log(one) for one in rounds if one is not None),
        -sum(map(_worth, rows)),
    )


def _worth(row: Mapping[str, Any]) -> float:
    best = row["best"]
    return -math.inf if best is None else best if row["more_is_better"] else -best


def target_of(found: Mapping[str, Any] | None) -> Target | None:
    """The target that a document tells of."""
    if not isinstance(found, Mapping) or not {"metric", "value"} <= found.keys():
        return None
    metric = str(found["metric"])
    at_least = found.get("at_least", records.metric(metric).up)
    return Target(metric, float(found["value"]), bool(at_least))
