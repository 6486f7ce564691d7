"""What is missing is run, what is there is read once, and a search chooses by what it tried."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedadmm.study import run_dir
from fedadmm.study.config import resolve
from fedadmm.study.results import dropped
from fedadmm.study.runner import RoundRecorded, RunEvent, RunStarted, choose, run_study
from fedadmm.study.spec import Cell, Search, SearchPoint, Study
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


def test_a_search_prefers_rounds_then_worth_and_never_divergence() -> None:
    def row(value: float, rounds: int | None, best: float | None, code: str = "x") -> Any:
        known = {"label": "m", "key": "local.solver.lr", "more_is_better": True}
        return known | {"value": value, "rounds_to_target": rounds, "best": best, "code": code}

    assert choose([row(1, None, 0.9), row(2, 30, 0.8), row(3, 20, 0.7)])["m"]["value"] == 3
    assert choose([row(1, None, 0.8), row(2, None, 0.9), row(3, None, None)])["m"]["value"] == 2
    assert choose([row(1, 5, 0.99, "diverged"), row(2, None, 0.1)])["m"]["value"] == 2
    assert choose([row(1, 20, 0.9), row(2, 20, 0.9)])["m"]["value"] == 1


def searched(values: list[float], halve_after: list[int], **changes: Any) -> Study:
    """FedSGD on ‖x - x*‖² / 2, whose loss after t rounds is (1 - lr)^2t times that of round 0."""
    tables = {
        "rounds": 8,
        "precision": "float64",
        "problem": {"name": "quadratics", "clients": 2, "dimension": 3, "conditioning": 1.0},
        "algorithm": {"name": "fedsgd", "lr": 0.1},
        "checkpoint": {"every": 3},
    }
    cell = Cell("m", resolve(tables | changes), "m", tuned="m")
    tries = [SearchPoint("m", cell, {"algorithm.lr": value}, {"seed": 1000}) for value in values]
    return Study("comparison", [cell], [0], Search(1000, tries, halve_after=halve_after))


def rounds_run(heard: list[RunEvent]) -> list[int]:
    return [event.record["round"] for event in heard if isinstance(event, RoundRecorded)]


def test_the_better_half_of_a_search_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    heard: list[RunEvent] = []
    rates = [0.3, 0.9, 3.0, 1.5, 0.6]
    found = run_study(searched(rates, [2, 4]), tmp_path, watch=heard.append)
    tried = {row["value"]["algorithm.lr"]: row for row in found.search["tried"]}
    by_loss = sorted(rates, key=lambda lr: abs(1 - lr))
    left = {**dict.fromkeys(by_loss[:2]), by_loss[2]: 4, **dict.fromkeys(by_loss[3:], 2)}
    assert {lr: row["dropped_after"] for lr, row in tried.items()} == left
    assert found.search["chosen"]["m"]["value"] == {"algorithm.lr": 0.9}
    start = tried[0.3]["best"] / 0.7**4
    for lr, row in tried.items():
        expected = start * (1 - lr) ** (2 * (left[lr] or 8))
        assert row["best"] == pytest.approx(expected, abs=1e-12)
    # five points for two rounds, three for two more, two for four more, and the reported seed
    assert rounds_run(heard) == 5 * [1, 2] + 3 * [3, 4] + 2 * [5, 6, 7, 8] + [*range(1, 9)]
    assert list(dropped(found.search)) == [
        "the search dropped after 2 rounds: m 0.3, 3.0",
        "the search dropped after 4 rounds: m 1.5",
    ]
    again = run_study(searched(rates, [2, 4]), tmp_path, only_cached=True)
    assert again.document == found.document


def test_halving_may_choose_what_is_better_early(tmp_path: Path) -> None:
    """With curvatures 1 and 0.1 the rate 1 is better at first and 1.8 in the end."""
    table = {"name": "quadratics", "clients": 1, "dimension": 2, "heterogeneity": 0.0}
    for name, halve_after, best in (("whole", [], 1.8), ("halved", [1], 1.0)):
        wanted = searched([1.0, 1.8], halve_after, problem=table, rounds=30)
        found = run_study(wanted, tmp_path / name)
        assert found.search["chosen"]["m"]["value"] == {"algorithm.lr": best}


@pytest.mark.parametrize("stop", [1, 5, 10, 11, 14, 16, 19, 24])
def test_a_search_that_was_stopped_chooses_what_a_whole_one_does(tmp_path: Path, stop: int) -> None:
    wanted = searched([0.3, 0.9, 3.0, 1.5, 0.6], [2, 4])
    heard: list[RunEvent] = []

    def watch(event: RunEvent) -> None:
        heard.append(event)
        if len(rounds_run(heard)) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(wanted, tmp_path / "broken", watch=watch)
    assert not run_study(wanted, tmp_path / "broken", only_cached=True).search["tried"]
    resumed = run_study(wanted, tmp_path / "broken")
    assert resumed.search == run_study(wanted, tmp_path / "whole").search


def test_diverged_points_are_dropped_first_and_never_run_on(tmp_path: Path) -> None:
    heard: list[RunEvent] = []
    found = run_study(searched([1e9, 1e8, 0.01], [3]), tmp_path, watch=heard.append)
    ends = [(row["code"], row["dropped_after"]) for row in found.search["tried"]]
    assert ends == [("diverged", 3), ("diverged", None), ("completed", None)]
    assert found.search["chosen"]["m"]["value"] == {"algorithm.lr": 0.01}
    assert rounds_run(heard) == [1, 2, 1, 2, *range(1, 9), *range(1, 9)]


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
