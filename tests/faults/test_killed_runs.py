"""A run that is killed, at any moment, goes on to the bit-identical result."""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.resumable import fingerprints, run, untimed
from support.thinning import thinned

ROUNDS = 24
KILLS = 20
"""Trials before a release; a third of them for every change."""
PATIENCE = 60.0


class Launcher:
    """Talks to the program that starts the victims."""

    def __init__(self) -> None:
        here = Path(__file__).parents[1]
        found = os.pathsep.join([str(here), str(here.parent / "src")])  # the code beside the test
        environment = {**os.environ, "PYTHONPATH": found, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.victims"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def start(self, *arguments: Any) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps(arguments) + "\n").encode())
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> int:
        assert self._process.stdout is not None
        assert self._selector.select(PATIENCE), "the run neither ended nor answered"
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self._process.stdout.fileno(), 1)
        return int(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._selector.close()
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture(scope="module")
def expected() -> tuple[list[dict[str, Any]], dict[str, str]]:
    result = run(ROUNDS)
    return untimed(result.history), fingerprints(result)


def kill_after(
    launcher: Launcher, metrics: Path, lines: int, delay: float, *arguments: Any
) -> None:
    """Let a run write some lines, wait a random moment more, and kill it."""
    victim = launcher.start(*arguments, True)
    deadline = time.monotonic() + PATIENCE
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < lines:
        assert time.monotonic() < deadline, f"{lines} lines do not come"
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(victim, signal.SIGKILL)
    assert launcher.answer() == -signal.SIGKILL


@pytest.mark.parametrize("trial", thinned(3, range(KILLS)))
def test_a_killed_run_resumes_bit_for_bit(
    trial: int, launcher: Launcher, expected: Any, tmp_path: Path
) -> None:
    draws = random.Random(trial)
    kind, every = ("memory", "disk")[trial % 2], (1, 1, 3, 4)[trial % 4]
    arguments = (str(tmp_path), ROUNDS, kind, every)
    metrics = tmp_path / "metrics.jsonl"
    # A few runs are killed again while they go on.
    for lines in sorted(draws.sample(range(ROUNDS - 8), k=1 + (trial % 5 == 0))):
        kill_after(launcher, metrics, lines, draws.uniform(0.0, 0.02), *arguments)
    launcher.start(*arguments)
    assert launcher.answer() == 0
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
    assert untimed(records) == expected[0]
    assert json.loads((tmp_path / "digests.json").read_text()) == expected[1]
    assert not list(tmp_path.rglob("*.tmp"))
