"""One rule for every table: terminal, JSON, Markdown and page tell the same about the same runs."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedadmm.core.errors import ConfigError
from fedadmm.run.evaluation import Target
from fedadmm.study import formatting, results
from fedadmm.study.recipes import load, plan as plan_reproduction
from fedadmm.study.report import write_report
from fedadmm.study.reproduce import reproduce
from fedadmm.study.run_dir import RecordedRun, RunDir
from fedadmm.study.run_history import Columns
from fedadmm.study.statistics import Difference, difference, spread
from fedadmm.study.study_result import read_study
from support.commands import call, write_small
from support.records import made

TARGET = Target("test_accuracy", 0.5)


def recorded(
    label: str,
    seed: int,
    accuracies: Sequence[float],
    code: str = "completed",
) -> RecordedRun:
    columns = Columns(
        made(t, test_accuracy=value, bytes_up=10, bytes_down=30, seconds=2.0)
        for t, value in enumerate(accuracies, 1)
    )
    return RecordedRun(
        directory=Path(label),
        label=label,
        method=label,
        algorithm=label,
        seed=seed,
        columns=columns,
        summary={"code": code},
        config={},
        tally=columns.tally(TARGET),
    )


RUNS = [
    recorded("mean", 0, [0.1, 0.4, 0.4, 0.6]),
    recorded("mean", 1, [0.1, 0.2, 0.3, 0.4, 0.5, 0.7]),
    recorded("slow", 0, [0.0] * 19 + [0.5]),
    recorded("slow", 1, [0.0] * 19 + [0.5]),
    recorded("lost", 0, [0.5, 0.9]),
    recorded("lost", 1, [0.1, 0.2]),
    recorded("dual", 0, [0.2, 0.8]),
    recorded("dual", 1, [0.2, 0.3, 0.8]),
    recorded("wild", 0, [0.9, 0.95]),
    recorded("wild", 1, [0.9, 0.1], code="diverged"),
]


LONG = [replace(run, config={"rounds": 20}) for run in RUNS]


def rows(runs: Sequence[RecordedRun] = RUNS) -> dict[str, results.MethodSummary]:
    return {row.label: row for row in results.results(runs, TARGET).rows}


def test_rounds_bytes_and_seconds_to_the_target() -> None:
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


def test_a_miss_counts_as_the_limit_and_every_method_meets_the_best_other_one() -> None:
    found = results.results(LONG, TARGET)
    # Restricted means: dual 2.5, mean 4.5, lost (1 + 20) / 2, wild (1 + 20) / 2, slow 20.
    means = {row.label: row.rounds.mean for row in found.rows}
    assert means == {"mean": 4.5, "slow": 20.0, "lost": 10.5, "dual": 2.5, "wild": 10.5}
    order = [row.label for row in found.best_first()]
    assert order[:2] == ["dual", "mean"]
    assert order[-1] == "slow"
    assert set(order[2:4]) == {"lost", "wild"}
    against = {row.label: row.compared_with for row in found.rows}
    assert against == {**dict.fromkeys(means, "dual"), "dual": "mean"}
    assert rows(LONG)["dual"].ratio == pytest.approx(2.5 / 4.5)
    assert rows(LONG)["lost"].ratio == pytest.approx(10.5 / 2.5)
    never = results.results(
        [*LONG, replace(recorded("never", 0, [0.1]), config={"rounds": 30})], TARGET
    )
    assert never.best_first()[-1].label == "never"


def test_a_reference_replaces_the_best_other_method() -> None:
    found = results.results(LONG, TARGET, "slow")
    against = {row.label: row.compared_with for row in found.rows}
    assert against == {**dict.fromkeys(("mean", "lost", "dual", "wild"), "slow"), "slow": None}
    gap = {row.label: row.difference for row in found.rows}["dual"]
    assert gap is not None
    assert gap.mean == pytest.approx(2.5 - 20)
    with pytest.raises(ConfigError):
        results.results(LONG, TARGET, "nobody")


def test_holm_adjusts_over_all_comparisons_of_a_table() -> None:
    generator = np.random.default_rng(0)
    base = generator.normal(0.5, 0.02, 6)
    ends = {"a": base, "b": base - generator.normal(0.03, 0.02, 6), "c": base - 0.1}
    ends["d"] = base + generator.normal(-0.01, 0.02, 6)
    runs = [recorded(k, s, [float(v)]) for k, values in ends.items() for s, v in enumerate(values)]
    found = results.results(runs, None, "a")
    p_values = [float(stats.ttest_rel(ends[one], ends["a"]).pvalue) for one in ("b", "d")]
    adjusted = [row.difference.adjusted for row in found.rows if row.label in ("b", "d")]
    order = np.argsort(p_values)
    low = min(1.0, 2 * p_values[order[0]])
    expected = {int(order[0]): low, int(order[1]): max(low, p_values[order[1]])}
    assert adjusted == pytest.approx([expected[0], expected[1]])  # c differs by a constant: no test


def test_the_difference_is_paired_with_a_t_interval() -> None:
    own, other = np.array([2.0, 3.0]), np.array([4.0, 5.0]) + np.array([0.0, 1.0])
    runs = [*RUNS[:1], recorded("mean", 1, [0.1] * 5 + [0.7]), *RUNS[6:8]]
    found = {row.label: row.difference for row in results.results(runs, TARGET).rows}["dual"]
    assert found is not None
    reference = stats.ttest_rel(own, other).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((-2.5, *reference))
    assert difference([0.25]) == Difference(0.25, None, None, 1)
    assert difference([]) is None


def test_without_a_reached_target_the_final_metric_is_compared() -> None:
    ends = {"mean": [0.40, 0.44, 0.45], "slow": [0.30, 0.31, 0.33], "mine": [0.47, 0.49, 0.46]}
    runs = [
        recorded(label, seed, [0.1, end])
        for label, values in ends.items()
        for seed, end in enumerate(values)
    ]
    found = results.results(runs, TARGET)
    assert not found.by_rounds
    interval = stats.ttest_rel(ends["mine"], ends["mean"]).confidence_interval(0.95)
    gap = found.rows[2].difference
    assert gap is not None
    assert (gap.low, gap.high) == pytest.approx(tuple(interval))
    assert found.lead is not None
    assert (found.lead.own.label, found.lead.other.label) == ("mine", "mean")


def test_of_equally_quick_methods_the_one_that_sent_less_is_first() -> None:
    costly = recorded("costly", 0, [0.1, 0.6])
    costly = replace(costly, tally=costly.tally | {"bytes_to_target": 100})
    cheap = recorded("cheap", 0, [0.1, 0.7])
    lead = results.results([costly, cheap], TARGET).lead
    assert lead is not None
    assert [lead.own.label, lead.other.label] == ["cheap", "costly"]


def test_rounds_in_words_say_who_missed_the_target() -> None:
    found = results.results(LONG, TARGET)
    shown = {row.label: results.reached(found, row) for row in found.rows}
    assert shown["mean"] == "4.5 ± 0.7"
    assert shown["lost"] == "≥ 10.5 ± 13.4 (reached by 1 of 2)"
    missed = results.results([recorded("x", 0, [0.1])], TARGET)
    assert results.reached(missed, missed.rows[0]) == "not reached (0 of 1)"
    untargeted = results.results(RUNS, None)
    assert results.reached(untargeted, untargeted.rows[0]) == formatting.NOTHING


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
    row = json.loads((folder / "results.json").read_text())["table"][1]
    expected = np.mean(_losses(folder, (0, 2)))
    assert (row["label"], row["diverged"], row["reached"]) == ("wild", 1, 2)
    assert row["rounds_to_target"]["count"] == 2
    assert row["final"]["mean"] == pytest.approx(expected)
    text = formatting.number(float(expected))
    deviation = f"{np.std(_losses(folder, (0, 2)), ddof=1):.2g}"
    page = _cells((folder / "report.html").read_text(), "wild")
    for shown in (terminal, page):
        assert "1 of 3 diverged" in shown
        assert f"{text} ± {deviation}" in shown
        assert "(reached by 2 of 3)" in shown
    for shown in (terminal, (folder / "report.html").read_text()):
        assert formatting.SPREAD in " ".join(shown.split())


def _cells(page: str, label: str) -> str:
    table = page[page.index("<h2>Results</h2>") :]
    table = table[: table.index("</table>")]
    row = next(row for row in table.split("<tr>") if f"</svg>{label}" in row)
    return " ".join(re.sub(r"<[^>]+>", " ", row).split())


def test_a_reproduction_follows_the_same_rule(tmp_path: Path) -> None:
    todo = plan_reproduction("note-identity", "smoke", seeds=2)
    runs = reproduce(todo, tmp_path).runs
    path = next(run.directory for run in runs if run.seed == 1 and run.algorithm == "feddyn")
    path /= "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"code": "diverged"}))
    again = reproduce(todo, tmp_path, only_cached=True).document
    row = next(row for row in again["table"] if row["name"].endswith("/feddyn"))
    for measure in load("note-identity").measures:
        assert (row[measure]["count"], row[measure]["of"]) == (1, 2)
    assert row["diverged"] == 1
    text = (tmp_path / "results.md").read_text()
    assert "1 of 2 diverged" in text
    assert formatting.SPREAD in text
    labels = [run.label for run in read_study(tmp_path).runs]
    assert len(labels) == 2 * len(set(labels)) == 2 * len(again["table"])


def test_a_comparison_without_a_target_speaks_of_none(tmp_path: Path) -> None:
    config = write_small(tmp_path / "c.toml", methods=METHODS)
    result = call("compare", config, "--out", tmp_path / "out", "--jobs", 1)
    assert result.exit_code == 0, result.stderr
    assert "never" not in result.stdout
    assert "target" not in result.stdout
    assert "0/1" not in result.stdout
    page = write_report(tmp_path / "out").read_text()
    assert ">Reduction<" not in page


def test_a_page_of_a_target_that_nothing_reaches_has_its_intervals(tmp_path: Path) -> None:
    target = {"metric": "loss", "value": -1e9, "at_least": False, "end_run": False}
    config = write_small(tmp_path / "own.toml", methods=METHODS, seeds=[0, 1], target=target)
    result = call("compare", config, "--out", tmp_path / "out", "--jobs", 1)
    assert result.exit_code == 0, result.stderr
    page = (tmp_path / "out/report.html").read_text()
    assert "on the same seeds, with its 95 % interval" in page


def test_nothing_is_claimed_from_seeds_that_gave_the_same_run() -> None:
    """One row of a table of fifty, five times over, is one row."""
    runs = [recorded("mean", seed, [0.52]) for seed in range(5)]
    runs += [recorded("dual", seed, [0.5]) for seed in range(5)]
    found = results.results(runs, None)
    row = found.rows[1]
    assert row.difference is not None
    assert row.difference.mean == pytest.approx(-0.02)
    assert (row.difference.constant, row.difference.beyond_chance) == (True, False)
    assert results.compared(found, row) == "−2.0 points (on all seeds)"
    other = results.results([*runs[:-1], recorded("dual", 4, [0.505])], None).rows[1].difference
    assert other is not None
    assert (other.constant, other.beyond_chance) == (False, True)


def test_seeds_that_share_training_rows_count_for_less() -> None:
    """Nadeau and Bengio: k resampled splits have a variance of s² (1/k + test / train rows)."""
    ends = [0.70, 0.74, 0.71, 0.75, 0.72]
    table = {"name": "table", "partition_seed": "none", "test_fraction": 0.2}
    runs = [recorded("mean", seed, [0.7]) for seed in range(5)]
    runs += [recorded("dual", seed, [end]) for seed, end in enumerate(ends)]

    def half_width(problem: dict[str, object]) -> float:
        own = [replace(run, config={"problem": problem}) for run in runs]
        gap = results.results(own, None).rows[1].difference
        assert gap is not None
        assert gap.high is not None
        return gap.high - gap.mean

    deviation = float(np.std(np.array(ends) - 0.7, ddof=1))
    quantile = 2.7764451052  # of Student's t with 4 degrees of freedom at 97.5 %
    assert half_width({"name": "digits"}) == pytest.approx(quantile * deviation / 5**0.5)
    assert half_width(table | {"partition_seed": 3}) == pytest.approx(quantile * deviation / 5**0.5)
    assert half_width(table) == pytest.approx(quantile * deviation * (1 / 5 + 1 / 4) ** 0.5)


def test_what_is_written_is_read_as_it_was(tmp_path: Path) -> None:
    """The page of a study is the same from memory and from its folder."""
    config = write_small(tmp_path / "c.toml", methods=METHODS, seeds=[0, 1])
    told = call("compare", config, "--out", tmp_path / "out", "--jobs", 1)
    assert told.exit_code == 0, told.stderr
    page = (tmp_path / "out/report.html").read_text()
    found = read_study(tmp_path / "out")
    assert [run.seed for run in found.runs] == [0, 1, 0, 1]
    assert write_report(tmp_path / "out").read_text() == page


def test_the_spread_is_the_sample_deviation_of_those_that_reached() -> None:
    row = spread([10, 14, None, 18])
    assert (row.mean, row.count, row.of) == (14, 3, 4)
    assert row.std == statistics.stdev([10, 14, 18]) == 4.0
    assert spread([None]).mean is None
