"""The benchmark's book-keeping on made-up times, and one real run of what needs no installation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import fedadmm as fa
from benchmarks import contenders, felt, measuring, page, workloads
from benchmarks.__main__ import app
from benchmarks.contenders import Outcome
from support.rejections import naming

SECONDS = {"fedadmm": 2.0, "pfl": 3.0, "flower": 5.0, "plain": 4.0, "floor": 1.8, "jax": 1.0}


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Contenders that need no time; each repeat is a tenth slower than the one before."""
    taken: list[str] = []

    def run(contender: str, workload: Any, folder: Path) -> Outcome:
        seconds = SECONDS[contender] * (1 + 0.1 * taken.count(contender))
        taken.append(contender)
        report = {
            "peak_rss_mb": 100.0 + len(taken),
            "startup_seconds": 1.5,
            "engine": "workers",
            "clients_touched": 60,
            "cpu_seconds": 7.0,
        }
        return Outcome([seconds, seconds, 50 * seconds], report)

    monkeypatch.setattr(contenders, "run", run)
    monkeypatch.setattr(contenders, "absence", lambda peer: None)
    monkeypatch.setattr(measuring, "write_rows", lambda workload, folder: "random rows")
    for name, (_, base) in felt.FELT.items():
        monkeypatch.setitem(felt.FELT, name, (lambda base=base: {base: felt.Cost(1.0)}, base))
    return taken


def test_the_document(turns: list[str]) -> None:
    document = measuring.run("cnn")
    assert document["workload"] == "cnn"
    assert set(document["seconds_per_round"]) == set(SECONDS) - {"jax"}
    assert document["seconds_per_round"]["fedadmm"] == pytest.approx(2.2)
    assert document["ratios"] == pytest.approx(
        {"pfl": 1.5, "flower": 2.5, "plain": 2.0, "floor": 0.9}
    )
    assert document["spread"]["pfl"] == pytest.approx([3.0, 3.6])
    assert document["peak_rss_mb"] == 111.0
    assert json.loads(json.dumps(document)) == document


def test_contenders_take_turns(turns: list[str]) -> None:
    measuring.run("mlp", peers=["pfl", "floor"], repeats=2)
    assert turns == ["fedadmm", "pfl", "floor"] * 2


def test_absent_and_failing_peers_are_skipped_with_a_reason(
    turns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        contenders, "absence", lambda peer: "not installed" if peer == "pfl" else None
    )
    working = contenders.run

    def run(contender: str, workload: Any, folder: Path) -> Outcome:
        if contender == "flower":
            raise fa.errors.EngineError("benchmarks: flower ended with exit code 1:\nno memory")
        return working(contender, workload, folder)

    monkeypatch.setattr(contenders, "run", run)
    document = measuring.run("cnn")
    assert set(document["ratios"]) == {"plain", "floor"}
    assert document["skipped"]["pfl"] == "not installed"
    assert "no memory" in document["skipped"]["flower"]
    lines = measuring.table([document]).splitlines()
    assert "| cnn | plain | 4.4 (4–4.8) | 2.00 | 7 |" in lines
    assert "| cnn | pfl | skipped: not installed | | |" in lines


def test_growth_compares_numbers_of_clients(turns: list[str]) -> None:
    document = measuring.run("growth", repeats=1)
    assert document["ratios"] == pytest.approx({"1000000": 1.1})
    assert set(document["by_clients"]) == {"1000", "1000000"}
    assert measuring.table([document]).splitlines()[2:] == [
        "| growth | 1000 | 2 (2–2) |  |  |",
        "| growth | 1000000 | 2.2 (2.2–2.2) | 1.10 |  |",
    ]


def test_the_command_prints_one_document(turns: list[str], tmp_path: Path) -> None:
    result = call("mlp", "--json", "--repeats", 1, "--out", tmp_path / "found.json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["ratios"]["pfl"] == pytest.approx(1.5)
    assert json.loads((tmp_path / "found.json").read_text()) == [document]
    assert "repeat 1 of 1, pfl" in result.stderr


def test_the_command_without_a_name_runs_all_and_prints_a_table(turns: list[str]) -> None:
    result = call("--no-peers", "--repeats", 1)
    assert result.exit_code == 0, result.stderr
    named = {line.split(" | ")[0] for line in result.stdout.splitlines()[2:]}
    assert named == {f"| {name}" for name in [*measuring.WORKLOADS, *felt.FELT]}
    assert set(turns) == {"fedadmm"}


def test_what_is_felt_is_a_ratio_to_its_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Medians over the repeats, and the processor's seconds where they are known."""
    took = iter([(1.0, 4.0), (3.0, 6.0), (2.0, 20.0)])

    def measure() -> dict[str, felt.Cost]:
        base, other = next(took)
        return {"base": felt.Cost(base, 2 * base), "other": felt.Cost(other)}

    monkeypatch.setitem(felt.FELT, "mine", (measure, "base"))
    document = felt.run("mine", 3, lambda *told: None)
    assert document["seconds_per_round"] == {"base": 2.0, "other": 6.0}
    assert document["ratios"] == {"other": 3.0}
    assert document["spread"] == {"base": [1.0, 3.0], "other": [4.0, 20.0]}
    assert document["cpu_seconds"] == {"base": 4.0}


def test_the_command_refuses_an_unknown_workload() -> None:
    result = call("lstm")
    assert result.exit_code == 2
    assert "workload is 'lstm'" in result.stderr


def test_bad_choices_are_refused() -> None:
    with pytest.raises(fa.errors.ParameterError, match=naming("workload 'lstm'")):
        measuring.run("lstm")
    with pytest.raises(fa.errors.ParameterError, match=naming("peers 'tff'")):
        measuring.run("mlp", peers=["tff"])


def test_a_missing_environment_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(contenders.ENVIRONMENT, str(tmp_path))
    reason = contenders.absence("pfl")
    assert reason is not None
    assert "does not exist" in reason
    assert contenders.absence("floor") is None
    assert contenders.absence("plain") is None


def test_a_real_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small, but with all processes: fedadmm, the plain loop and the floor."""
    small = replace(
        workloads.WORKLOADS["mlp"], clients=20, cohort=4, epochs=1, rounds=2, method="fedadmm"
    )
    monkeypatch.setitem(workloads.WORKLOADS, "mlp", small)
    monkeypatch.setattr(contenders, "usable_cores", lambda: 1)
    document = measuring.run("mlp", peers=["plain", "floor"], repeats=1)
    assert set(document["seconds_per_round"]) == {"fedadmm", "plain", "floor"}
    assert all(value > 0 for value in document["seconds_per_round"].values())
    assert document["skipped"] == {}
    assert document["peak_rss_mb"] > 50
    assert 4 <= document["clients_touched"] <= 12


def _document(name: str, seconds: dict[str, float], cpu: dict[str, float]) -> dict[str, Any]:
    spread = {key: [0.9 * value, 1.1 * value] for key, value in seconds.items()}
    about = {"date": "2026-11-18", "cores": 2, "repeats": 3, "skipped": {"flower": "no memory"}}
    return about | {
        "workload": name,
        "seconds_per_round": seconds,
        "cpu_seconds": cpu,
        "spread": spread,
        "ratios": {"1000000": 1.05},
    }


def test_the_page_gets_the_results_between_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aim of the CNN counts processor time, the others wall clock."""
    times = {"fedadmm": 0.002, "pfl": 0.0082, "jax": 0.0019}
    documents = [
        _document("logistic", times, {"fedadmm": 2.0, "pfl": 5.0, "jax": 4.0}),
        _document("cnn", {"fedadmm": 2.0, "pfl": 2.4}, {"fedadmm": 10.0, "pfl": 14.0}),
        _document("growth", {"fedadmm": 0.0075}, {}),
        _document("ray-nodes", {"1 nodes": 1.2, "2 nodes": 0.8}, {}),
        _document("cohort", {"100, memory": 1e-4, "100, disk": 2e-4}, {}),
        _document("evaluation", {f"E = {e}, {w}": s for e, w, s in EVALUATION}, {}),
        _document("start-up", START_UP, {}),
    ]
    (tmp_path / "results.json").write_text(json.dumps(documents))
    (tmp_path / "page.md").write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    monkeypatch.setattr(
        "sys.argv", ["page", str(tmp_path / "results.json"), str(tmp_path / "page.md")]
    )
    page.main()
    page.main()
    text = (tmp_path / "page.md").read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{page.END}\nafter\n")
    assert "old" not in text
    assert text.count("3 repeats, 2 cores") == 1
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert "| 2 ms (1.8 ms to 2.2 ms) | 4.1 (2.5) | skipped | – | 0.95 (2) |" in rows["logistic"]
    assert rows["logistic"].endswith("| pfl ≥ 4: **met**; JAX by hand ≥ 1: missed |")
    assert rows["cnn"].endswith("| pfl ≥ 1.35 by CPU: **met** |")
    assert "7.5 ms a round, 1.05 times | flat: **met**" in rows["growth"]
    assert "75% | ≥ 85 %: missed" in rows["ray-nodes"]
    assert "2.00 (100) | ≤ 3: **met**" in rows["cohort"]
    assert "30% (E = 1), 10% (E = 5) | ≤ 5 %: missed" in rows["evaluation"]
    assert "1.7 s; `config presets` 0.1 s" in rows["start-up"]
    assert "= 1.8 s: **met**" in rows["start-up"]


EVALUATION = [(1, "evaluation", 0.3), (1, "round", 1.0), (5, "evaluation", 0.3), (5, "round", 3.0)]
START_UP = {
    "import torch": 1.0,
    "quickstart, one round": 1.7,
    "config presets": 0.1,
    "--help": 0.2,
}


def test_the_page_of_the_documentation_has_its_marks() -> None:
    text = (contenders.ROOT / "docs" / "benchmarks.md").read_text()
    assert text.index(page.BEGIN) < text.index(page.END)


def test_a_masked_upload_is_as_long_as_a_plain_one_in_single_precision() -> None:
    from benchmarks.masked_sums import cost

    *_, masked, plain = cost(5000, 4)
    assert 4 * 5000 < masked < 1.05 * plain
