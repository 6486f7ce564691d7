"""Run a study: what is missing is run, what is there is read once.

A finished run is never run again, an interrupted one goes on where it stopped.  What a study came
to is told from the runs that it has in memory; nothing is read back.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedadmm.study import records
from fedadmm.study.pool import Job, Watch, nobody, run_jobs
from fedadmm.study.results import Outcome, outcome
from fedadmm.study.rundir import RecordedRun, RunDir, create, read_run
from fedadmm.study.study import Cell, Search, Study

Chosen = dict[str, dict[str, Any]]
"""By search: the values that it chose, and how well they did."""


def run_study(
    study: Study,
    out: Path,
    *,
    fresh: bool = False,
    processes: int = 1,
    watch: Watch = nobody,
    only_cached: bool = False,
) -> Outcome:
    """Search, then run every cell with every seed.

    `fresh` forgets the runs that are there; with `only_cached` nothing is run.
    """
    create(out)
    tried: list[dict[str, Any]] = []
    if study.search is not None:
        tried = _search(study.search, out, processes, watch, only_cached)
    best = choose(tried)
    cells = [
        cell.chosen(best[cell.tuned]["value"] if cell.tuned else {})
        for cell in study.cells
        if not cell.tuned or cell.tuned in best  # else its search is not finished
    ]
    seeds: Sequence[int | None] = study.seeds or [None]
    wanted = [(cell, seed) for cell in cells for seed in seeds]
    runs = _complete(wanted, out, processes, watch, only_cached, fresh)
    there = [(cell, run) for (cell, _), run in zip(wanted, runs, strict=True) if run is not None]
    return outcome(study, there, out, tried, best)


Wanted = Sequence[tuple[Cell, int | None]]
"""Cells with the seed that they are run with; None for that of their own."""


def _complete(
    wanted: Wanted, out: Path, processes: int, watch: Watch, only_cached: bool, fresh: bool = False
) -> list[RecordedRun | None]:
    """The runs of these cells, as each reads it; cells that share a folder are run once."""
    jobs = []
    for cell, seed in wanted:
        named = cell.name if seed is None or cell.folder else f"{cell.name} seed {seed}"
        run = cell.run if seed is None else cell.run.with_seed(seed)
        jobs.append(Job(named, run, cell.directory(out, seed), resume=True))
    found: dict[Path, RecordedRun] = {}
    missing: dict[Path, Job] = {}
    for (cell, _), job in zip(wanted, jobs, strict=True):
        if job.directory in found or job.directory in missing:
            continue
        if fresh:
            shutil.rmtree(job.directory, ignore_errors=True)
        # A folder that is named by the hash need not be compared with its configuration.
        summary = None if cell.folder else RunDir(job.directory).finished()
        if summary is not None:
            found[job.directory] = read_run(job.directory, None, summary)
        else:
            missing[job.directory] = job
    if not only_cached:
        for root in {job.directory.parent for job in jobs}:
            create(root)
        found |= zip(missing, run_jobs(list(missing.values()), processes, watch), strict=True)
    runs = [found.get(job.directory) for job in jobs]
    return [
        run.judged(cell.label, cell.target, cell.baseline) if run is not None else None
        for (cell, _), run in zip(wanted, runs, strict=True)
    ]


def _search(
    search: Search, out: Path, processes: int, watch: Watch, only_cached: bool
) -> list[dict[str, Any]]:
    """How every point did that is finished, in the order of the points."""
    cells = [point.cell for point in search.tries]
    runs = _complete([(cell, None) for cell in cells], out, processes, watch, only_cached)
    return [
        {"label": point.tuned, "place": point.place.name, "value": dict(point.values)}
        | _standing(cell, run)
        for point, cell, run in zip(search.tries, cells, runs, strict=True)
        if run is not None
    ]


def _standing(cell: Cell, run: RecordedRun) -> dict[str, Any]:
    """What a search needs to know about one of its runs."""
    target = cell.target
    metric = records.primary(list(run.final), target) or "loss"
    up = records.metric(metric).up if target is None else target.at_least
    values = [one for r in run.records if (one := records.value(r, metric)) is not None]
    if target is None:
        values = values[-1:]
    return {
        "rounds_to_target": run.tally["rounds_to_target"],
        "metric": metric,
        "best": (max(values) if up else min(values)) if values else None,
        "more_is_better": up,
        "code": run.code,
    }


def choose(tried: Sequence[Mapping[str, Any]]) -> Chosen:
    """The best values for each label; of equals, those that were tried first.

    Values that a label tried in several places are judged by all of them, and only when they were
    tried in as many places as any other.
    """
    chosen: Chosen = {}
    for label in dict.fromkeys(row["label"] for row in tried):
        values: dict[str, list[Mapping[str, Any]]] = {}
        for row in tried:
            if row["label"] == label:
                values.setdefault(json.dumps(row["value"]), []).append(row)
        most = max(map(len, values.values()))
        best = min((rows for rows in values.values() if len(rows) == most), key=_rank)[0]
        chosen[label] = {key: best[key] for key in ("value", "rounds_to_target", "best")}
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
