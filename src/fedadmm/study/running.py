"""One experiment into one run directory: fresh, cached or resumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fedadmm.errors import ConfigError, StateError
from fedadmm.problem import Problem
from fedadmm.resuming import interrupts_deferred
from fedadmm.round import Ending, Record, RoundReport
from fedadmm.simulation import simulate
from fedadmm.state import Checkpoints, DiskStore, MemoryStore, params_sha256
from fedadmm.state.locks import locked
from fedadmm.study import loading
from fedadmm.study import rundir as files
from fedadmm.study.config import Built, RunConfig, build, resolve
from fedadmm.study.messages import suggestion
from fedadmm.study.summary import Summary, metrics_of, partition_of, summarise
from fedadmm.study.trackers import Tracker, flattened, tracker

Watcher = Callable[[Record], None]
"""Called with every new record: progress, pipes, anything that only looks."""

_MAY_CHANGE = ("rounds", "engine", "checkpoint", "trackers", "device", "target", "tolerance")
"""Keys that a resumed run may change, because the rounds so far do not depend on them."""

_PATIENCE = 10.0
"""Seconds until a run that still goes on is believed: a killed comparison's take a while to end."""


def fingerprint(config: RunConfig) -> dict[str, Any]:
    """Everything that the trajectory depends on, flat."""
    may_change = set(_MAY_CHANGE)
    if getattr(config.engine.build(), "shapes_the_run", False):
        may_change.remove("engine")
    tree = {key: value for key, value in config.tree().items() if key not in may_change}
    return flattened(tree)


def run(
    config: RunConfig,
    directory: Path,
    *,
    label: str | None = None,
    resume: bool = False,
    watchers: Sequence[Watcher] = (),
    problem: Problem | None = None,
) -> Summary:
    """Run an experiment and return its summary; everything else is in the directory.

    With `resume`, a finished run is returned as it is and an interrupted one goes on from its
    last checkpoint (or from the start, when it has none).  On KeyboardInterrupt the directory is
    left ready to be resumed.
    """
    finished = _finished(config, directory, resume)
    if finished is not None:
        return finished
    files.create(directory)
    with locked(directory, _PATIENCE):
        finished = _finished(config, directory, resume)  # by the process that was waited for
        if finished is not None:
            return finished
        return _run(config, directory, label, watchers, problem)


def _run(
    config: RunConfig,
    directory: Path,
    label: str | None,
    watchers: Sequence[Watcher],
    problem: Problem | None,
) -> Summary:
    built = build(config, problem)
    followers = [tracker(name) for name in config.trackers]
    checkpoints = _checkpoints(config, directory)
    done = _done_so_far(directory, checkpoints)
    store = _store(config, directory, fresh=not done)
    files.write_text(directory / files.CONFIG, loading.write(config.tree()))
    partition = partition_of(built.problem)
    if partition is not None:
        files.write_json(directory / files.PARTITION, partition)
    for follower in followers:
        follower.start(directory, config.tree(), len(done) + 1)
    session = _Session(config, directory, label, followers, watchers)
    return session.go(built, store, checkpoints, resume=bool(done))


def _finished(config: RunConfig, directory: Path, resume: bool) -> Summary | None:
    """The summary of a run that needs no more rounds; refuses one that may not be resumed."""
    if not files.holds_run(directory):
        return None
    if not resume:
        raise ConfigError(
            f"--out is '{directory}', which already holds a run; add --resume to go on with "
            "it, or choose another folder"
        )
    before = resolve(loading.read(str(directory)), f"{directory}: ")
    old, new = fingerprint(before), fingerprint(config)
    differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    if differing:
        changes = ", ".join(f"{key} ({old.get(key)!r} -> {new.get(key)!r})" for key in differing)
        raise StateError(
            f"{directory}: holds a run of another configuration, which differs in {changes}"
        )
    path = directory / files.SUMMARY
    if not path.is_file():
        return None
    summary = files.read_json(path)
    same_end = (before.rounds, before.target, before.tolerance) == (
        config.rounds,
        config.target,
        config.tolerance,
    )
    return summary if same_end and summary.get("code") != "interrupted" else None


def _checkpoints(config: RunConfig, directory: Path) -> Checkpoints | None:
    every = config.checkpoint.every
    return Checkpoints(directory / files.CHECKPOINT, every) if every else None


def _store(config: RunConfig, directory: Path, fresh: bool) -> MemoryStore | DiskStore:
    """Where client state is kept; what an abandoned start left on disk is removed."""
    if config.store.name == "memory":
        return MemoryStore()
    folder = directory / files.CLIENTS
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    primal = None if config.store.primal == "same" else getattr(torch, config.store.primal)
    return DiskStore(folder, primal_dtype=primal, cache_bytes=config.store.cache_bytes)


def _done_so_far(directory: Path, checkpoints: Checkpoints | None) -> list[Record]:
    """The records that stay; the others will be made again."""
    latest = checkpoints.latest_round() if checkpoints is not None else None
    return files.cut_metrics(directory, latest or 0)


class _Session:
    """A run that is under way."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        label: str | None,
        followers: Sequence[Tracker],
        watchers: Sequence[Watcher],
    ) -> None:
        self._config = config
        self._directory = directory
        self._label = label
        self._followers = followers
        self._watchers = watchers

    def go(
        self,
        built: Built,
        store: MemoryStore | DiskStore,
        checkpoints: Checkpoints | None,
        resume: bool,
    ) -> Summary:
        """Simulate; a run that ends or is interrupted leaves a summary."""
        config = self._config
        writer = files.MetricsWriter(self._directory)
        try:
            result = simulate(
                built.algorithm,
                built.problem,
                config.rounds,
                sampler=built.sampler,
                solver=built.solver,
                stop=built.stop,
                seed=config.seed,
                initial=initial_vector(config, built.problem),
                engine=built.engine,
                evaluate=built.evaluation,
                target=built.target if config.target and config.target.end_run else None,
                tolerance=None if isinstance(config.tolerance, str) else config.tolerance,
                observers=[writer, self._observe],
                store=store,
                checkpoints=checkpoints,
                resume=resume,
                fingerprint=fingerprint(config),
            )
        except KeyboardInterrupt:
            with interrupts_deferred():  # a second Ctrl-C waits for the summary
                rounds = len(files.read_metrics(self._directory))
                self._close(Ending("interrupted", f"interrupted after round {rounds}"), None)
            raise
        finally:
            writer.close()
        return self._close(Ending(result.code, result.status), params_sha256(result.params))

    def _observe(self, report: RoundReport) -> None:
        self._check_target(report.record)
        for follower in self._followers:
            follower.record(report.record)
        for watcher in self._watchers:
            watcher(report.record)

    def _check_target(self, record: Record) -> None:
        """A target that no round measures would never be met: refuse it in the first one."""
        target, measured = self._config.target, metrics_of(record)
        if target is not None and measured and target.metric not in record:
            near = suggestion(target.metric, measured)
            raise ConfigError(f"target.metric is {target.metric!r}, which is not measured; {near}")

    def _close(self, ending: Ending, digest: str | None) -> Summary:
        records = files.read_metrics(self._directory)
        summary = summarise(self._config, records, ending, digest, self._label)
        files.write_json(self._directory / files.SUMMARY, summary)
        for follower in self._followers:
            follower.finish(summary)
        return summary


def initial_vector(config: RunConfig, problem: Problem) -> torch.Tensor:
    """The problem's start vector in the configured precision, on the configured device."""
    try:
        device = torch.device(config.device)
        vector = problem.start(config.seed).to(device, getattr(torch, config.precision))
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device is {config.device!r}, but cannot be used ({reason})") from None
    return vector
