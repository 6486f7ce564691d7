"""One run into one run directory: fresh, cached or resumed."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedadmm.core import atomic_files
from fedadmm.core.config_tree import flattened, suggestion
from fedadmm.core.errors import ConfigError, FedADMMError, StateError
from fedadmm.core.outputs import Iterate
from fedadmm.core.problem import Problem
from fedadmm.run.callbacks import Callback, Given, as_callbacks
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.experiment import MAY_CHANGE, Experiment
from fedadmm.run.loop import output_model
from fedadmm.run.metrics import Best
from fedadmm.run.record import flat
from fedadmm.run.round_callbacks import BEST
from fedadmm.run.simulate import Result, simulate
from fedadmm.run.state import Ending, RoundReport
from fedadmm.run.stores import DiskStore, MemoryStore, params_sha256
from fedadmm.study import config as configs, formatting, run_history
from fedadmm.study.config import resolve, toml_tables
from fedadmm.study.run_dir import RecordedRun, RunDir, as_recorded, create, plain, read_run
from fedadmm.study.run_history import INTERRUPTED, Summary, best_model, partition_of, summarise

_logger = logging.getLogger("fedadmm")
_PATIENCE = 10.0
"""Seconds until a run that still goes on is believed: a killed comparison's take a while to end."""


def fingerprint(run: Experiment) -> dict[str, Any]:
    """Everything that the trajectory depends on, flat."""
    return flattened(run.affecting(*MAY_CHANGE))


def run(chosen: Experiment, directory: Path, **options: Any) -> Summary:
    """Run an experiment as `run_recorded` does and return its summary."""
    return run_recorded(chosen, directory, **options).summary


def run_recorded(
    chosen: Experiment,
    directory: Path,
    *,
    label: str | None = None,
    resume: bool = False,
    from_round_0: bool = True,
    callbacks: Iterable[Given] = (),
    problem: Problem | None = None,
) -> RecordedRun:
    """Run an experiment and return everything that its directory holds.

    `callbacks` look at this run in addition to the experiment's own, and no file names them.
    With `resume`, a finished run is read as it is and an interrupted one goes on from its
    last checkpoint (or from the start, when it has none).  On KeyboardInterrupt the directory is
    left ready to be resumed.  Rounds that no checkpoint has are run again; without `from_round_0`,
    a run of which nothing was kept is refused instead.
    """
    folder = RunDir(directory)
    finished = _finished(chosen, folder, resume)
    if finished is not None:
        return finished
    create(directory)
    with atomic_files.locked(directory, _PATIENCE):
        atomic_files.remove_leftovers(directory)
        finished = _finished(chosen, folder, resume)  # by the process that was waited for
        if finished is not None:
            return finished
        with _fitting_in_memory(chosen):
            _say_what_is_run_again(chosen, folder, from_round_0)
            session = _Session(chosen, folder, label, as_callbacks(callbacks))
            return session.go(problem or chosen.load_problem())


@contextmanager
def _fitting_in_memory(chosen: Experiment) -> Iterator[None]:
    """Name the problem when the machine has no room for it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        asked = re.search(r"tried to allocate (\d+) bytes", str(error))  # torch has no class for it
        if asked is None and not isinstance(error, MemoryError):
            raise
        size = formatting.size(int(asked[1])) if asked is not None else str(error)
        table = chosen.tree["problem"]
        whole = {key: value for key, value in table.items() if type(value) is int}
        named = ", ".join(f"{key} {value}" for key, value in whole.items())
        raise ConfigError(
            f"problem.name is {table['name']!r} with {named or 'its usual size'}, but must fit "
            f"into the memory of this machine ({size} at once)"
        ) from None


def _finished(chosen: Experiment, folder: RunDir, resume: bool) -> RecordedRun | None:
    """A run that needs no more rounds; refuses one that may not be resumed."""
    if not folder.holds_run:
        return None
    if not resume:
        raise ConfigError(
            f"--out is '{folder.path}', which already holds a run; add --resume to go on with "
            "it, or choose another folder"
        )
    before = resolve(configs.read(str(folder.path)), f"{folder.path}: ")
    old, new = fingerprint(before), fingerprint(chosen)
    differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    if differing:
        changes = ", ".join(f"{key} ({old.get(key)!r} -> {new.get(key)!r})" for key in differing)
        raise StateError(
            f"{folder.path}: holds a run of another configuration, which differs in {changes}"
        )
    ends = ("rounds", "target", "tolerance", "patience")
    same_end = all(before.tree.get(key) == chosen.tree.get(key) for key in ends)
    summary = folder.finished() if same_end else None
    return None if summary is None else read_run(folder.path, chosen.target, summary)


def _say_what_is_run_again(chosen: Experiment, folder: RunDir, from_round_0: bool) -> None:
    """Name the rounds that were recorded and that no checkpoint has."""
    made = len(run_history.rounds(folder.records()))
    kept = Checkpoints(folder.checkpoint, chosen.checkpoint.every).latest_round()
    if kept is None and made and not from_round_0:
        raise StateError(
            f"{folder.path}: {made} rounds are recorded, but no checkpoint was kept "
            f"(checkpoint.every is {chosen.checkpoint.every}), so that all of them would be run "
            "again; add --from-round-0 to do so"
        )
    if made > (kept or 0):
        _logger.warning(
            "%s: rounds %d to %d are run again, because the last checkpoint is of round %d",
            *(folder.path, (kept or 0) + 1, made, kept or 0),
        )


class _Models(NamedTuple):
    """What a run has to hand out after a round."""

    last: Iterate
    best: Best | None


class _Session(Callback):
    """A run that is under way: the first of its callbacks, which writes its directory."""

    def __init__(
        self, chosen: Experiment, folder: RunDir, label: str | None, additional: Sequence[Callback]
    ) -> None:
        self._run = chosen
        self._folder = folder
        self._label = label
        self._additional = additional
        self._checkpoints = Checkpoints(folder.checkpoint, chosen.checkpoint.every)
        self._latest: _Models | None = None
        self._summary: Summary = {}
        self._columns = run_history.Columns()

    def go(self, problem: Problem) -> RecordedRun:
        """Simulate; a run that ends or is interrupted leaves its summary."""
        chosen, folder = self._run, self._folder
        latest = self._checkpoints.latest_round()
        partition = partition_of(problem)
        if latest is not None:
            folder.refuse_other_rows(partition)
        done = self._columns = run_history.Columns(folder.keep(-1 if latest is None else latest))
        store = _store(chosen, folder, fresh=latest is None)
        best = None if latest is None else folder.best()
        before, begun = folder.documents(), summarise(chosen, done, label=self._label, best=best)
        folder.begin(chosen.tree, begun, partition)
        try:
            simulate(
                replace(chosen, callbacks=(self, *chosen.callbacks, *self._additional)),
                problem,
                store=store,
                checkpoints=self._checkpoints,
                resume=latest is not None,
                fingerprint=fingerprint(chosen),
                directory=folder.path,
                summarise=self._close,
            )
        except Exception as error:  # a run refused before its first round leaves no trace
            refused = self._latest is None and isinstance(error, FedADMMError)
            if refused or not folder.records():
                folder.abandon(before)
            raise
        config = toml_tables(configs.write(chosen.tree))  # as the folder holds it
        return as_recorded(folder.path, self._columns, plain(self._summary), config, chosen.target)

    def round(self, report: RoundReport, live: Any) -> None:
        every = self._run.checkpoint.every
        due = report.ending is not None or (every > 0 and report.state.round % every == 0)
        self._folder.append(report.record, durable=due and every > 0)  # before the checkpoint is
        self._columns.add(plain(report.record))
        state, output = report.state, self._run.output
        last = output_model(self._run.algorithm, output, state)
        self._latest = _Models(last, state.components.get(BEST))
        if due and every > 0:
            self._keep_model()
        # A target that no round measures would never be met: refuse it in the first one.
        target, record, measured = self._run.target, report.record, report.record["metrics"]
        if target is not None and measured and target.metric not in flat(record) | measured:
            near = suggestion(target.metric, measured)
            raise ConfigError(f"target.metric is {target.metric!r}, which is not measured; {near}")

    def _close(self, ending: Ending, result: Result | None) -> Summary:
        """Write the summary of a run that ends, is interrupted or fails."""
        digest = None if result is None else params_sha256(result.params)
        threads = None if result is None else result.threads
        if result is not None:
            self._latest = _Models(Iterate(result.params, result.buffers), result.best)
        self._keep_model()
        if result is not None:
            done, best = self._columns, plain(best_model(result.best))
        else:  # an interrupt may have come between the file and the columns
            done = self._folder.columns()
            best = self._folder.best() if done.count else None
        if ending.code == INTERRUPTED:
            kept, made = self._checkpoints.latest_round() or 0, done.tally(None)["rounds"]
            ending = Ending(INTERRUPTED, f"interrupted after round {made}, {kept} rounds are kept")
        method = None if result is None else result.algorithm
        summary = summarise(self._run, done, ending, digest, self._label, threads, best, method)
        self._folder.close(summary)
        self._summary = summary
        return summary

    def _keep_model(self) -> None:
        if self._latest is not None:
            self._folder.write_model(self._latest.best, self._latest.last)


def _store(chosen: Experiment, folder: RunDir, fresh: bool) -> MemoryStore | DiskStore:
    """Where client state is kept; what an abandoned start left on disk is removed."""
    if chosen.store.name == "memory":
        return MemoryStore()
    if fresh:
        shutil.rmtree(folder.clients, ignore_errors=True)
    primal = None if chosen.store.primal == "same" else getattr(torch, chosen.store.primal)
    return DiskStore(folder.clients, primal_dtype=primal, cache_bytes=chosen.store.cache_bytes)
