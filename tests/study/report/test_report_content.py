"""What a report says, against what the files say."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from fedadmm.core.errors import DataError
from fedadmm.run.evaluation import Target
from fedadmm.study import run_dir
from fedadmm.study.formatting import duration, number, size
from fedadmm.study.report import write_report
from fedadmm.study.report.figures import MOST_POINTS, lines
from fedadmm.study.report.panels import sections
from fedadmm.study.report.summaries import configuration, search_table
from fedadmm.study.run_dir import RunDir
from fedadmm.study.study_result import StudyResult
from support.commands import read_content as read
from support.records import made
from support.runs import TARGET

LIMIT = 6_000_000


def copy(comparison: Path, name: str, to: Path) -> Path:
    shutil.copytree(comparison / "runs" / name, to)
    return to


def records(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_page_is_one_small_file_without_addresses(comparison: Path) -> None:
    page = write_report(comparison)
    assert page == comparison / "report.html"
    assert page.stat().st_size < LIMIT
    text = page.read_text()
    assert "http" not in text.replace(_plotly(), "")
    assert not re.search(r'(src|href)="(?!data:,)', text.replace(_plotly(), ""))


def _plotly() -> str:
    from fedadmm.study.report.page import plotly

    return plotly()


def test_a_large_comparison_stays_small(comparison: Path, tmp_path: Path) -> None:
    """Thirteen methods, several seeds, far more rounds than points: thinning must hold."""
    source = comparison / "runs/fedadmm-insa-seed0"
    rows = records(source)
    long = [
        {**rows[i % len(rows)], "round": i + 1, "metrics": {"loss": 1 + 1 / (i + 3)}}
        for i in range(500)
    ]
    text = "\n".join(json.dumps(record) for record in long)
    for method in range(13):
        for seed in range(2):
            run = tmp_path / f"runs/method{method}-seed{seed}"
            run.mkdir(parents=True)
            (run / "metrics.jsonl").write_text(text)
            (run / "summary.json").write_text(json.dumps({"label": f"m{method}", "seed": seed}))
    counts = [[client % 7] * 62 for client in range(1000)]
    (tmp_path / "partition.json").write_text(json.dumps({"counts": counts}))
    assert write_report(tmp_path).stat().st_size < LIMIT


def test_rounds_to_target_agree_with_the_summaries(comparison: Path) -> None:
    content = read(comparison)
    assert content.target == Target("test_accuracy", TARGET["value"], at_least=True)
    rows = {row.label: row for row in content.results.rows}
    reached_by_somebody = False
    for label, runs in content.labels.items():
        expected = [run.summary["rounds_to_target"] for run in runs]
        assert rows[label].reached == sum(value is not None for value in expected)
        if None not in expected:
            reached_by_somebody = True
            assert rows[label].rounds.mean == pytest.approx(statistics.mean(expected))
            spent = [
                sum(
                    r["traffic"]["bytes_up"] + r["traffic"]["bytes_down"]
                    for r in RunDir(run.directory).records()[:rounds]
                )
                for run, rounds in zip(runs, expected, strict=True)
            ]
            assert rows[label].bytes.mean == pytest.approx(statistics.mean(spent))
    assert reached_by_somebody


def test_curves_are_means_with_the_range_of_the_seeds(comparison: Path) -> None:
    content = read(comparison)
    panel = next(
        panel for part in sections(content) for panel in part.panels if panel.name == "loss"
    )
    line = next(line for line in panel.lines if line.label == "fedavg")
    one, two = (records(comparison / f"runs/fedavg-seed{seed}") for seed in (0, 1))
    for index, (a, b) in enumerate(zip(one, two, strict=True)):
        pair = sorted((a["metrics"]["loss"], b["metrics"]["loss"]))
        assert line.y[index] == pytest.approx(sum(pair) / 2, rel=1e-4)
        assert [line.low[index], line.high[index]] == pytest.approx(pair, rel=1e-4)
    traffic = sum(a["traffic"]["bytes_up"] + a["traffic"]["bytes_down"] for a in one)
    assert line.x["bytes"][-1] * 1e3 == pytest.approx(traffic, rel=1e-3)


def test_a_diverged_seed_is_told_and_stays_out_of_the_mean(comparison: Path) -> None:
    content = read(comparison)
    wild = [run for run in content.runs if run.diverged]
    assert [(run.label, run.seed) for run in wild] == [("feddyn!", 1)]
    curves = [
        line
        for line in lines(
            content, sections(content)[0].axes, lambda columns: columns.column("loss")
        )
        if line.label == "feddyn!"
    ]
    assert [line.ended for line in curves] == [False, True]
    healthy = [record["metrics"]["loss"] for record in records(comparison / "runs/feddyn!-seed0")]
    assert curves[0].y == pytest.approx(healthy, rel=1e-4)
    text = write_report(comparison).read_text()
    assert "1 of 2 diverged" in text
    assert wild[0].status.removeprefix("diverged").split(":")[0] in text


def test_long_curves_are_thinned_and_their_tables_are_exact(tmp_path: Path) -> None:
    accuracy = {1234: 0.95, 2345: 0.01}  # neither of them is a round that even steps show
    history = [
        made(
            t,
            test_accuracy=accuracy.get(t, 0.5 + t / 10000),
            clients=[t % 7, t % 3],
            bytes_up=t,
            bytes_down=10,
            seconds=0.25,
            **({} if t % 3 else {"test_loss": t}),
        )
        for t in range(1, 3001)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(r) for r in history))
    target = {"metric": "test_accuracy", "value": 0.9, "at_least": True}
    (tmp_path / "summary.json").write_text(json.dumps({"target": target}))
    content = read(tmp_path)
    (line,) = sections(content)[0].panels[0].lines
    assert MOST_POINTS <= len(line.y) <= MOST_POINTS + 6
    drawn = dict(zip(line.x["rounds"], line.y, strict=True))
    assert drawn[1] == 0.5001
    assert drawn[3000] == 0.8
    assert {number: drawn[number] for number in accuracy} == accuracy
    assert all(
        drawn[number] == pytest.approx(0.5 + number / 10000) for number in drawn.keys() - accuracy
    )

    (loss,) = sections(content)[0].panels[1].lines  # measured in every third round
    assert loss.y == loss.x["rounds"]
    assert all(number % 3 == 0 for number in loss.y)

    (row,) = content.results.rows
    assert row.rounds.mean == 1234
    assert row.bytes.mean == 1234 * 1235 / 2 + 1234 * 10
    assert row.seconds.mean == 1234 / 4
    assert row.final["test_accuracy"].mean == 0.8
    assert content.runs[0].tally["bytes_up"] == 3000 * 3001 / 2
    clients = next(section for section in sections(content) if section.name == "clients")
    found = {panel.name: panel for panel in clients.panels}
    met = [sum(client in (t % 7, t % 3) for t in range(1, 3001)) for client in range(7)]
    both = sum(t % 7 == t % 3 for t in range(1, 3001))
    assert sum(found["participation"].values) == sum(met) + both
    assert found["participation"].values[3:] == met[3:]
    assert "The first 200 rounds." in found["presence"].note


def test_a_long_run_is_read_without_holding_its_records(
    comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one, *_) = records(comparison / "runs/fedavg-seed0")
    text = "".join(json.dumps(one | {"round": t}) + "\n" for t in range(1, 3001))
    (tmp_path / "metrics.jsonl").write_text(text)
    monkeypatch.setattr(run_dir, "_BLOCK", 10_000)  # ten records or so

    def peak(reader: Callable[[], object]) -> int:
        tracemalloc.start()
        kept = reader()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        del kept
        return found

    folder = RunDir(tmp_path)
    assert folder.columns().tally(None)["rounds"] == len(folder.records()) == 3000
    assert peak(folder.columns) < len(text) / 2
    assert peak(folder.columns) < peak(folder.records) / 8


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_run_that_is_still_going(comparison: Path, tmp_path: Path, cut: int) -> None:
    run = copy(comparison, "fedadmm-insa-seed0", tmp_path / "run")
    (run / "summary.json").unlink()
    data = (run / "metrics.jsonl").read_bytes().rstrip()
    (run / "metrics.jsonl").write_bytes(data[:-cut])
    content = read(run)
    assert content.runs[0].code == "running"
    assert content.runs[0].columns.count == data.count(b"\n")
    assert "running" in write_report(run).read_text()


def test_a_run_before_its_first_round(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[algorithm]\nname = "fedadmm"\n')
    assert "0 rounds so far" in write_report(tmp_path).read_text()


def test_comparison_without_overview_is_read_from_its_runs(
    comparison: Path, tmp_path: Path
) -> None:
    copy(comparison, "fedavg-seed0", tmp_path / "runs/fedavg-seed0")
    copy(comparison, "fedadmm-seed1", tmp_path / "runs/fedadmm-seed1")
    content = read(tmp_path)
    assert [(run.label, run.seed) for run in content.runs] == [("fedadmm", 1), ("fedavg", 0)]


def test_unknown_measurements_get_panels_and_bounds_share_them(tmp_path: Path) -> None:
    history = [
        made(t, loss=1.0, V_bound=9.0 / t, V_measured=1.0 / t, fairness_gap=t) for t in range(1, 5)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(r) for r in history))
    more = next(part for part in sections(read(tmp_path)) if part.name == "more")
    shown = {panel.title: [line.part for line in panel.lines] for panel in more.panels}
    assert shown == {"V": ["V_bound", "V_measured"], "Fairness gap": [""]}


def test_partition_tells_names_and_how_many_clients_there_are(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"round": 1, "cohort": {"clients": [0, 8]}}\n')
    document = {"clients": 9, "names": ["Rome", "Oslo"], "sizes": [3, 4], "labels": [0, 1]}
    document["counts"] = [[1, 2], [4, 0]]
    (tmp_path / "partition.json").write_text(json.dumps(document))
    heat, sizes, participation, presence = sections(read(tmp_path))[-1].panels
    assert heat.values == [[1, 4], [2, 0]]
    assert heat.names == sizes.names == ["Rome", "Oslo"]
    assert "first 2 of 9" in heat.note
    assert participation.values == [1, 0, 0, 0, 0, 0, 0, 0, 1]
    assert presence.values == [[1], [0], [0], [0], [0], [0], [0], [0], [1]]


def test_configuration_tells_what_differs(comparison: Path) -> None:
    shared, table = configuration(read(comparison))
    different = {line[0]: dict(zip(table.headings, line, strict=True)) for line in table.lines}
    assert different["algorithm.rho"]["FedADMM"] == "0.1"
    assert different["algorithm.rho"]["fedadmm, rho 0.3"] == "0.3"
    assert different["algorithm.rho"]["FedAvg"] == "–"
    assert ("local.solver.lr", "0.1") in shared


def test_search_shows_every_candidate_and_marks_the_choice() -> None:
    tried = [
        {
            "label": "FedAvg",
            "value": {"local.solver.lr": value},
            "metric": "test_accuracy",
            "best": best,
        }
        for value, best in ((0.03, 0.5), (0.1, 0.75))
    ]
    search = {
        "rule": "best",
        "seeds": [7],
        "samples": "validation",
        "grid": {"FedAvg": {"local.solver.lr": [0.03, 0.1]}},
        "interior": {"FedAvg": {"local.solver.lr": False}},
        "tried": tried,
        "chosen": {"FedAvg": {"value": {"local.solver.lr": 0.1}}},
    }
    found = search_table(StudyResult(Path(), {"search": search}, []))
    assert found is not None
    assert found.headings == ["method", "0.03", "0.1"]
    assert found.lines == [["FedAvg", "50.0 %", "75.0 % ✓"]]
    assert search_table(StudyResult(Path(), {"search": None}, [])) is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.jsonl", '{"round": 1}\n{bad\n{}\n', "metrics.jsonl: line 2 is not a JSON object"),
        ("metrics.jsonl", "[1]\n", "metrics.jsonl: line 1 is not a JSON object"),
        ("metrics.jsonl", '{"loss": 1}\n', "line 1 does not say which round it is about"),
        (
            "metrics.jsonl",
            '{"round": 1, "traffic": {"bytes_down": 1e308}}\n',
            "line 1 says that traffic.bytes_down is 1e+308, but it must be 0 … 9223372036854775807",
        ),
        ("summary.json", "[]", "summary.json: is not a JSON object"),
        ("summary.json", "{", "summary.json: is not JSON"),
        ("config.toml", "a = ", "config.toml: is not TOML"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n')
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=re.escape(message)):
        write_report(tmp_path)


def test_a_directory_that_is_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither a run"):
        write_report(tmp_path)
    with pytest.raises(DataError, match="no such directory"):
        write_report(tmp_path / "nowhere")
    (tmp_path / "runs").mkdir()
    with pytest.raises(DataError, match="no run yet"):
        write_report(tmp_path)


def test_figures_are_written_as_png_and_svg(tmp_path: Path) -> None:
    history = [
        made(
            t,
            test_accuracy=t / 9,
            bytes_up=8,
            seconds=0.5,
            clients=[t % 2],
            primal_residual=1 / t,
            penalty_quartiles=[1, 2, t + 2],
        )
        for t in range(1, 6)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(r) for r in history))
    write_report(tmp_path, figures=tmp_path / "figures")
    names = {path.stem for path in (tmp_path / "figures").glob("*.svg")}
    assert names == {path.stem for path in (tmp_path / "figures").glob("*.png")}
    learning = {f"test_accuracy-{axis}" for axis in ("rounds", "bytes", "time")}
    assert names == learning | {"primal_residual", "penalty", "participation", "presence"}
    assert (tmp_path / "figures/penalty.png").read_bytes().startswith(b"\x89PNG")
    assert "Penalties" in (tmp_path / "figures/penalty.svg").read_text()


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (57_840, "57.8 kB"), (2.5e9, "2.5 GB")]
)
def test_sizes_for_people(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (1.5, "1.5 s"), (61, "1 min 01 s"), (7260, "2 h 01 min")]
)
def test_durations_for_people(value: float | None, text: str) -> None:
    assert duration(value) == text


def flat(tmp_path: Path, **runs: float) -> list[dict[str, object]]:
    """Comparison of runs with so many epochs in every round; the last digit of the loss moves."""
    for label, epochs in runs.items():
        run = tmp_path / "runs" / label
        run.mkdir(parents=True)
        history = [
            made(t, loss=1 / t, epochs=epochs, participants=3, steps=7 + t) for t in range(1, 4)
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in history))
        (run / "summary.json").write_text(json.dumps({"label": label, "algorithm": label}))
    return [part._asdict() for part in sections(read(tmp_path))]


def test_what_never_changes_is_said_in_a_sentence(tmp_path: Path) -> None:
    work = next(part for part in flat(tmp_path, one=5.0, two=5.0) if part["name"] == "work")
    assert [panel.name for panel in work["panels"]] == ["steps"]  # type: ignore[attr-defined]
    assert work["constants"] == [
        "Local epochs: 5 in every round.",
        "Participants: 3 in every round.",
    ]
    assert "Participants: 3 in every round." in write_report(tmp_path).read_text()


def test_constants_that_differ_between_methods_are_told_apart(tmp_path: Path) -> None:
    work = next(part for part in flat(tmp_path, one=5.0, two=2.0) if part["name"] == "work")
    assert work["constants"] == [
        "Local epochs, the same in every round: 5 (one); 2 (two).",
        "Participants: 3 in every round.",
    ]


def written(folder: Path, label: str, seed: int, history: list[dict[str, object]]) -> None:
    """A run directory of a comparison."""
    run = folder / "runs" / f"{label}-{seed}"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in history))
    (run / "summary.json").write_text(json.dumps({"label": label, "seed": seed}))


def test_who_took_part_when_is_told_once_if_all_methods_met_the_same(tmp_path: Path) -> None:
    cohorts = [[0, 1], [2], [0, 2]]
    same = [made(t + 1, loss=1 / (t + 1), clients=met) for t, met in enumerate(cohorts)]
    written(tmp_path, "a", 0, same)
    written(tmp_path, "b", 0, same)
    clients = sections(read(tmp_path))[-1].panels
    pictures = [panel for panel in clients if panel.name.startswith("presence")]
    assert [picture.values for picture in pictures] == [[[1, 0, 1], [1, 0, 0], [0, 1, 1]]]
    assert (pictures[0].names, pictures[0].rows) == (["1", "2", "3"], ["0", "1", "2"])
    other = [made(t + 1, loss=1 / (t + 1), clients=met) for t, met in enumerate(cohorts[::-1])]
    written(tmp_path, "c", 0, other)
    names = [panel.name for panel in sections(read(tmp_path))[-1].panels]
    assert names == ["participation", "presence-a", "presence-b", "presence-c"]


def test_everybody_in_every_round_is_a_sentence(tmp_path: Path) -> None:
    written(tmp_path, "a", 0, [made(t, loss=1 / t, clients=[0, 1, 2]) for t in (1, 2)])
    (clients,) = [part for part in sections(read(tmp_path)) if part.name == "clients"]
    assert clients.panels == []
    assert clients.constants == ["Participation: 2 rounds for every client."]


def test_the_reason_for_the_end_is_said_once(tmp_path: Path) -> None:
    ended = {"code": "completed", "status": "completed all 2 rounds", "algorithm": "fedavg"}
    for seed in range(3):
        run = tmp_path / f"runs/{seed}"
        run.mkdir(parents=True)
        lines = (json.dumps(made(t, loss=3 - t)) + "\n" for t in (1, 2))
        (run / "metrics.jsonl").write_text("".join(lines))
        (run / "summary.json").write_text(json.dumps(ended | {"seed": seed}))
    page = write_report(tmp_path).read_text().replace(_plotly(), "")
    assert page.count("completed all 2 rounds") == 1
    (run / "summary.json").write_text(
        json.dumps(ended | {"code": "diverged", "status": "diverged"})
    )
    page = write_report(tmp_path).read_text().replace(_plotly(), "")
    assert page.count("completed all 2 rounds") == 1
    assert page.count('class="status"') == 3
    assert '<span class="chip diverged">diverged</span>' in page


def test_numbers_for_people() -> None:
    assert number(0.93251, share=True) == "93.3 %"
    assert number(-0.5) == "−0.5"
    assert number(float("nan")) == "not a number"
