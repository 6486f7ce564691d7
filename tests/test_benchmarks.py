"""The benchmark's book-keeping on made-up times, and one real run of what needs no installation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import fedadmm as fa
from benchmarks import contenders, felt, measuring, page, workloads
from benchmarks.__main__ import app
from benchmarks.contenders import Outcome
from benchmarks.peers import common
from support.rejections import naming

SECONDS = {"fedadmm": 2.0, "pfl": 3.0, "flower": 5.0, "plain": 4.0, "jax": 1.0}


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
    assert document["ratios"] == pytest.approx({"pfl": 1.5, "flower": 2.5, "plain": 2.0})
    assert document["spread"]["pfl"] == pytest.approx([3.0, 3.6])
    assert document["peak_rss_mb"] == 109.0
    assert json.loads(json.dumps(document)) == document


def test_contenders_take_turns(turns: list[str]) -> None:
    measuring.run("mlp", peers=["pfl", "plain"], repeats=2)
    assert turns == ["fedadmm", "pfl", "plain"] * 2


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
    assert set(document["ratios"]) == {"plain"}
    assert document["skipped"]["pfl"] == "not installed"
    assert "no memory" in document["skipped"]["flower"]
    lines = measuring.table([document]).splitlines()
    assert "| cnn | plain | 4.4 (4–4.8) | 2.00 |" in lines
    assert "| cnn | pfl | skipped: not installed | |" in lines


def test_growth_compares_numbers_of_clients(turns: list[str]) -> None:
    document = measuring.run("growth", repeats=1)
    assert document["ratios"] == pytest.approx({"1000000": 1.1})
    assert set(document["by_clients"]) == {"1000", "1000000"}
    assert measuring.table([document]).splitlines()[2:] == [
        "| growth | 1000 | 2 (2–2) |  |",
        "| growth | 1000000 | 2.2 (2.2–2.2) | 1.10 |",
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
    assert "workload: got 'lstm'" in result.stderr


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
    assert contenders.absence("plain") is None


def test_a_real_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small, but with all processes: fedadmm and the plain loop."""
    small = replace(
        workloads.WORKLOADS["mlp"], clients=20, cohort=4, epochs=1, rounds=2, method="fedadmm"
    )
    monkeypatch.setitem(workloads.WORKLOADS, "mlp", small)
    monkeypatch.setattr(contenders, "usable_cores", lambda: 1)
    document = measuring.run("mlp", peers=["plain"], repeats=1)
    assert set(document["seconds_per_round"]) == {"fedadmm", "plain"}
    assert all(value > 0 for value in document["seconds_per_round"].values())
    assert document["skipped"] == {}
    assert document["peak_rss_mb"] > 50
    assert 4 <= document["clients_touched"] <= 12


def test_processes_that_outlive_a_contender_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As workers of Ray do; one that has another mark is left alone."""
    monkeypatch.setattr(contenders, "LINGER_SECONDS", 0.1)
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = [
        subprocess.Popen(sleep, env={**os.environ, contenders.MARK: mark})
        for mark in ("mine", "another's")
    ]
    try:
        threading.Thread(target=started[0].wait).start()  # a zombie would still be listed
        contenders._wait_for_the_end("mine")
        assert started[0].wait(10) != 0
        assert started[1].poll() is None
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("name", "count"),
    # With the bias of every layer; 11,173,962 of ResNet-18 with batch normalisation, too.
    [("cnn1", 1_663_370), ("cnn2", 1_105_098), ("tutorial-cnn", 62_006), ("resnet18", 11_173_962)],
)
def test_models_of_the_peers_have_the_published_sizes(name: str, count: int) -> None:
    module = common.model(SimpleNamespace(model=name))
    assert sum(p.numel() for p in module.parameters()) == count
    channels = 1 if name == "cnn1" else 3
    pixels = 28 if name == "cnn1" else 32
    assert module(torch.zeros(2, channels, pixels, pixels)).shape == (2, 10)


def _document(name: str, seconds: dict[str, float], **more: Any) -> dict[str, Any]:
    spread = {key: [0.9 * value, 1.1 * value] for key, value in seconds.items()}
    about = {"date": "2026-11-18", "cores": 2, "repeats": 3, "skipped": {"flower": "no memory"}}
    return about | {
        "workload": name,
        "seconds_per_round": seconds,
        "spread": spread,
        "ratios": {"1000000": 1.05},
        "revision": "abc",
        **more,
    }


def test_the_page_gets_the_results_between_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [
        _document("logistic", {"fedadmm": 0.002, "pfl": 0.0082, "jax": 0.0018}),
        _document("cnn", {"fedadmm": 2.0, "pfl": 2.4}),
        _document("growth", {"fedadmm": 0.0075}),
        _document("ray-nodes", {"1 nodes": 1.2, "2 nodes": 0.8}),
        _document("cohort", {"100, memory": 1e-4, "100, disk": 2e-4}),
        _document("evaluation", {f"E = {e}, {w}": s for e, w, s in EVALUATION}),
        _document("start-up", START_UP),
        _document(
            "comparison", {"compare quickstart": 10.0}, cpu_seconds={"compare quickstart": 17.0}
        ),
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
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    cells = rows["logistic"].split(" | ")
    assert cells[1] == "2 ms (1.8 ms–2.2 ms)"
    # The order of the peers: plain, pfl, Flower, JAX.
    assert cells[2:] == ["–", "4.10 (3.69–4.51)", "skipped", "0.90 (0.81–0.99) |"]
    assert "7.5 ms a round, 1.05 times" in rows["growth"]
    assert "0.8 s a round, 75%" in rows["ray-nodes"]
    assert "2.00 (100)" in rows["cohort"]
    assert "30% (E = 1), 10% (E = 5)" in rows["evaluation"]
    assert "1.7 s, of which `import torch` 1 s; `config presets` 0.1 s" in rows["start-up"]
    assert "10 s on 85% of the cores" in rows["comparison"]
    assert (tmp_path / "page.svg").read_text().startswith("<?xml")


def test_results_of_two_revisions_are_rejected() -> None:
    documents = [_document(name, {"fedadmm": 1.0}) for name in ("cnn", "mlp")]
    documents[1]["revision"] = "def"
    with pytest.raises(fa.errors.DataError, match=naming("revisions abc def")):
        page.table(documents)


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
