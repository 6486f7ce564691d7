"""Runs side by side in processes, none of which outlives its parent."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fedadmm.core.errors import ConfigError, EngineError
from fedadmm.study.config import resolve
from fedadmm.study.run_dir import RunDir
from fedadmm.study.runner import PlannedRun, RoundRecorded, RunEvent, run_planned
from support.commands import SMALL


def test_a_worker_that_dies_is_reported_and_none_is_left(tmp_path: Path) -> None:
    chosen = resolve(SMALL | {"callbacks": [{"name": "support.victims_of_a_pool:Suicidal"}]})
    jobs = [PlannedRun(f"run {i}", chosen, tmp_path / str(i)) for i in range(2)]
    before = _children()
    with pytest.raises(EngineError, match="its process ended with code -9"):
        run_planned(jobs, 2)
    assert _children() == before


def test_a_refusal_in_a_worker_reaches_the_caller(tmp_path: Path) -> None:
    chosen = resolve(SMALL | {"device": "abacus"})
    jobs = [PlannedRun(f"run {i}", chosen, tmp_path / str(i)) for i in range(2)]
    with pytest.raises(ConfigError, match="device is 'abacus'"):
        run_planned(jobs, 2)


def test_an_interrupt_stops_every_worker_with_its_run_ready_to_go_on(tmp_path: Path) -> None:
    chosen = resolve(SMALL | {"rounds": 100_000, "checkpoint": {"every": 1000}})
    jobs = [PlannedRun(f"run {i}", chosen.with_seed(i), tmp_path / str(i)) for i in range(2)]
    seen: set[int] = set()

    def watch(event: RunEvent) -> None:
        if isinstance(event, RoundRecorded):
            seen.add(event.job)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = _children()
    with pytest.raises(KeyboardInterrupt):
        run_planned(jobs, 2, watch)
    assert _children() == before
    codes = {RunDir(tmp_path / str(i)).summary()["code"] for i in range(2)}
    assert codes == {"interrupted"}


def _children() -> set[int]:
    import multiprocessing

    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}
