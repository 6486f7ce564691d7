"""The cells that studies.gong runs, against the committed runs and against each other."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedadmm.core.schedules import Piecewise
from fedadmm.study.config import resolve
from studies.gong.__main__ import RUNGS, curve, planned, search, with_rate, worth

RESULTS = Path(__file__).parents[2] / "studies" / "gong" / "results"
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
    assert replace(now, engine=made.engine, seed=made.seed) == made


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


def test_the_better_half_of_the_rates_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Made:
        def __init__(self, cell, resume):
            lr, rounds = cell.run.local.solver.lr, cell.run.rounds
            first = 2 if resume else 0
            made.append((lr, rounds, resume))
            self.history = [
                {"metrics": {"test_accuracy": lr if lr < 0.5 else 0.15 + t / 1000}}
                for t in range(first, rounds)
            ]

    monkeypatch.setattr(
        "studies.gong.__main__.simulated", lambda cell, folder, resume, every: Made(cell, resume)
    )
    found = search(planned()["released-iid-fedavg"])
    assert found["lr"] == 0.2
    assert made == [
        *((lr, 2, False) for lr in (0.01, 0.1, 0.2, 0.5)),
        *((lr, 5, True) for lr in (0.2, 0.5)),
    ]
    assert [len(values) for values in found["curves"].values()] == [2, 2, 5, 5]


def test_a_rate_that_reaches_the_target_sooner_is_worth_more() -> None:
    assert worth([0.5, 0.98]) > worth([0.5, 0.9, 0.98]) > worth([0.96, 0.969, 0.9695, 0.9699])
    assert curve(type("R", (), {"history": [{"metrics": {}}]})()) == [0.0]
