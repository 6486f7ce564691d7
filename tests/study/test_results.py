"""One rule for every table: terminal, JSON, Markdown and page tell the same about the same runs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedadmm.run.evaluation import Target
from fedadmm.study import results, words
from fedadmm.study.recipe import load
from fedadmm.study.recorded import RecordedRun
from fedadmm.study.report import write_report
from fedadmm.study.report.content import read
from fedadmm.study.reproducing import plan, reproduce
from fedadmm.study.results import difference, spread
from fedadmm.study.rundir import RunDir
from fedadmm.study.summary import tally
from support.commands import call, write_small
from support.records import made

TARGET = Target("test_accuracy", 0.5)


def recorded(
    label: str,
    seed: int,
    accuracies: Sequence[float],
    code: str = "completed",
    baseline: bool = False,
) -> RecordedRun:
    records = [
        made(t, test_accuracy=value, bytes_up=10, bytes_down=30, seconds=2.0)
        for t, value in enumerate(accuracies, 1)
    ]
    return RecordedRun(
        directory=Path(label),
        label=label,
        method=label,
        algorithm=label,
        baseline=baseline,
        seed=seed,
        records=records,
        summary={"code": code},
        config={},
        config_text="",
        tally=tally(records, TARGET),
    )


RUNS = [
    recorded("mean", 0, [0.1, 0.4, 0.4, 0.6], baseline=True),
    recorded("mean", 1, [0.1, 0.2, 0.3, 0.4, 0.5, 0.7], baseline=True),
    recorded("slow", 0, [0.0] * 19 + [0.5], baseline=True),
    recorded("slow", 1, [0.0] * 19 + [0.5], baseline=True),
    recorded("lost", 0, [0.5, 0.9], baseline=True),
    recorded("lost", 1, [0.1, 0.2], baseline=True),
    recorded("dual", 0, [0.2, 0.8]),
    recorded("dual", 1, [0.2, 0.3, 0.8]),
    recorded("wild", 0, [0.9, 0.95]),
    recorded("wild", 1, [0.9, 0.1], code="diverged"),
]


def rows(runs: Sequence[RecordedRun] = RUNS) -> dict[str, results.Row]:
    return {row.label: row for row in results.results(runs, TARGET).rows}


def test_rounds_bytes_and_seconds_are_those_of_the_seeds_that_got_there() -> None:
    row = rows()["mean"]
    assert (row.rounds.mean, row.rounds.std) == (4.5, pytest.approx(np.std([4, 5], ddof=1)))
    assert row.bytes.mean == pytest.approx(np.mean([4 * 40, 5 * 40]))
    assert row.seconds.mean == pytest.approx(np.mean([8, 10]))
    assert (row.reached, row.seeds, row.diverged) == (2, 2, 0)
    assert row.final["test_accuracy"].mean == pytest.approx(0.65)


def test_a_diverged_seed_did_not_reach_the_target_and_is_in_no_mean() -> None:
    row = rows()["wild"]
    assert (row.reached, row.seeds, row.diverged) == (1, 2, 1)
    assert row.final["test_accuracy"] == spread([0.95, None])
    assert results.failures(row) == "1 of 2 diverged"
    assert row.reduction is None


def test_the_reduction_is_over_the_best_baseline_that_always_met_the_target() -> None:
    found = results.results(RUNS, TARGET)
    assert found.baseline is not None
    assert found.baseline.label == "mean"  # "lost" needs 1 round, but not with every seed
    assert rows()["dual"].reduction == pytest.approx(1 - 2.5 / 4.5)
    assert rows()["slow"].reduction == pytest.approx(1 - 20 / 4.5)
    assert rows()["lost"].reduction is None
    never = results.results([*RUNS, recorded("never", 0, [0.1])], TARGET)
    order = [row.label for row in never.fastest_first()]
    assert order == ["dual", "mean", "slow", "lost", "wild", "never"]


def test_the_difference_is_paired_with_a_t_interval() -> None:
    own, other = np.array([0.8, 0.8]), np.array([0.6, 0.7])
    found = rows()["dual"].difference
    assert found is not None
    reference = stats.ttest_rel(own, other).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((0.15, *reference))
    assert difference([0.25]) == results.Difference(0.25, None, None, 1)
    assert difference([]) is None


def test_rounds_in_words_say_who_missed_the_target() -> None:
    found = results.results(RUNS, TARGET)
    shown = {row.label: results.reached(found, row) for row in found.rows}
    assert shown["mean"] == "4.5 ± 0.71"
    assert shown["lost"] == "1 (1 of 2)"
    missed = results.results([recorded("x", 0, [0.1])], TARGET)
    assert results.reached(missed, missed.rows[0]) == "not reached (0 of 1)"
    untargeted = results.results(RUNS, None)
    assert results.reached(untargeted, untargeted.rows[0]) == words.NOTHING


METHODS = [
    {"label": "FedAvg", "algorithm": {"name": "fedavg"}},
    {"label": "wild", "algorithm": {"name": "fedadmm", "rho": 0.5}},
]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two methods, three seeds; one run is then said to have diverged after it met the target."""
    folder = tmp_path_factory.mktemp("compared")
    target = {"metric": "loss", "value": 1e9, "at_least": False, "end_run": False}
    config = write_small(folder / "c.toml", methods=METHODS, seeds=[0, 1, 2], target=target)
    assert call("compare", config, "--out", folder / "out", "--jobs", 1).exit_code == 0
    path = folder / "out/runs/wild-seed1/summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"code": "diverged"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")  # so that no cell is broken into lines
        again = call("compare", config, "--out", folder / "out", "--resume", "--jobs", 1)
    assert again.exit_code == 0, again.stderr
    return folder / "out", again.stdout


def _losses(folder: Path, seeds: Sequence[int]) -> list[float]:
    return [
        RunDir(folder / f"runs/wild-seed{seed}").records()[-1]["metrics"]["loss"] for seed in seeds
    ]


def test_every_output_tells_the_same_about_a_diverged_seed(compared: tuple[Path, str]) -> None:
    folder, terminal = compared
    row = json.loads((folder / "comparison.json").read_text())["table"][1]
    expected = np.mean(_losses(folder, (0, 2)))
    assert (row["label"], row["diverged"], row["reached"]) == ("wild", 1, 2)
    assert row["rounds_to_target"]["count"] == 2
    assert row["final"]["mean"] == pytest.approx(expected)
    text = words.number(float(expected))
    deviation = f"{np.std(_losses(folder, (0, 2)), ddof=1):.2g}"
    page = _cells((folder / "report.html").read_text(), "wild")
    for shown in (terminal, page):
        assert "1 of 3 diverged" in shown
        assert f"{text} ± {deviation}" in shown
        assert "1 ± 0 (2 of 3)" in shown
    for shown in (terminal, (folder / "report.html").read_text()):
        assert words.SPREAD in " ".join(shown.split())


def _cells(page: str, label: str) -> str:
    table = page[page.index("<h2>Results</h2>") :]
    table = table[: table.index("</table>")]
    row = next(row for row in table.split("<tr>") if f"</svg>{label}" in row)
    return " ".join(re.sub(r"<[^>]+>", " ", row).split())


def test_a_reproduction_follows_the_same_rule(tmp_path: Path) -> None:
    todo = plan("note-identity", "smoke", seeds=2)
    result = reproduce(todo, tmp_path)
    cell = next(cell for cell in result["cells"] if cell["name"].endswith("/feddyn"))
    path = tmp_path / cell["directories"][1] / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"code": "diverged"}))
    again = reproduce(todo, tmp_path, only_cached=True)
    row = next(row for row in again["cells"] if row["name"] == cell["name"])
    for measure in load("note-identity").measures:
        assert (row["measures"][measure]["count"], row["measures"][measure]["of"]) == (1, 2)
    assert row["diverged"] == 1
    text = (tmp_path / "results.md").read_text()
    assert "1 of 2 diverged" in text
    assert words.SPREAD in text
    labels = {run.label for run in read(tmp_path / "reports/quadratics").runs}
    assert len(labels) == len(again["cells"])  # a label has all its seeds


def test_a_comparison_without_a_target_speaks_of_none(tmp_path: Path) -> None:
    config = write_small(tmp_path / "c.toml", methods=METHODS)
    result = call("compare", config, "--out", tmp_path / "out", "--jobs", 1)
    assert result.exit_code == 0, result.stderr
    assert "never" not in result.stdout
    assert "target" not in result.stdout
    assert "0/1" not in result.stdout
    page = write_report(tmp_path / "out").read_text()
    assert ">Reduction<" not in page


def test_a_comparison_of_the_version_before_is_read_with_proper_names(
    tmp_path: Path, compared: tuple[Path, str]
) -> None:
    folder = tmp_path / "old"
    shutil.copytree(compared[0], folder)
    overview = json.loads((folder / "comparison.json").read_text())
    for row in overview["runs"]:
        row["label"] = row["algorithm"]
        for key in ("method", "baseline"):
            del row[key]
        path = folder / row["directory"] / "summary.json"
        old = json.loads(path.read_text())
        for key in ("method", "baseline", "seconds_to_target"):
            del old[key]
        path.write_text(json.dumps(old))
    (folder / "comparison.json").write_text(json.dumps(overview))
    found = {row.label: row for row in read(folder).results.rows}
    assert {label: row.method for label, row in found.items()} == {
        "fedavg": "FedAvg",
        "fedadmm": "FedADMM",
    }
    assert [found[label].baseline for label in ("fedavg", "fedadmm")] == [True, False]
