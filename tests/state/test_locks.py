"""A folder belongs to one process at a time, and to nobody once that process has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedadmm.core.errors import StateError
from fedadmm.core.files import locked

HOLD = """
import os, sys, time
from pathlib import Path
from fedadmm.core.files import locked
with locked(Path(sys.argv[1]), 1.0):
    child = os.fork() if sys.argv[2] == "with a worker" else -1
    if child:
        print(child, flush=True)
    time.sleep(60)
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
        process.wait(10)
        process.stdout.close()
        if child > 0:
            os.kill(child, signal.SIGKILL)


def test_a_second_process_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    with (
        holder(tmp_path) as (process, _),
        pytest.raises(StateError, match=f"in use by process {process.pid}; waited 0.1 s"),
        locked(tmp_path, 0.1),
    ):
        pass


def test_who_waits_comes_next(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, _):
        process.terminate()
        with locked(tmp_path, 10.0):
            assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    with locked(tmp_path, 0.0):
        pass


def test_a_killed_process_leaves_no_lock_with_its_workers(tmp_path: Path) -> None:
    with holder(tmp_path, worker=True) as (process, child):
        process.kill()
        process.wait(10)
        os.kill(child, 0)  # still there
        with locked(tmp_path, 0.0):
            pass
