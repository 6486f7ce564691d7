"""What is missing is run, what is there is read once, and a search chooses by what it tried."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedadmm.study.config import resolve
from fedadmm.study.rundir import RunDir
from fedadmm.study.runner import Began, Event, Recorded, choose, run_study
from fedadmm.study.study import Cell, Study
from support.commands import SMALL, call, write_small


def study(**runs: Any) -> Study:
    return Study("sweep", [Cell(label, resolve(SMALL | t), label) for label, t in runs.items()])


def test_finished_cells_are_not_run_again(tmp_path: Path) -> None:
    began: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, Began):
            began.append(event.label)

    first = run_study(study(a={}, b={"seed": 1}), tmp_path, watch=watch)
    wanted = study(a={}, b={"seed": 1}, c={"seed": 2}, again={})
    more = run_study(wanted, tmp_path, watch=watch)
    assert began == ["a", "b", "c"]
    assert [run.label for run in more.runs] == ["a", "b", "c", "again"]
    assert more.runs[0] == first.runs[0]  # what was read is what was in memory
    assert more.runs[3] == first.runs[0].judged("again", None)
    shutil.rmtree(first.runs[1].directory)
    cached = run_study(wanted, tmp_path, watch=watch, only_cached=True)
    assert [run.label for run in cached.runs] == ["a", "c", "again"]
    assert began == ["a", "b", "c"]


def test_an_interrupted_cell_goes_on(tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, Recorded) and event.record["round"] == 3:
            raise KeyboardInterrupt

    wanted = study(a={"rounds": 6})
    with pytest.raises(KeyboardInterrupt):
        run_study(wanted, tmp_path / "broken", watch=interrupt)
    assert not run_study(wanted, tmp_path / "broken", only_cached=True).runs
    rounds: list[int] = []

    def count(event: Event) -> None:
        if isinstance(event, Recorded):
            rounds.append(event.record["round"])

    (resumed,) = run_study(wanted, tmp_path / "broken", watch=count).runs
    assert rounds == [3, 4, 5, 6]  # the third had not been completed
    (whole,) = run_study(wanted, tmp_path / "whole").runs
    assert resumed.summary["params_sha256"] == whole.summary["params_sha256"]
    assert [record["round"] for record in resumed.records] == [1, 2, 3, 4, 5, 6]


def test_a_search_prefers_rounds_then_worth_and_never_divergence() -> None:
    def row(value: float, rounds: int | None, best: float | None, code: str = "x") -> Any:
        known = {"label": "m", "key": "local.solver.lr", "more_is_better": True}
        return known | {"value": value, "rounds_to_target": rounds, "best": best, "code": code}

    assert choose([row(1, None, 0.9), row(2, 30, 0.8), row(3, 20, 0.7)])["m"]["value"] == 3
    assert choose([row(1, None, 0.8), row(2, None, 0.9), row(3, None, None)])["m"]["value"] == 2
    assert choose([row(1, 5, 0.99, "diverged"), row(2, None, 0.1)])["m"]["value"] == 2
    assert choose([row(1, 20, 0.9), row(2, 20, 0.9)])["m"]["value"] == 1


def test_a_comparison_reads_no_run_that_it_has_computed_and_a_finished_one_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Counter[str] = Counter()
    real = RunDir.records

    def counted(self: RunDir) -> Any:
        found = real(self)
        read[self.path.name] += bool(found)
        return found

    monkeypatch.setattr(RunDir, "records", counted)
    methods = [{"algorithm": {"name": name}} for name in ("fedavg", "fedadmm")]
    search = {"values": [0.01, 0.05], "rounds": 2}
    config = write_small(tmp_path / "c.toml", methods=methods, seeds=[0, 1], search=search)
    options = ("--out", tmp_path / "out", "--jobs", 1)
    first = call("compare", config, *options)
    assert first.exit_code == 0, first.stderr
    assert read == Counter()
    again = call("compare", config, *options, "--resume")
    assert again.exit_code == 0, again.stderr
    assert again.stdout == first.stdout
    folders = [*(tmp_path / "out/runs").iterdir(), *(tmp_path / "out/search").iterdir()]
    assert read == Counter(folder.name for folder in folders)
