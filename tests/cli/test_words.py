"""The first words between a person and the command line: what is typed, and what is said back."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedadmm as fa
from fedadmm.algorithms import REGISTRY
from fedadmm.run.evaluation import Target
from fedadmm.study import results
from fedadmm.study.results import Comparison, MethodSummary, Results
from fedadmm.study.statistics import Difference, spread
from support.commands import call, write_small


def test_a_problem_s_name_is_a_configuration(tmp_path: Path) -> None:
    ran = call("run", "quadratics", "--rounds", 2, "--out", tmp_path / "run", "--no-report")
    assert ran.exit_code == 0, ran.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == 2


def test_a_problem_may_be_named_by_set_alone(tmp_path: Path) -> None:
    words = ("--set", "problem.name=quadratics", "--rounds", 1, "--print-config")
    assert 'name = "quadratics"' in call("run", *words).stdout
    assert 'name = "quadratics"' in call("compare", *words).stdout


def test_without_a_configuration_the_line_to_type_is_said() -> None:
    refused = call("run", "--set", "local.solver.lr=0.3", "--rounds", 7)
    assert refused.exit_code == 2
    line = refused.stderr.partition("for example: ")[2].partition(" (see")[0]
    assert shlex.split(line) == [
        *("fedadmm", "run", "quickstart", "--rounds", "7", "--set", "local.solver.lr=0.3")
    ]


def test_a_stop_with_keys_alone_is_the_usual_one(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[problem]\nname = "quadratics"\n')
    shown = call("run", file, "--set", "local.stop.epochs=5", "--print-config")
    assert shown.exit_code == 0, shown.stderr
    assert '[local.stop]\nname = "epochs"\nepochs = 5' in shown.stdout


@pytest.mark.parametrize("spelling", ["none", "None"])
def test_nothing_is_spelt_as_in_toml_or_as_in_python(tmp_path: Path, spelling: str) -> None:
    for name, label in (("a", "x"), ("b", "y")):
        (tmp_path / f"{name}.csv").write_text(f"size,target\n1,{label}\n2,x\n3,y\n")
    words = ("--set", f"problem.path={tmp_path}", "--set", f"problem.client={spelling}")
    shown = call("run", "table", *words, "--print-config")
    assert 'client = "none"' in shown.stdout, shown.stderr


def test_every_method_has_a_line_of_80_columns_and_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = call("algorithms").stdout
    assert max(map(len, listed.splitlines())) <= 80
    lines = [line.split() for line in listed.partition("keeps: ")[0].splitlines()]
    first = {words[0]: words for words in lines if words and words[0] in REGISTRY}
    assert sorted(first) == sorted(REGISTRY)
    assert first["scaffold"][-3:] == ["1", "2", "2"]  # keeps, up, down
    assert first["fedadmm"][-3:] == ["2", "1", "1"]
    page = " ".join(call("algorithms", "fedadmm").stdout.split())
    assert "Gong et al., FedADMM, ICDE 2022" in page
    assert "algorithm.rho: > 0 and finite" in page
    assert "a schedule over rounds, or `PerWork`, which fits it to the local work" in page


def _row(name: str, difference: Difference | None, **changes: Any) -> MethodSummary:
    nothing = spread([])
    row = MethodSummary(name, name, name, 3, 0, 80, nothing, nothing, nothing, {})
    return replace(row, difference=difference, **changes)


def test_significance_follows_the_adjusted_p_value() -> None:
    rows = [
        _row("FedAvg", None),
        _row("a", Difference(0.1, 0.05, 0.15, 3, 0.01, 0.03), compared_with="FedAvg"),
        _row("b", Difference(0.1, 0.01, 0.25, 3, 0.04, 0.08), compared_with="FedAvg"),
    ]
    found = Results(None, "test_accuracy", rows)
    assert [results.compared(found, row).endswith("†") for row in rows] == [False, True, False]
    (told,) = results.verdict(found)
    assert (
        told == "significantly different from FedAvg: a · no significant difference from FedAvg: b"
    )


def test_the_last_sentence_claims_nothing_that_is_not_significant() -> None:
    best = _row("new", None, rounds=spread([10.0, 12.0]), bytes=spread([2e6, 3e6]))
    usual = _row(
        "mean", None, algorithm="fedavg", rounds=spread([20.0, 22.0]), bytes=spread([2e6] * 2)
    )
    target = Target("test_accuracy", 0.9, True)

    def last(gap: Difference) -> str:
        over = Comparison(best, usual, gap)
        found = Results(target, "test_accuracy", [usual, best], True, None, over)
        return results.verdict(found)[-1].replace("\N{NO-BREAK SPACE}", " ")

    won = last(Difference(-10.0, -12.0, -8.0, 2, 0.01))
    assert "new needs 48 % fewer rounds than mean" in won
    assert "25 % more" in won
    assert "fewer" not in last(Difference(-10.0, -25.0, 5.0, 2, 0.2))


def test_a_comparison_without_a_target_speaks_of_none(tmp_path: Path) -> None:
    own = write_small(tmp_path / "own.toml")
    words = ("--algorithms", "fedavg,fedadmm", "--seeds", "0,1,2", "--jobs", 1)
    shown = call("compare", own, *words, "--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.stderr
    assert "target" not in shown.stdout
    assert "±" in shown.stdout
    assert "± is the standard deviation over the seeds" in " ".join(shown.stdout.split())


def test_a_sampler_that_is_none_is_told_what_to_become() -> None:
    class Alternate:
        def sample(self, seed: int, round_index: int, clients: int) -> list[int]:
            return [round_index % clients]

    problem = fa.Problem([fa.Quadratic(torch.eye(2), torch.ones(2))])
    with pytest.raises(
        fa.errors.ParameterError, match="make Alternate a subclass of it that defines sam"
    ):
        fa.simulate(fa.FedAvg(), problem, 1, sampler=Alternate())  # type: ignore[arg-type]
