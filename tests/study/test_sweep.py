"""A sweep is every combination of its values, and each cell keeps what was set."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedadmm.core.errors import ConfigError
from fedadmm.study import config as configs
from fedadmm.study.runner import RunEvent, RunStarted
from fedadmm.study.study_result import runs_table
from fedadmm.study.sweep import SweptKey, axis, plan, planned, sweep
from support.commands import SMALL


def test_a_grid_is_every_combination_and_lists_go_in_step() -> None:
    grid = [axis("algorithm.rho=0.5,1", "--grid"), SweptKey("seed", [0, 1])]
    lists = [axis("rounds=2,3", "--list"), axis("local.solver.lr=0.1,0.2", "--list")]
    cells = plan(SMALL, grid, lists).cells
    found = {(c.run.rounds, c.run.local.solver.lr, c.run.algorithm.rho, c.run.seed) for c in cells}
    assert found == {
        (rounds, lr, rho, seed)
        for rounds, lr in ((2, 0.1), (3, 0.2))
        for rho in (0.5, 1)
        for seed in (0, 1)
    }
    assert len(cells) == 8


def test_axes_are_toml_or_strings() -> None:
    assert axis("algorithm.name=fedavg,fedprox", "--grid").values == ["fedavg", "fedprox"]
    assert axis("a=[1, 2]", "--grid").values == [1, 2]
    with pytest.raises(ConfigError, match="--grid: got 'a', expected KEY=A,B"):
        axis("a", "--grid")
    with pytest.raises(ConfigError, match=r"must be of one length, but are a \(1\), b \(2\)"):
        plan(SMALL, [], [SweptKey("a", [1]), SweptKey("b", [1, 2])])
    with pytest.raises(ConfigError, match=r"algorithm.rh=1: algorithm.rh is not a key"):
        plan(SMALL, [SweptKey("algorithm.rh", [1])], [])
    with pytest.raises(ConfigError, match=r"seed is \[3, 3\], but must not hold 3 twice"):
        plan(SMALL, [SweptKey("seed", [3, 3])], [])


def test_what_is_set_reaches_every_cell_that_has_the_key() -> None:
    grid = [SweptKey("algorithm.name", ["fedavg", "fedprox", "fedadmm"])]
    study = plan(SMALL, grid, [], [("algorithm.rho", 7.0), ("local.solver.lr", 0.25)])
    assert [one.run.tree["algorithm"].get("rho") for one in study.cells] == [None, 7.0, 7.0]
    assert [one.run.local.solver.lr for one in study.cells] == [0.25] * 3
    assert study.reached == [
        "algorithm.rho = 7.0 for fedprox; fedadmm; not for fedavg",
        "local.solver.lr = 0.25 for gradient-descent",
    ]
    named = plan(SMALL, [SweptKey("algorithm.rho", [2, 3])], [], [("algorithm.name", "fedprox")])
    assert [(one.run.label, one.run.algorithm.rho) for one in named.cells] == [
        ("fedprox", 2),
        ("fedprox", 3),
    ]
    with pytest.raises(
        ConfigError, match=r"algorithm.roh is set to 7, .* not a key of fedavg, fed"
    ):
        plan(SMALL, grid, [], [("algorithm.roh", 7)])
    with pytest.raises(ConfigError, match=r"sampler.size is set to 7, but sampler is varied"):
        plan(SMALL, [SweptKey("sampler", [{"name": "full"}])], [], [("sampler.size", 7)])


def test_the_table_of_a_sweep_has_means_over_seeds() -> None:
    def row(rate: float, seed: int, reached: int | None, loss: float) -> dict[str, Any]:
        return {
            "set": {"local.solver.lr": rate, "seed": seed},
            "target": {"metric": "loss", "value": 1.0},
            "code": "completed",
            "rounds": 10,
            "rounds_to_target": reached,
            "final": {"loss": loss},
        }

    rows = [row(0.1, 0, 4, 1.0), row(0.1, 1, 8, 3.0), row(0.2, 0, 6, 2.0), row(0.2, 1, None, 2.0)]
    table = runs_table({"runs": rows})
    assert table.headings == ["lr", "seeds", "rounds done", "rounds to target", "loss"]
    # means 6 and 2; sample deviations 2.83 and 1.41; the missed target counts as 10 rounds
    assert table.lines == [
        ["0.1", "2", "10 ± 0", "6 ± 2.8", "2 ± 1.4"],
        ["0.2", "2", "10 ± 0", "≥ 8 ± 2.8", "2 ± 0"],
    ]
    assert len(table.data or ()) == 4
    missed = [row(0.1, 0, None, 1.0), row(0.1, 1, None, 1.0)]
    assert runs_table({"runs": missed}).lines[0][3] == "–"
    assert runs_table({"runs": rows[:1]}).lines == [["0.1", "0", "10", "4", "1"]]


def test_a_sweep_continues_from_its_folder(tmp_path: Path) -> None:
    grid = [axis("algorithm.rho=0.5,1", "--grid"), SweptKey("seed", [0, 1])]
    lists = [SweptKey("sampler", [{"name": "full"}, {"name": "uniform", "size": 2}])]
    study = plan(SMALL, grid, lists, [("local.solver.lr", 0.02)])
    sweep(study, tmp_path)
    kept = plan(*planned(configs.read(str(tmp_path / "study.toml"))))
    assert kept.cells == study.cells


def test_a_fresh_sweep_runs_everything_again(tmp_path: Path) -> None:
    study = plan(SMALL, [SweptKey("seed", [0, 1])], [])
    sweep(study, tmp_path)
    began: list[int] = []

    def watch(event: RunEvent) -> None:
        began.extend([event.job] if isinstance(event, RunStarted) else [])

    sweep(study, tmp_path, watch=watch)
    assert began == []
    result = sweep(study, tmp_path, fresh=True, watch=watch)
    assert began == [0, 1]
    assert [row["set"] for row in result.document["runs"]] == [{"seed": 0}, {"seed": 1}]


def test_a_sweep_keeps_its_settings_as_they_are(tmp_path: Path) -> None:
    samplers = [{"name": "full"}, {"name": "uniform", "size": 2}]
    lists = [SweptKey("sampler", samplers), SweptKey("local.solver.lr", [0.05, 0.01])]
    result = sweep(plan(SMALL, [], lists), tmp_path)
    settings = [
        {"sampler": sampler, "local.solver.lr": rate}
        for sampler, rate in zip(samplers, (0.05, 0.01), strict=True)
    ]
    assert [row["set"] for row in result.document["runs"]] == settings
    written = json.loads((tmp_path / "results.json").read_text())
    assert written == result.document
    for row, setting in zip(written["runs"], settings, strict=True):
        config = tomllib.loads((tmp_path / row["directory"] / "config.toml").read_text())
        assert config["sampler"] == setting["sampler"]
        assert config["local"]["solver"]["lr"] == setting["local.solver.lr"]
