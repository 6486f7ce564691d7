"""A folder belongs to one process at a time, and to nobody once that process has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from fedadmm.core.atomic_files import locked
from fedadmm.core.errors import StateError
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.engines.choice import Sequential
from fedadmm.run.stores import DiskStore
from support.resumable import contents, make_store, run

HOLD = """
import os, sys, time
from pathlib import Path
from fedadmm.core.atomic_files import locked
with locked(Path(sys.argv[1]), 1.0):
    alone = sys.argv[2] == "alone"
    if alone or os.fork() == 0:  # a worker speaks for itself: only then has it let go of the lock
        print(-1 if alone else os.getpid(), flush=True)
    time.sleep(300)
"""


@contextmanager
def holder(folder: Path, *, worker: bool = False) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the folder, and the id of the worker that it forked."""
    arguments = [sys.executable, "-c", HOLD, str(folder), "with a worker" if worker else "alone"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        yield process, child
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()
        if child > 0:
            os.kill(child, signal.SIGKILL)


def test_a_second_process_is_rejected_with_the_id_of_the_first(tmp_path: Path) -> None:
    with (
        holder(tmp_path) as (process, _),
        pytest.raises(StateError, match=f"in use by process {process.pid}; waited 0.1 s"),
        locked(tmp_path, 0.1),
    ):
        pass


def test_a_waiting_process_gets_the_lock_next(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, _):
        process.terminate()
        with locked(tmp_path, 60.0):
            assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    with locked(tmp_path, 0.0):
        pass


def test_a_killed_process_leaves_no_lock_with_its_workers(tmp_path: Path) -> None:
    with holder(tmp_path, worker=True) as (process, child):
        process.kill()
        process.wait(60)
        os.kill(child, 0)  # still there
        with locked(tmp_path, 0.0):
            pass


def test_a_lock_that_is_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with (
        pytest.raises(StateError, match=r"cannot lock .*\.lock: Is a directory"),
        locked(tmp_path, 0),
    ):
        pass


def test_a_lock_file_with_invalid_content_is_still_a_lock(tmp_path: Path) -> None:
    with locked(tmp_path, 0):
        (tmp_path / ".lock").write_bytes(b"\xff\x1b[2Jforged\n")
        with pytest.raises(StateError, match="in use by process unknown"), locked(tmp_path, 0):
            pass


@pytest.mark.parametrize("kind", ["memory", "disk", "ray's default"])
@pytest.mark.parametrize("held", ["checkpoint", "checkpoint/clients"])
def test_two_runs_of_a_program_do_not_share_a_folder(held: str, kind: str, tmp_path: Path) -> None:
    """Not even those that know nothing of run directories, and neither store nor checkpoints."""
    folder = tmp_path / held
    folder.mkdir(parents=True)
    uses_store = kind != "memory"
    with holder(folder) as (process, _):
        refusal = f"in use by process {process.pid}"
        expected = (
            pytest.raises(StateError, match=refusal)
            if held == "checkpoint" or uses_store
            else nullcontext()
        )
        before = contents(tmp_path)
        with expected:
            start(tmp_path, kind)
        if held == "checkpoint":
            assert contents(tmp_path) == before
    start(tmp_path, kind)  # the lock went with its process


def start(directory: Path, kind: str, **options: Any) -> Any:
    checkpoints = Checkpoints(directory / "checkpoint")
    engine = _OnDisk() if kind == "ray's default" else None
    store = make_store("memory" if engine else kind, directory)
    return run(2, store=store, checkpoints=checkpoints, engine=engine, **options)


class _OnDisk(Sequential):
    """Needs a store on disk, as the ray engine does."""

    needs_disk = True


def test_one_folder_may_hold_both_checkpoints_and_client_state(tmp_path: Path) -> None:
    run(2, store=DiskStore(tmp_path), checkpoints=Checkpoints(tmp_path))
    assert Checkpoints(tmp_path).latest_round() == 2


def test_what_another_run_did_between_a_look_and_the_start_is_seen(tmp_path: Path) -> None:
    early = Checkpoints(tmp_path / "checkpoint")
    assert early.latest_round() is None
    start(tmp_path, "memory")
    result = run(5, checkpoints=early, resume=True)
    assert [record["round"] for record in result.history] == [3, 4, 5]
