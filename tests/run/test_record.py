"""The record of a round: names that mean two things, rows, and lines of other versions."""

from __future__ import annotations

import csv
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedadmm.core.errors import DataError
from fedadmm.run import record as record_module
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.record import (
    GROUPS,
    PHASES,
    Stopwatch,
    additional,
    as_number,
    flat,
    numbers,
    profile,
    read,
    value,
)
from fedadmm.study.config import resolve
from fedadmm.study.export import export
from fedadmm.study.report.panels import sections
from fedadmm.study.run_dir import RunDir
from fedadmm.study.single_run import run
from support import resumable
from support.commands import SMALL, read_content
from support.records import made
from support.rejections import naming

RECORD: Any = made(3, loss=0.5, seconds=0.25, epochs=2.0, clients=[1, 4]) | {
    "metrics": {"loss": 0.5, "seconds": 7.0, "round": 8.0, "run": 9.0, "kkt_residual": 1.0},
    "callbacks": {"kkt_residual": 4.0, "warnings": ["w"]},
    "network": {"sites": {"answered": 2, "metrics": {"loss": 0.6}}},
}


def test_values_are_found_among_metrics_first_and_then_in_other_groups():
    assert value(RECORD, "seconds") == 7.0
    assert additional(RECORD, "seconds") == 0.25
    assert (value(RECORD, "epochs"), value(RECORD, "kkt_residual")) == (2.0, 1.0)
    assert additional(RECORD, "kkt_residual") == 4.0
    assert additional(RECORD, "loss") is None
    assert value(RECORD, "nobody") is None
    assert value(RECORD, "clients") is None


def test_a_row_keeps_the_short_names_and_marks_the_metrics_that_mean_something_else():
    assert flat(RECORD, taken=["run"]) == {
        "round": 3,
        "clients": [1, 4],
        "epochs": 2.0,
        "seconds": 0.25,
        "loss": 0.5,
        "metrics.seconds": 7.0,
        "metrics.round": 8.0,
        "metrics.run": 9.0,
        "metrics.kkt_residual": 1.0,
        "kkt_residual": 4.0,
        "warnings": ["w"],
        "sites": {"answered": 2, "metrics": {"loss": 0.6}},
    }
    assert flat(RECORD)["run"] == 9.0
    row = flat(RECORD)
    assert numbers(RECORD) == {
        name: row[name] for name in row if name not in ("round", "clients", "warnings", "sites")
    }


def test_a_table_has_a_column_for_each_of_two_meanings(tmp_path: Path) -> None:
    RunDir(tmp_path).append(RECORD)
    path, _ = export(tmp_path, "csv")
    with path.open(encoding="utf-8", newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert (row["round"], row["metrics.round"]) == ("3", "8.0")
    assert (row["seconds"], row["metrics.seconds"]) == ("0.25", "7.0")
    assert (row["run"], row["metrics.run"]) == (tmp_path.name, "9.0")
    assert (row["loss"], row["sites.metrics.loss"]) == ("0.5", "0.6")


def test_a_report_draws_both_meanings(tmp_path: Path) -> None:
    for t in (1, 2, 3):
        record = made(t, epochs=2.0 * t) | {"callbacks": {"mine": 30.0 * t}}
        RunDir(tmp_path).append(record | {"metrics": {"epochs": 50.0 + t, "mine": 70.0 * t}})
    panels = [panel for part in sections(read_content(tmp_path)) for panel in part.panels]
    drawn = {panel.name: list(panel.lines[0].y) for panel in panels if hasattr(panel, "lines")}
    assert drawn == {
        "epochs": [2.0, 4.0, 6.0],
        "metrics.epochs": [51.0, 52.0, 53.0],
        "mine": [30.0, 60.0, 90.0],
        "metrics.mine": [70.0, 140.0, 210.0],
    }


@pytest.mark.parametrize(
    "line",
    [
        {"round": 1, "participants": 2, "clients": [0, 1], "loss": 0.5},
        {"round": 1, "sites": {"answered": 2}},
        {"round": 1, "metrics": 0.5},
        {"round": 1, "metrics": None},
    ],
)
def test_records_of_another_version_are_rejected_and_not_changed(
    line: dict[str, Any], tmp_path: Path
) -> None:
    run(resolve(SMALL | {"rounds": 2}), tmp_path)
    text = json.dumps(line) + "\n"
    (tmp_path / "metrics.jsonl").write_text(text)
    message = naming("metrics.jsonl line 1 version")
    with pytest.raises(DataError, match=message):
        RunDir(tmp_path).records()
    with pytest.raises(DataError, match=message):
        run(resolve(SMALL | {"rounds": 4}), tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_text() == text


def test_a_line_may_leave_groups_out():
    assert read({"round": 2}) == {"round": 2} | {group: {} for group in GROUPS[:5]}
    assert read({"metrics": {}}) == "does not say which round it is about"


@pytest.mark.parametrize("sent", [-1, 1.5, 1e308, True, None, "8", 2**63])
def test_bytes_are_whole_numbers_that_can_be_added(sent: Any) -> None:
    assert read({"round": 1, "traffic": {"bytes_up": 2**63 - 1}})["traffic"]["bytes_up"] > 0
    wanted = f"says that traffic.bytes_up is {sent}, but it must be 0 … 9223372036854775807"
    assert read({"round": 1, "traffic": {"bytes_up": sent}}) == wanted


def test_a_number_is_what_a_float_can_hold():
    for one in (2, 2.0, np.float32(2), np.int64(2), torch.tensor(2.0)):
        assert as_number(one) == 2.0
    for one in (True, None, "2", [2.0], {}, 10**400, torch.zeros(2), np.zeros(2)):
        assert as_number(one) is None


def test_every_moment_of_a_round_counts_for_one_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves on by hand: state is read inside the local work, inside the fold."""
    now = [100.0]
    monkeypatch.setattr(record_module.time, "perf_counter", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds

    watch = Stopwatch()
    passes(1)
    with watch.on("fold"):
        passes(2)
        with watch.on("local"):
            passes(4)
            watch.around("state", passes)(8)
            passes(16)
        passes(32)
    with suppress(ValueError), watch.on("evaluation"):
        passes(64)
        raise ValueError
    passes(128)
    assert watch.taken() == {
        "other_seconds": 129.0,
        "fold_seconds": 34.0,
        "local_seconds": 20.0,
        "state_seconds": 8.0,
        "evaluation_seconds": 64.0,
    }
    passes(256)
    assert watch.taken() == {"other_seconds": 256.0}


def test_a_run_records_the_time_of_its_phases(tmp_path: Path) -> None:
    """The parts of the rounds cannot be longer than the run, and the checkpoint is among them."""
    began = time.perf_counter()
    result = resumable.run(3, checkpoints=Checkpoints(tmp_path), evaluate=True)
    lasted = time.perf_counter() - began
    found = profile(result.history)
    assert {*found} == {*PHASES}
    assert 0 < sum(found.values()) < lasted
