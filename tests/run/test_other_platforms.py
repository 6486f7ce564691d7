"""What Linux has and others have not, taken away: fork, fcntl, and the calls around them."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedadmm as fa
from fedadmm.core import atomic_files
from fedadmm.data import problems
from fedadmm.run.engines import Workers
from support.rejections import naming

WITHOUT = """
import multiprocessing, os, sys
import filelock, torch  # they know their platform by themselves
sys.modules["fcntl"] = None  # as on Windows: importing it fails
for name in ("register_at_fork", "sched_getaffinity", "posix_fallocate", "fork"):
    delattr(os, name)
multiprocessing.get_all_start_methods = lambda: ["spawn"]
from fedadmm.cli import main
sys.argv = ["fedadmm", "run", "quadratics", "--rounds", "2", "--out", sys.argv[1]]
main()
"""


def run(engine: Workers | str, problem: fa.Problem) -> fa.Result:
    return fa.simulate(
        fa.FedADMM(rho=0.1),
        problem,
        rounds=3,
        sampler=fa.UniformSampling(2),
        solver=fa.SGD(lr=0.1, batch_size=20),
        engine=engine,
        evaluate=False,
    )


@pytest.fixture
def without_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])


def test_spawned_workers_do_what_forked_ones_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = problems.load("heart-disease")
    expected = run("sequential", problem).params
    assert torch.equal(run(Workers(2, timeout=120.0), problem).params, expected)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert torch.equal(run(Workers(2, timeout=120.0), problem).params, expected)


@pytest.mark.usefixtures("without_fork")
def test_a_problem_that_cannot_be_copied_is_rejected_where_nothing_forks() -> None:
    class Own(fa.Quadratic):
        """Known to this function alone, so that no other process can find it."""

    clients = [Own(torch.eye(2), torch.ones(2)) for _ in range(2)]
    problem = fa.Problem(clients, initial=torch.zeros(2))
    with pytest.raises(fa.errors.CompatibilityError, match=naming("Workers pickled Sequential")):
        run(Workers(1), problem)


def test_a_run_needs_nothing_that_only_linux_has(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").is_file()
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_file_is_reserved_where_the_system_cannot_do_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    atomic_files.Disk().reserve(tmp_path / "reserve", 5000)
    assert (tmp_path / "reserve").read_bytes() == bytes(5000)
