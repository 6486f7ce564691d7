"""Rounds that were made and not kept are named, and nobody runs them again by chance."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

import fedadmm as fa
from fedadmm.cli import app
from fedadmm.study.run_dir import RunDir

RUN = ["digits", "--set", "problem.clients=2", "--no-report", "--checkpoint-every", "0"]


def begun(out, number):
    """A run without checkpoints that a signal ended after a few rounds."""
    command = [
        sys.executable,
        "-m",
        "fedadmm",
        "run",
        *RUN,
        "--rounds",
        "100000",
        "--out",
        str(out),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(RunDir(out).records()) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    told = process.communicate(timeout=120)[1].decode()
    return process.returncode, told


def test_after_a_kill_without_checkpoints_resume_says_what_would_be_run_again(tmp_path):
    begun(tmp_path / "run", signal.SIGKILL)
    made = len(RunDir(tmp_path / "run").records())
    again = ["run", "--out", str(tmp_path / "run"), "--resume", "--rounds", "2", "--no-report"]
    refused = CliRunner().invoke(app, again)
    assert refused.exit_code == 2
    assert f"{made} rounds are recorded, but no checkpoint was kept (checkpoint.every is 0)" in (
        refused.output
    )
    assert len(RunDir(tmp_path / "run").records()) == made
    done = CliRunner().invoke(app, [*again, "--from-round-0"])
    assert done.exit_code == 0, done.output
    assert len(RunDir(tmp_path / "run").records()) == 2


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP")
def test_a_terminal_that_closes_leaves_a_checkpoint(tmp_path):
    code, told = begun(tmp_path / "run", signal.SIGHUP)
    assert code == 143
    assert "go on with: fedadmm run" in told
    summary = RunDir(tmp_path / "run").summary()
    assert summary["code"] == "interrupted"
    assert f"{summary['rounds']} rounds are kept" in summary["status"]


ROWS = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
BINARY = torch.nn.functional.binary_cross_entropy_with_logits
WRONG = {
    "truth values": (ROWS[:, 0] > 0, BINARY, "targets: got shape () and type bool each, expected"),
    "a complex loss": (
        ROWS[:, 0],
        lambda outputs, targets: ((outputs - targets) * 1j).mean(),
        "loss returns a complex number, expected one number",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_targets_and_losses_are_sentences(what):
    targets, loss, sentence = WRONG[what]
    module = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0))
    objective = fa.ModelObjective(module, loss, ROWS, targets)
    with pytest.raises(fa.errors.DataError) as caught:
        objective.check()
    assert sentence in str(caught.value)


def test_a_stage_without_a_list_is_a_sentence():
    problem = fa.Problem([fa.Quadratic(torch.eye(2), torch.ones(2))])
    with pytest.raises(fa.errors.ParameterError, match="expected a list"):
        fa.simulate(fa.FedAvg(), problem, 1, pipeline=fa.Clip(1.0), solver=fa.ExactSolver())
