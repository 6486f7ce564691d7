"""What is missing is run, what is there is read once, and a search chooses by what it tried."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedadmm.study import run_dir
from fedadmm.study.config import resolve
from fedadmm.study.runner import RoundRecorded, RunEvent, RunStarted, run_study
from fedadmm.study.spec import Cell, Search, SearchSpace, Study
from support.commands import SMALL, call, write_small


def study(**runs: Any) -> Study:
    return Study("sweep", [Cell(label, resolve(SMALL | t), label) for label, t in runs.items()])


def test_finished_cells_are_not_run_again(tmp_path: Path) -> None:
    began: list[str] = []

    def watch(event: RunEvent) -> None:
        if isinstance(event, RunStarted):
            began.append(event.label)

    first = run_study(study(a={}, b={"seed": 1}), tmp_path, watch=watch)
    wanted = study(a={}, b={"seed": 1}, c={"seed": 2}, again={})
    more = run_study(wanted, tmp_path, watch=watch)
    assert began == ["a", "b", "c"]
    assert [run.label for run in more.runs] == ["a", "b", "c", "again"]
    # What was read is what was in memory; in text NaN equals itself.
    assert repr(more.runs[0]) == repr(first.runs[0])
    assert repr(more.runs[3]) == repr(first.runs[0].judged("again", None))
    shutil.rmtree(first.runs[1].directory)
    cached = run_study(wanted, tmp_path, watch=watch, only_cached=True)
    assert [run.label for run in cached.runs] == ["a", "c", "again"]
    assert began == ["a", "b", "c"]


def test_an_interrupted_cell_goes_on(tmp_path: Path) -> None:
    def interrupt(event: RunEvent) -> None:
        if isinstance(event, RoundRecorded) and event.record["round"] == 3:
            raise KeyboardInterrupt

    wanted = study(a={"rounds": 6})
    with pytest.raises(KeyboardInterrupt):
        run_study(wanted, tmp_path / "broken", watch=interrupt)
    assert not run_study(wanted, tmp_path / "broken", only_cached=True).runs
    rounds: list[int] = []

    def count(event: RunEvent) -> None:
        if isinstance(event, RoundRecorded):
            rounds.append(event.record["round"])

    (resumed,) = run_study(wanted, tmp_path / "broken", watch=count).runs
    assert rounds == [3, 4, 5, 6]  # the third had not been completed
    (whole,) = run_study(wanted, tmp_path / "whole").runs
    assert resumed.summary["params_sha256"] == whole.summary["params_sha256"]
    assert resumed.spent["rounds"].tolist() == [1, 2, 3, 4, 5, 6]


def searched(rates: list[float], seeds: list[int], extend: int = 0, **changes: Any) -> Study:
    """FedSGD on ||x - x*||^2 / 2: after t rounds the loss is (1 - lr)^2t times the initial one."""
    tables = {
        "rounds": 8,
        "precision": "float64",
        "problem": {"name": "quadratics", "clients": 2, "dimension": 3, "conditioning": 1.0},
        "algorithm": {"name": "fedsgd", "lr": 0.1},
        "checkpoint": {"every": 3},
    }
    cell = Cell("m", resolve(tables | changes), "m", tuned="m")
    space = SearchSpace("m", [cell], {"algorithm.lr": rates})
    return Study("comparison", [cell], [0], Search(seeds, [space], extend=extend))


def rounds_run(heard: list[RunEvent]) -> list[int]:
    return [event.record["round"] for event in heard if isinstance(event, RoundRecorded)]


def test_the_better_half_of_a_search_goes_on_to_the_next_seed(tmp_path: Path) -> None:
    heard: list[RunEvent] = []
    rates = [0.3, 0.9, 1.5, 0.6, 3.0]
    found = run_study(searched(rates, [7, 8, 9]), tmp_path, watch=heard.append)
    tried = [(row["seed"], row["value"]["algorithm.lr"]) for row in found.search["tried"]]
    # By |1 - lr|: 0.9, 0.6, 1.5, then 0.3 and 3; three of five go on, then two of three.
    first = [(7, lr) for lr in sorted(rates)]
    assert tried == [*first, (8, 0.6), (8, 0.9), (8, 1.5), (9, 0.6), (9, 0.9)]
    assert found.search["chosen"]["m"]["value"] == {"algorithm.lr": 0.9}
    assert found.search["interior"] == {"m": {"algorithm.lr": True}}
    assert found.runs[0].config["algorithm"]["lr"] == 0.9
    again = run_study(searched(rates, [7, 8, 9]), tmp_path, only_cached=True)
    assert again.document == found.document


def test_scores_are_minus_rounds_and_misses_and_divergence_come_last(tmp_path: Path) -> None:
    target = {"metric": "loss", "value": 1e-9, "at_least": False}
    wanted = searched([0.05, 0.5, 0.9, 1.5, 1e8], [7], target=target, rounds=20)
    rows = {
        row["value"]["algorithm.lr"]: row for row in run_study(wanted, tmp_path).search["tried"]
    }
    assert rows[0.9]["score"] == -rows[0.9]["rounds_to_target"] > rows[0.5]["score"]
    assert rows[0.05]["rounds_to_target"] is None
    assert -40 < rows[0.05]["score"] < -20 <= rows[0.5]["score"]
    assert rows[1e8]["score"] is None  # minus infinity, as JSON has it
    assert rows[1e8]["code"] == "diverged"


def test_a_grid_does_not_grow_into_values_that_are_not_allowed(tmp_path: Path) -> None:
    """The best momentum on one client is at the end of the range: beyond it is no value."""
    tables = {"algorithm": {"name": "fedavgm", "momentum": 0.5}, "rounds": 2}
    cell = Cell("m", resolve(SMALL | tables), "m", tuned="m")
    space = SearchSpace("m", [cell], {"algorithm.momentum": [0.4, 0.8]})
    wanted = Study("comparison", [cell], [0], Search([7], [space], extend=3))
    rows = run_study(wanted, tmp_path).search["tried"]
    assert all(row["code"] == "invalid" for row in rows if row["value"]["algorithm.momentum"] >= 1)


@pytest.mark.parametrize("stop", [1, 9, 20, 41, 60])
def test_a_search_that_was_stopped_chooses_what_a_whole_one_does(tmp_path: Path, stop: int) -> None:
    wanted = searched([0.3, 0.9, 1.5, 0.6], [7, 8], extend=2)
    heard: list[RunEvent] = []

    def watch(event: RunEvent) -> None:
        heard.append(event)
        if len(rounds_run(heard)) == stop:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        run_study(wanted, tmp_path / "broken", watch=watch)
    resumed = run_study(wanted, tmp_path / "broken")
    assert resumed.search == run_study(wanted, tmp_path / "whole").search


def test_a_comparison_reads_no_run_that_it_has_computed_and_a_finished_one_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Counter[str] = Counter()
    real = run_dir._records

    def counted(path: Path) -> Iterator[Any]:
        for place, record in enumerate(real(path)):
            read[path.parent.name] += not place
            yield record

    monkeypatch.setattr(run_dir, "_records", counted)
    methods = [{"algorithm": {"name": name}} for name in ("fedavg", "fedadmm")]
    search = {"values": [0.01, 0.05], "rounds": 2, "seeds": [7], "extend": 0}
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
