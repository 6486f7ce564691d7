"""A cell is found again by everything that its result depends on, and by nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedadmm.errors import ConfigError
from fedadmm.study.config import resolve
from fedadmm.study.grid import Cells, cell_hash
from fedadmm.study.pool import Event
from fedadmm.study.sweeping import Axis, axis, cells_of, sweep
from support.commands import SMALL


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"checkpoint": {"every": 7}}, True),
        ({"trackers": ["tensorboard"]}, True),
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
    assert cell_hash(resolve(SMALL)) == cell_hash(resolve(resolve(SMALL).tree()))


def test_finished_cells_are_not_run_again(tmp_path: Path) -> None:
    began: list[str] = []

    def watch(event: Event) -> None:
        if event.kind == "began":
            began.append(event.content["label"])

    first = {"a": resolve(SMALL), "b": resolve(SMALL | {"seed": 1})}
    summaries = Cells(tmp_path).run(first, watch=watch)
    more = first | {"c": resolve(SMALL | {"seed": 2}), "a again": resolve(SMALL)}
    again = Cells(tmp_path).run(more, watch=watch)
    assert began == ["a", "b", "c"]
    assert again["a"] == summaries["a"] == again["a again"]
    Cells(tmp_path).forget(first["b"])
    assert Cells(tmp_path).finished(first["b"]) is None


def test_an_interrupted_cell_goes_on(tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if event.kind == "record" and event.content["round"] == 3:
            raise KeyboardInterrupt

    cells = {"a": resolve(SMALL | {"rounds": 6})}
    with pytest.raises(KeyboardInterrupt):
        Cells(tmp_path / "broken").run(cells, watch=interrupt)
    assert Cells(tmp_path / "broken").finished(cells["a"]) is None
    rounds: list[int] = []

    def count(event: Event) -> None:
        if event.kind == "record":
            rounds.append(event.content["round"])

    broken = Cells(tmp_path / "broken").run(cells, watch=count)
    assert rounds == [3, 4, 5, 6]  # the third had not been completed
    whole = Cells(tmp_path / "whole").run(cells)
    assert broken["a"]["params_sha256"] == whole["a"]["params_sha256"]


def test_a_grid_is_every_combination_and_lists_go_in_step() -> None:
    grid = [axis("algorithm.rho=0.5,1", "--grid"), Axis("seed", [0, 1])]
    lists = [axis("rounds=2,3", "--list"), axis("solver.lr=0.1,0.2", "--list")]
    cells = cells_of(SMALL, grid, lists)
    found = {
        (c.rounds, c.solver.build().lr, c.algorithm.build().rho, c.seed) for c in cells.values()
    }
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
    with pytest.raises(ConfigError, match="--grid is 'a', but must be KEY=A,B"):
        axis("a", "--grid")
    with pytest.raises(ConfigError, match=r"must be of one length, but are a \(1\), b \(2\)"):
        cells_of(SMALL, [], [Axis("a", [1]), Axis("b", [1, 2])])
    with pytest.raises(ConfigError, match=r"algorithm.rh=1: algorithm.rh is not a key"):
        cells_of(SMALL, [Axis("algorithm.rh", [1])], [])


def test_a_fresh_sweep_runs_everything_again(tmp_path: Path) -> None:
    cells = cells_of(SMALL, [Axis("seed", [0, 1])], [])
    sweep(cells, tmp_path)
    began: list[int] = []

    def watch(event: Event) -> None:
        began.extend([event.job] if event.kind == "began" else [])

    sweep(cells, tmp_path, watch=watch)
    assert began == []
    result = sweep(cells, tmp_path, fresh=True, watch=watch)
    assert began == [0, 1]
    assert [row["set"] for row in result["cells"]] == [{"seed": "0"}, {"seed": "1"}]
