"""A clock from the configuration to the report: run, resume, compare, draw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedadmm.core.errors import StateError
from fedadmm.study import config
from fedadmm.study.compare import compare, plan
from fedadmm.study.config import resolve
from fedadmm.study.report import write_report
from fedadmm.study.report.panels import sections
from fedadmm.study.run_dir import RunDir
from fedadmm.study.run_history import SHOWN_WORK
from fedadmm.study.single_run import run
from support.commands import read_content as read
from support.rejections import naming

PROBLEM = {"name": "quadratics", "clients": 6, "dimension": 3}
TREE: dict[str, Any] = {
    "rounds": 12,
    "precision": "float64",
    "problem": PROBLEM,
    "algorithm": {"name": "feddr", "eta": 0.5},
    "local": {"solver": {"name": "exact"}},
    "engine": {"name": "virtual-time", "mode": "sync", "ratio": 4.0},
    "checkpoint": {"every": 0},
}
LATE = {
    "label": "late",
    "algorithm": {"name": "async-feddr", "eta": 0.5},
    "engine": {"ratio": 4.0},
    "rounds": 40,
    "evaluate": {"every": 5},
}


def test_a_method_without_rounds_brings_its_engine_along():
    tree = {"problem": PROBLEM, "algorithm": {"name": "async-feddr"}}
    assert resolve(tree).engine.name == "virtual-time"
    assert resolve(tree | {"engine": {"buffer": 2}}).engine.buffer == 2
    assert resolve({"problem": PROBLEM, "algorithm": {"name": "feddr"}}).engine.name == "auto"


def test_a_summary_tells_the_virtual_time_and_no_bookkeeping(tmp_path: Path):
    target = {"metric": "loss", "value": 0.5, "at_least": False, "end_run": False}
    summary = run(resolve(TREE | {"target": target}), tmp_path)
    records = RunDir(tmp_path).records()
    assert summary["virtual_time"] == records[-1]["clock"]["virtual_time"]
    first = next(record for record in records if record["metrics"]["loss"] <= 0.5)
    assert summary["virtual_time_to_target"] == first["clock"]["virtual_time"]
    assert set(summary["final"]) == {"loss", "objective", "gradient_mapping"}


def test_a_run_resumes_with_its_work_in_flight_and_only_on_its_own_clock(tmp_path: Path):
    tree = TREE | {key: LATE[key] for key in ("algorithm", "rounds")} | {"checkpoint": {"every": 7}}
    tree |= {"engine": {"name": "virtual-time", "ratio": 4.0}}
    whole = run(resolve(tree), tmp_path / "whole")
    run(resolve(tree | {"rounds": 20}), tmp_path / "part")
    other = tree | {"engine": {"name": "virtual-time", "ratio": 5.0}}
    with pytest.raises(StateError, match=naming("engine.ratio")):
        run(resolve(other), tmp_path / "part", resume=True)
    resumed = run(resolve(tree), tmp_path / "part", resume=True)
    assert resumed["params_sha256"] == whole["params_sha256"]
    assert resumed["virtual_time"] == whole["virtual_time"]


def test_a_comparison_of_rounds_and_no_rounds_under_one_clock(tmp_path: Path):
    comparison = plan(TREE | {"methods": [{"label": "rounds"}, LATE]})
    result = compare(comparison, tmp_path).document
    by_label = {row["label"]: row for row in result["runs"]}
    assert by_label["rounds"]["rounds"] == 12
    assert by_label["late"]["rounds"] == 40
    again = plan(config.table(tmp_path / "study.toml"))
    assert again.cells == comparison.cells

    content = read(tmp_path)
    found = {panel.name: panel for section in sections(content) for panel in section.panels}
    learning = next(section for section in sections(content) if section.name == "learning")
    assert "virtual" in [axis.name for axis in learning.axes]
    late = RunDir(tmp_path / "runs/late-seed0").records()
    assert sum(found["delays"].values) == 40
    assert found["delays"].column == "delay"
    assert found["delays"].values[0] == sum(record["clock"]["delays"] == [0] for record in late)
    strip = found["strip-late"]
    assert len(strip.bars) == 40 <= SHOWN_WORK
    assert strip.clients == sorted({record["cohort"]["clients"][0] for record in late})
    assert strip.bars[0][:2] == [late[0]["cohort"]["clients"][0], 0.0]
    assert found["staleness"].lines[0].high[-1] == max(r["clock"]["staleness_max"] for r in late)
    page = write_report(tmp_path, tmp_path / "figures").read_text()
    assert "Local work over time: late" in page
    assert json.dumps(strip.bars[0], separators=(",", ":")) in page
    assert (tmp_path / "figures" / "strip-late.svg").stat().st_size > 0
