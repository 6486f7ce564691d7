"""Run a study: what is missing is run, what is there is read once.

A finished run is never run again, an interrupted one goes on where it stopped.  What a study came
to is computed from the runs in memory; nothing is read back.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import connection, get_all_start_methods, get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.core import signals
from fedadmm.core.errors import ConfigError, EngineError, FedADMMError
from fedadmm.core.problem import Problem
from fedadmm.run.experiment import Experiment
from fedadmm.run.record import Record
from fedadmm.study import run_history
from fedadmm.study.run_dir import RecordedRun, RunDir, create, read_run
from fedadmm.study.search import SearchResult, TrialRequest, propose
from fedadmm.study.single_run import run_recorded
from fedadmm.study.spec import Cell, Search, SearchSpace, Study
from fedadmm.study.study_result import StudyResult, collect_result

_CAN_FORK = "forkserver" in get_all_start_methods()
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


class Searched(NamedTuple):
    """Outcome of a study's searches."""

    trials: list[TrialRecord]
    results: dict[str, SearchResult]
    """By the name of the search space."""


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
    searched = Searched([], {})
    if study.search is not None:
        searched = _search(study.search, out, processes, watch, only_cached)
    cells = [
        cell.chosen(searched.results[cell.tuned].chosen if cell.tuned else {})
        for cell in study.cells
        if not cell.tuned or cell.tuned in searched.results  # else its search is not finished
    ]
    seeds: Sequence[int | None] = study.seeds or [None]
    wanted = [(cell, seed) for cell in cells for seed in seeds]
    runs = _complete(wanted, out, processes, watch, only_cached, fresh)
    there = [(cell, run) for (cell, _), run in zip(wanted, runs, strict=True) if run is not None]
    return collect_result(study, there, out, searched)


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
        run.judged(cell.label, cell.target) if run is not None else None
        for (cell, _), run in zip(wanted, runs, strict=True)
    ]


def _search(
    search: Search, out: Path, processes: int, watch: OnEvent, only_cached: bool
) -> Searched:
    """Run the searches of all spaces side by side; one with a missing run is left out."""
    spaces = {space.name: space for space in search.spaces}
    rows: list[TrialRecord] = []
    results: dict[str, SearchResult] = {}
    steps = {
        name: propose(space.grid, search.seeds, keep=search.keep, max_extensions=search.extend)
        for name, space in spaces.items()
    }
    wanted = {name: next(step) for name, step in steps.items()}
    while wanted:
        cells: list[tuple[Cell, None]] = []
        places: dict[str, list[list[int | None]]] = {}
        for name, evaluations in wanted.items():
            space = spaces[name]
            places[name] = []
            for one in evaluations:
                numbers: list[int | None] = []
                for place in space.places:
                    cell = _point(search, space, place, one)
                    numbers.append(None if cell is None else len(cells))
                    cells += [] if cell is None else [(cell, None)]
                places[name].append(numbers)
        runs = _complete(cells, out, processes, watch, only_cached)
        following: dict[str, list[TrialRequest]] = {}
        for name, evaluations in wanted.items():
            scores = []
            for one, numbers in zip(evaluations, places[name], strict=True):
                found = [None if n is None else (cells[n][0], runs[n]) for n in numbers]
                if any(pair is not None and pair[1] is None for pair in found):
                    break  # not run yet
                trials = [
                    trial_record(name, place, one, pair)
                    for place, pair in zip(spaces[name].places, found, strict=True)
                ]
                rows += trials
                scores.append(math.fsum(trial["score"] for trial in trials) / len(trials))
            if len(scores) < len(evaluations):
                rows = [row for row in rows if row["label"] != name]
                continue
            try:
                following[name] = steps[name].send(scores)
            except StopIteration as end:
                results[name] = end.value
        wanted = following
    order = list(spaces)
    return Searched(sorted(rows, key=lambda row: order.index(row["label"])), results)


def _point(search: Search, space: SearchSpace, place: Cell, one: TrialRequest) -> Cell | None:
    """Return the run of one evaluation; None if the grid has grown beyond the allowed values."""
    try:
        return search.point(place, one.values, one.seed)
    except ConfigError:
        given = all(one.values[key] in values for key, values in space.grid.items())
        if given:
            raise
        return None


def trial_record(
    label: str, place: Cell, one: TrialRequest, found: tuple[Cell, RecordedRun | None] | None
) -> TrialRecord:
    """Describe and score one run of a search; larger scores are better.

    With a target the score is minus the number of rounds to it.  A run that misses the target
    within T rounds scores between -T and -2 T, the lower the farther its best value remains from
    the target.  Without a target it is the last measurement of the compared metric.  Divergence
    scores minus infinity.  Both are measured on validation samples if the problem holds some out.
    """
    record: TrialRecord = {
        "label": label,
        "place": place.name,
        "value": dict(one.values),
        "seed": one.seed,
        "rounds_to_target": None,
        "metric": None,
        "best": None,
        "code": "invalid",
        "score": -math.inf,
    }
    if found is None or found[1] is None:
        return record
    target, run = found[0].target, found[1]
    metric = run_history.selection(list(run.final), target) or "loss"
    up = run_history.metric(metric).up if target is None else target.at_least
    values = run.columns.measured(metric)
    if target is None:
        values = values[-1:]
    best = (max(values) if up else min(values)) if values else None
    record |= {"metric": metric, "best": best, "code": run.code}
    if target is not None:
        tally = run.columns.tally(replace(target, metric=metric))
        record["rounds_to_target"] = tally["rounds_to_target"]
    if best is None or run.diverged:
        return record
    if target is None:
        return record | {"score": best if up else -best}
    if record["rounds_to_target"] is not None:
        return record | {"score": -float(record["rounds_to_target"])}
    gap = abs(best - target.value)
    return record | {"score": -found[0].run.rounds * (1 + gap / (gap + abs(target.value) + 1e-300))}


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
    split = job.run.seed if table.get("partition_seed", "none") == "none" else None
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
        # A fork server imports torch once for all workers; where there is none, each imports it.
        context: Any = get_context("forkserver" if _CAN_FORK else "spawn")
        if _CAN_FORK:
            context.set_forkserver_preload(["fedadmm.study.single_run"])
        self.pipe, theirs = context.Pipe()
        self.process: Any = context.Process(target=_serve, args=(theirs, dict(os.environ)))
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
            worker = busy[pipe]
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


def _serve(pipe: Connection, environment: dict[str, str]) -> None:
    """Run jobs from the pipe; Ctrl-C is ignored until the worker has its own process group.

    A worker uses one core: runs side by side are faster than clients side by side.
    """
    import torch

    from fedadmm.run.engines.workers import limit_cores

    os.environ.clear()  # the fork server has that of its own start
    os.environ.update(environment)
    limit_cores(1)

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
