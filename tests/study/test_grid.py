"""A cell is found again by everything that its result depends on, and by nothing else."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedadmm.core.errors import ConfigError
from fedadmm.study.config import resolve
from fedadmm.study.grid import Cell, cell_hash, complete
from fedadmm.study.pool import Began, Event, Recorded
from fedadmm.study.sweeping import Axis, axis, points_of, reached, sweep
from support.commands import SMALL


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"checkpoint": {"every": 7}}, True),
        ({"callbacks": [{"name": "tensorboard"}]}, True),
        ({"callbacks": [{"name": "diagnostics"}]}, False),
        ({"threads": 2}, True),
        ({"store": {"name": "disk"}}, True),
        ({"store": {"name": "disk", "primal": "bfloat16"}}, False),
        ({"seed": 1}, False),
        ({"rounds": 5}, False),
        ({"precision": "float64"}, False),
        ({"algorithm": {"name": "fedadmm", "rho": 1.5}}, False),
        ({"evaluate": {"every": 2}}, False),
    ],
)
def test_the_hash_covers_what_the_result_depends_on(change: dict[str, Any], same: bool) -> None:
    assert (cell_hash(resolve(SMALL)) == cell_hash(resolve(SMALL | change))) is same


def test_leaving_a_default_out_is_the_same_cell() -> None:
    assert cell_hash(resolve(SMALL)) == cell_hash(resolve(resolve(SMALL).tree))


def cells(root: Path, **runs: Any) -> list[Cell]:
    return [Cell.by_hash(root, label, resolve(SMALL | tree)) for label, tree in runs.items()]


def test_finished_cells_are_not_run_again(tmp_path: Path) -> None:
    began: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, Began):
            began.append(event.label)

    first = cells(tmp_path, a={}, b={"seed": 1})
    complete(first, watch=watch)
    summary = first[0].finished()
    more = cells(tmp_path, a={}, b={"seed": 1}, c={"seed": 2}, again={})
    complete(more, watch=watch)
    assert began == ["a", "b", "c"]
    assert more[0].finished() == summary == more[3].finished()
    first[1].forget()
    assert first[1].finished() is None


def test_an_interrupted_cell_goes_on(tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, Recorded) and event.record["round"] == 3:
            raise KeyboardInterrupt

    broken = cells(tmp_path / "broken", a={"rounds": 6})
    with pytest.raises(KeyboardInterrupt):
        complete(broken, watch=interrupt)
    assert broken[0].finished() is None
    rounds: list[int] = []

    def count(event: Event) -> None:
        if isinstance(event, Recorded):
            rounds.append(event.record["round"])

    complete(broken, watch=count)
    assert rounds == [3, 4, 5, 6]  # the third had not been completed
    whole = cells(tmp_path / "whole", a={"rounds": 6})
    complete(whole)
    assert broken[0].read().summary["params_sha256"] == whole[0].read().summary["params_sha256"]


def test_a_grid_is_every_combination_and_lists_go_in_step() -> None:
    grid = [axis("algorithm.rho=0.5,1", "--grid"), Axis("seed", [0, 1])]
    lists = [axis("rounds=2,3", "--list"), axis("local.solver.lr=0.1,0.2", "--list")]
    points = points_of(SMALL, grid, lists)
    found = {(p.run.rounds, p.run.local.solver.lr, p.run.algorithm.rho, p.run.seed) for p in points}
    assert found == {
        (rounds, lr, rho, seed)
        for rounds, lr in ((2, 0.1), (3, 0.2))
        for rho in (0.5, 1)
        for seed in (0, 1)
    }
    assert len(points) == 8


def test_axes_are_toml_or_strings() -> None:
    assert axis("algorithm.name=fedavg,fedprox", "--grid").values == ["fedavg", "fedprox"]
    assert axis("a=[1, 2]", "--grid").values == [1, 2]
    with pytest.raises(ConfigError, match="--grid is 'a', but must be KEY=A,B"):
        axis("a", "--grid")
    with pytest.raises(ConfigError, match=r"must be of one length, but are a \(1\), b \(2\)"):
        points_of(SMALL, [], [Axis("a", [1]), Axis("b", [1, 2])])
    with pytest.raises(ConfigError, match=r"algorithm.rh=1: algorithm.rh is not a key"):
        points_of(SMALL, [Axis("algorithm.rh", [1])], [])
    with pytest.raises(ConfigError, match=r"seed is \[3, 3\], but must not hold 3 twice"):
        points_of(SMALL, [Axis("seed", [3, 3])], [])


def test_what_is_set_reaches_every_cell_that_has_the_key() -> None:
    grid = [Axis("algorithm.name", ["fedavg", "fedprox", "fedadmm"])]
    points = points_of(SMALL, grid, [], [("algorithm.rho", 7.0), ("local.solver.lr", 0.25)])
    assert [one.run.tree["algorithm"].get("rho") for one in points] == [None, 7.0, 7.0]
    assert [one.run.local.solver.lr for one in points] == [0.25] * 3
    assert reached(points) == [
        "local.solver.lr = 0.25 for gradient-descent",
        "algorithm.rho = 7.0 for fedprox; fedadmm; not for fedavg",
    ]
    named = points_of(SMALL, [Axis("algorithm.rho", [2, 3])], [], [("algorithm.name", "fedprox")])
    assert [(one.run.label, one.run.algorithm.rho) for one in named] == [
        ("fedprox", 2),
        ("fedprox", 3),
    ]
    with pytest.raises(
        ConfigError, match=r"algorithm.roh is set to 7, .* not a key of fedavg, fed"
    ):
        points_of(SMALL, grid, [], [("algorithm.roh", 7)])
    with pytest.raises(ConfigError, match=r"sampler.size is set to 7, but sampler is varied"):
        points_of(SMALL, [Axis("sampler", [{"name": "full"}])], [], [("sampler.size", 7)])


def test_a_fresh_sweep_runs_everything_again(tmp_path: Path) -> None:
    points = points_of(SMALL, [Axis("seed", [0, 1])], [])
    sweep(points, tmp_path)
    began: list[int] = []

    def watch(event: Event) -> None:
        began.extend([event.job] if isinstance(event, Began) else [])

    sweep(points, tmp_path, watch=watch)
    assert began == []
    result = sweep(points, tmp_path, fresh=True, watch=watch)
    assert began == [0, 1]
    assert [row["set"] for row in result["cells"]] == [{"seed": 0}, {"seed": 1}]


def test_a_sweep_keeps_its_settings_as_they_are(tmp_path: Path) -> None:
    samplers = [{"name": "full"}, {"name": "uniform", "size": 2}]
    lists = [Axis("sampler", samplers), Axis("local.solver.lr", [0.05, 0.01])]
    result = sweep(points_of(SMALL, [], lists), tmp_path)
    settings = [
        {"sampler": sampler, "local.solver.lr": rate}
        for sampler, rate in zip(samplers, (0.05, 0.01), strict=True)
    ]
    assert [row["set"] for row in result["cells"]] == settings
    written = json.loads((tmp_path / "sweep.json").read_text())
    assert [row["set"] for row in written["cells"]] == settings
    for row, setting in zip(written["cells"], settings, strict=True):
        config = tomllib.loads((tmp_path / row["directory"] / "config.toml").read_text())
        assert config["sampler"] == setting["sampler"]
        assert config["local"]["solver"]["lr"] == setting["local.solver.lr"]
