"""Run a study: what is missing is run, what is there is read once.

A finished run is never run again, an interrupted one goes on where it stopped.  What a study came
to is computed from the runs in memory; nothing is read back.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fedadmm.core import signals
from fedadmm.core.errors import EngineError, FedADMMError
from fedadmm.core.problem import Problem
from fedadmm.run.experiment import Experiment
from fedadmm.run.record import Record
from fedadmm.study import run_history
from fedadmm.study.run_dir import SUMMARY, RecordedRun, RunDir, create, read_run
from fedadmm.study.single_run import run_recorded
from fedadmm.study.spec import Cell, Search, SearchPoint, Study
from fedadmm.study.study_result import StudyResult, collect_result

_PATIENCE = 30.0
"""Seconds that a worker has to leave its checkpoint."""


class PlannedRun(NamedTuple):
    """One run, as it travels to a worker; one that was begun goes on."""

    label: str
    run: Experiment
    directory: Path


class RunStarted(NamedTuple):
    """A run began."""

    job: int
    label: str
    rounds: int


class RoundRecorded(NamedTuple):
    """A round of a run is done."""

    job: int
    record: Record


class RunEnded(NamedTuple):
    """A run ended."""

    job: int


RunEvent = RunStarted | RoundRecorded | RunEnded
"""What a watcher of several runs learns."""

OnEvent = Callable[[RunEvent], None]


def ignore_event(event: RunEvent) -> None:
    """Ignore every event."""


TrialRecord = dict[str, Any]
"""How one point of a search did, as results.json has it."""

Chosen = dict[str, dict[str, Any]]
"""By search: the values that it chose, and how well they did."""


def run_study(
    study: Study,
    out: Path,
    *,
    fresh: bool = False,
    processes: int = 1,
    watch: OnEvent = ignore_event,
    only_cached: bool = False,
) -> StudyResult:
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
    return collect_result(study, there, out, tried, best)


Wanted = Sequence[tuple[Cell, int | None]]
"""Cells with the seed that they are run with; None for that of their own."""


def _complete(
    wanted: Wanted,
    out: Path,
    processes: int,
    watch: OnEvent,
    only_cached: bool,
    fresh: bool = False,
) -> list[RecordedRun | None]:
    """The runs of these cells, as each reads it; cells that share a folder are run once."""
    jobs = []
    for cell, seed in wanted:
        named = cell.name if seed is None or cell.folder else f"{cell.name} seed {seed}"
        run = cell.run if seed is None else cell.run.with_seed(seed)
        jobs.append(PlannedRun(named, run, cell.directory(out, seed)))
    found: dict[Path, RecordedRun] = {}
    missing: dict[Path, PlannedRun] = {}
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
        found |= zip(missing, run_planned(list(missing.values()), processes, watch), strict=True)
    runs = [found.get(job.directory) for job in jobs]
    return [
        run.judged(cell.label, cell.target, cell.baseline) if run is not None else None
        for (cell, _), run in zip(wanted, runs, strict=True)
    ]


def _search(
    search: Search, out: Path, processes: int, watch: OnEvent, only_cached: bool
) -> list[TrialRecord]:
    """How every point did, in the order of the points; a label with a missing run is left out.

    With `halve_after` this is successive halving: after each of these rounds the better half of a
    label's values goes on from its checkpoints.  A run that met its target or diverged is over.
    """
    rows: dict[int, TrialRecord] = {}
    going = dict(enumerate(point.cell for point in search.tries))
    begun: dict[int, Path] = {}
    for rounds in (*sorted(search.halve_after), math.inf):
        cells = {number: cell.shortened(rounds) for number, cell in going.items()}
        folders = {number: cell.directory(out) for number, cell in cells.items()}
        for number, shorter in begun.items():
            if number in folders and not only_cached:
                _begin_from(shorter, folders[number])
        begun = folders
        wanted = [(cell, None) for cell in cells.values()]
        runs = _complete(wanted, out, processes, watch, only_cached)
        found = {n: run for n, run in zip(cells, runs, strict=True) if run is not None}
        missing = {search.tries[number].tuned for number in cells.keys() - found.keys()}
        rows |= {n: _standing(search.tries[n], cells[n], run) for n, run in found.items()}
        rows = {n: row for n, row in sorted(rows.items()) if row["label"] not in missing}
        if rounds < math.inf:
            for some in _by_label(rows.values()).values():
                values = _ranked(some)
                for row in itertools.chain(*values[(len(values) + 1) // 2 :]):
                    row["dropped_after"] = rounds
        over = [n for n, r in rows.items() if r["dropped_after"] or r["code"] != "completed"]
        going = {n: cell for n, cell in going.items() if n in rows and n not in over}
    return list(rows.values())


def _begin_from(shorter: Path, folder: Path) -> None:
    """Give a run the rounds and the checkpoint of a shorter one, unless it has begun."""
    if RunDir(folder).holds_run:
        return
    with TemporaryDirectory(dir=folder.parent) as scratch:
        left_out = shutil.ignore_patterns(SUMMARY)  # with it the copy would count as finished
        copy = shutil.copytree(shorter, Path(scratch) / "run", ignore=left_out)
        with suppress(OSError):  # another process was first
            copy.rename(folder)


def _standing(point: SearchPoint, cell: Cell, run: RecordedRun) -> TrialRecord:
    """What a search needs to know about one of its runs."""
    target = cell.target
    metric = run_history.primary(list(run.final), target) or "loss"
    up = run_history.metric(metric).up if target is None else target.at_least
    values = run.columns.measured(metric)
    if target is None:
        values = values[-1:]
    return {
        "label": point.tuned,
        "place": point.place.name,
        "value": dict(point.values),
        "rounds_to_target": run.tally["rounds_to_target"],
        "metric": metric,
        "best": (max(values) if up else min(values)) if values else None,
        "more_is_better": up,
        "code": run.code,
        "dropped_after": None,
    }


def choose(tried: Sequence[TrialRecord]) -> Chosen:
    """The best values for each label; of equals, those that were tried first.

    Values that a label tried in several places are judged by all of them.
    """
    chosen: Chosen = {}
    for label, rows in _by_label(tried).items():
        best = _ranked(rows)[0][0]
        chosen[label] = {key: best[key] for key in ("value", "rounds_to_target", "best")}
    return chosen


def _by_label(tried: Iterable[TrialRecord]) -> dict[str, list[TrialRecord]]:
    """The points of each label that were not dropped."""
    found: dict[str, list[TrialRecord]] = {}
    for row in tried:
        if row.get("dropped_after") is None:
            found.setdefault(row["label"], []).append(row)
    return found


def _ranked(rows: Sequence[TrialRecord]) -> list[list[TrialRecord]]:
    """The points of a label by their values, the best first."""
    values: dict[str, list[TrialRecord]] = {}
    for row in rows:
        values.setdefault(json.dumps(row["value"]), []).append(row)
    return sorted(values.values(), key=_rank)


def _rank(rows: Sequence[TrialRecord]) -> tuple[int, int, float, float]:
    """Fewest diverged, fewest that missed the target, then geometrically fewest rounds."""
    rounds = [row["rounds_to_target"] for row in rows]
    return (
        sum(row["code"] == "diverged" for row in rows),
        rounds.count(None),
        sum(math.log(one) for one in rounds if one is not None),
        sum(
            math.inf if (best := row["best"]) is None else -best if row["more_is_better"] else best
            for row in rows
        ),
    )


def run_planned(
    jobs: Sequence[PlannedRun], processes: int, watch: OnEvent = ignore_event
) -> list[RecordedRun]:
    """Run all jobs and return them in order; the first refusal ends everything.

    A worker gets one job at a time through its pipe and sends back records and the whole run.  It
    lives in a process group of its own, out of reach of the terminal's Ctrl-C: the parent alone
    decides, interrupts each worker (whose run then leaves its checkpoint), waits, and kills what
    does not go.  A worker whose parent has died ends by itself.
    """
    if processes > 1 and len(jobs) > 1:
        with _workers(min(processes, len(jobs))) as workers:
            return _distribute(jobs, workers, watch)
    found = []
    for index, job in enumerate(jobs):

        def report(record: Record, index: int = index) -> None:
            watch(RoundRecorded(index, record))

        watch(RunStarted(index, job.label, job.run.rounds))
        found.append(execute(job, report))
        watch(RunEnded(index))
    return found


_latest: dict[str, Problem] = {}
"""The problem of the last job, by the tables that describe it."""


def execute(job: PlannedRun, report: Callable[[Record], None]) -> RecordedRun:
    """Run one job in this process; jobs on the same problem share it."""
    table = job.run.tree["problem"]
    split = job.run.seed if table.get("partition_seed") == "none" else None
    tables = json.dumps([table, split, job.run.tree["regularizer"]], sort_keys=True)
    if tables not in _latest:
        _latest.clear()  # before the next one is loaded: two may not fit in memory
        _latest[tables] = job.run.load_problem()
    return run_recorded(
        job.run,
        job.directory,
        label=job.label,
        resume=True,
        callbacks=[lambda done: report(done.record)],
        problem=_latest[tables],
    )


class _Worker:
    """A process and the parent's end of its pipe."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs,))
        self.process.start()
        theirs.close()
        self.job: int | None = None

    def interrupt(self) -> None:
        """Interrupt the run under way, and close the pipe so that it does not wait to send."""
        if self.job is not None and self.process.is_alive():
            assert self.process.pid is not None
            os.kill(self.process.pid, signal.SIGINT)
        self.pipe.close()

    def close(self) -> None:
        self.process.join(_PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextmanager
def _workers(count: int) -> Iterator[list[_Worker]]:
    workers: list[_Worker] = []
    try:
        with signals.ignored(signal.SIGINT):
            for _ in range(count):
                workers.append(_Worker())  # noqa: PERF401 - those that started must be closed
        yield workers
    finally:
        with signals.ignored(signal.SIGINT):
            for worker in workers:
                worker.interrupt()
            for worker in workers:
                worker.close()


def _distribute(
    jobs: Sequence[PlannedRun], workers: list[_Worker], watch: OnEvent
) -> list[RecordedRun]:
    waiting = list(enumerate(jobs))[::-1]
    ended: dict[int, RecordedRun] = {}

    def supply(worker: _Worker) -> None:
        worker.job = None
        if waiting:
            worker.job, job = waiting.pop()
            worker.pipe.send(job)
            watch(RunStarted(worker.job, job.label, job.run.rounds))

    for worker in workers:
        supply(worker)
    while len(ended) < len(jobs):
        busy = {worker.pipe: worker for worker in workers if worker.job is not None}
        for pipe in connection.wait(list(busy), timeout=1.0):
            worker = busy[pipe]  # type: ignore[index]
            index = worker.job
            assert index is not None
            kind, content = _receive(worker, jobs[index])
            if kind == "record":
                watch(RoundRecorded(index, content))
            else:
                ended[index] = content
                watch(RunEnded(index))
                supply(worker)
    return [ended[index] for index in range(len(jobs))]


def _receive(worker: _Worker, job: PlannedRun) -> tuple[str, Any]:
    """The worker's next message; a failure of the run is raised here."""
    try:
        kind, content = worker.pipe.recv()
    except EOFError:
        worker.process.join(_PATIENCE)
        raise EngineError(
            f"{job.label}: its process ended with code {worker.process.exitcode}; what it did so "
            f"far is in {job.directory}"
        ) from None
    if kind == "refused":
        raise content
    if kind == "failed":
        raise EngineError(f"{job.label}: its process failed\n{content}")
    return kind, content


def _serve(pipe: Connection) -> None:
    """Run jobs from the pipe; Ctrl-C is ignored until the worker has its own process group."""
    import torch

    def end_with_parent() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    def report(record: Record) -> None:
        try:
            pipe.send(("record", record))
        except BrokenPipeError:  # the parent has closed the pipe: stop as if interrupted
            raise KeyboardInterrupt from None

    os.setpgrp()
    signals.accept_interrupts()
    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    with suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        while True:
            job = pipe.recv()
            try:
                answer: tuple[str, Any] = ("ended", execute(job, report))
            except (FedADMMError, OSError) as error:
                answer = ("refused", error)
            except Exception:
                answer = ("failed", traceback.format_exc())
            pipe.send(answer)
