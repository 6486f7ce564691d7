"""The cells that studies.gong runs, against the committed runs and against each other."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedadmm.core.schedules import Piecewise
from fedadmm.study.config import resolve
from fedadmm.study.single_run import run_recorded
from studies.gong import __main__ as gong
from studies.gong.__main__ import RUNGS, planned, with_rate

RESULTS = Path(__file__).parents[2] / "studies" / "gong" / "results"
SMALL = {
    "problem": {"name": "digits", "clients": 10, "model": "mlp-64-32-10"},
    "engine": {"name": "sequential"},
}
"""The digits and a perceptron in place of MNIST and CNN 1."""
OLDER = sorted(path for path in RESULTS.glob("*-seed0.json") if '"local": {' in path.read_text())


@pytest.mark.parametrize("path", OLDER, ids=lambda path: path.stem)
def test_the_recipes_describe_the_runs_that_were_made(path: Path) -> None:
    """Runs that were made from a table of their own are the recipes' cells."""
    config = json.loads(path.read_text())["config"]
    config["problem"]["as_released"] = "gong"  # True in the oldest, which had one quirk of CNN 1
    made = resolve(config)
    cell = planned()[path.stem.removesuffix("-seed0")]
    lr = made.local.solver.lr
    now = with_rate(cell, lr, made.seed, made.rounds).run
    how = {"engine": made.engine, "checkpoint": made.checkpoint}
    assert replace(now, seed=made.seed, **how) == made


def test_a_stopped_run_goes_on_and_keeps_its_whole_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = planned()["sound-iid-fedavg"].chosen(SMALL)
    monkeypatch.setattr(gong, "CAP", 6)
    whole = gong.reported(cell, 0.1, 0, tmp_path / "whole")
    assert len(whole["curve"]) == 6
    assert whole["epochs"] == 6 * 5.0
    run = with_rate(cell, 0.1, 0, 6).run

    def stop(report):
        if report.record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_recorded(run, tmp_path / "stopped", callbacks=[stop])
    assert gong.reported(cell, 0.1, 0, tmp_path / "stopped") == whole
    assert not (tmp_path / "stopped").exists()


def test_each_rung_of_the_ladder_changes_one_thing() -> None:
    cells = planned()
    names = ["fedavg", *(f"ladder-{rung}" for rung in RUNGS), "released"]
    runs = [with_rate(cells[f"released-iid-{name}"], 0.5, 0, 60).run for name in names]
    momenta = [run.local.solver.momentum for run in runs]
    assert momenta == [0.0, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert [run.local.stop.name for run in runs] == ["epochs"] * 3 + ["uniform-epochs"] * 3
    assert [run.algorithm.name for run in runs] == (
        ["fedavg", "fedavg", "fedavgm", "fedavgm", "fedadmm-released", "fedadmm-released"]
    )
    assert runs[2].algorithm.lr == 2.0
    assert runs[2].algorithm.momentum == 0.0
    assert runs[4].algorithm.step == 1.0
    step = runs[5].algorithm.step
    assert isinstance(step, Piecewise)
    assert [step(t) for t in (0, 59, 60)] == [1.0, 1.0, 0.5]
    assert {run.problem for run in runs} == {runs[0].problem}
    assert runs[0].problem.as_released == "gong"


def test_the_search_uses_three_seeds_that_are_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chosen rate has the best mean over the seeds of those that were tried on all of them."""
    cell = planned()["released-shards-fedavg"].chosen(SMALL)
    monkeypatch.setitem(gong.ROUNDS, "shards", 2)
    monkeypatch.setattr(gong, "RATES", (0.05, 0.1))
    found = gong.search(cell, tmp_path / "scratch")
    scores: dict[float, list[float]] = {}
    for one in found["tried"]:
        (lr,) = one["value"].values()
        scores.setdefault(lr, []).append(one["score"])
    assert {one["seed"] for one in found["tried"]} == {1000, 1001, 1002}
    assert len(scores[found["lr"]]) == 3
    assert not (tmp_path / "scratch").exists()
