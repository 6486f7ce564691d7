"""The first words between a person and the command line: what is typed, and what is said back."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedadmm as fa
from fedadmm.algorithms import REGISTRY
from fedadmm.run.evaluation import Target
from fedadmm.study import results
from fedadmm.study.results import Lead, MethodSummary, Results
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
    assert list(first) == sorted(REGISTRY)
    assert first["scaffold"][-2:] == ["1", "2"]
    assert first["fedadmm"][-2:] == ["2", "1"]
    page = " ".join(call("algorithms", "fedadmm").stdout.split())
    assert "Gong et al., FedADMM, ICDE 2022" in page
    assert "algorithm.rho: > 0 and finite" in page
    assert "a schedule over rounds, or `PerWork`, which fits it to the local work" in page


def _row(name: str, difference: Difference | None) -> MethodSummary:
    nothing = spread([])
    return MethodSummary(
        name, name, name, False, 3, 0, nothing, nothing, nothing, {}, None, difference
    )


def test_a_comparison_says_which_differences_are_more_than_chance() -> None:
    base = _row("FedAvg", None)
    rows = [
        base,
        _row("FedADMM", Difference(0.1, 0.05, 0.15, 3)),
        _row("FedDR", Difference(0.1, -0.05, 0.25, 3)),
        _row("FedPD", Difference(-0.1, -0.15, -0.05, 3)),
    ]
    told = results.verdict(Results(None, "test_accuracy", base, rows))
    assert told == [
        "differ significantly from FedAvg: FedADMM; FedPD · "
        "no significant difference from FedAvg: FedDR"
    ]
    assert results.verdict(Results(None, "test_accuracy", None, rows)) == []


def test_a_comparison_says_what_won_and_by_how_much() -> None:
    best = replace(_row("FedADMM", None), final={"test_accuracy": spread([0.9, 0.92])})
    second = _row("FedAvg", None)
    shown = results.final(second, "test_accuracy")

    def sentence(gap: Difference) -> str:
        lead = Lead(best, second, gap, by_rounds=False)
        return results.verdict(Results(None, "test_accuracy", None, [best, second], lead))[0]

    start = (
        f"best test accuracy at the end: FedADMM 91.0 ± 1.4 %; FedAvg {shown} "
        "(the first two differ by +2.0 points; "
    )
    assert sentence(Difference(0.02, 0.01, 0.03, 2)) == (
        f"{start}95 % interval +1.0 to +3.0 over 2 seeds: significant)"
    )
    assert sentence(Difference(0.02, -0.01, 0.05, 2)) == (
        f"{start}95 % interval −1.0 to +5.0 over 2 seeds: not significant)"
    )
    assert "one seed cannot show" in sentence(Difference(0.02, None, None, 1))
    assert "says nothing about chance" in sentence(Difference(0.02, 0.02, 0.02, 5))
    faster = replace(best, rounds=spread([10.0, 12.0]), bytes=spread([2e6, 3e6]))
    slower = replace(second, rounds=spread([14.0, 16.0]), bytes=spread([5e6]))
    usual = replace(_row("mean", None), algorithm="fedavg", rounds=spread([20.0]))
    lead = Lead(faster, slower, Difference(-4.0, -5.0, -3.0, 2), by_rounds=True)
    target = Target("test_accuracy", 0.9, True)
    rows = [usual, faster, slower]
    told = results.verdict(Results(target, "test_accuracy", None, rows, lead))[0]
    assert told.replace("\N{NO-BREAK SPACE}", " ") == (
        "first at test accuracy ≥ 90 %: FedADMM after 11 rounds and 2.5 MB; FedAvg after 15 rounds "
        "and 5 MB; mean after 20 rounds and – (the first two differ by −4 rounds; 95 % interval "
        "−5 to −3 over 2 seeds: significant)"
    )
    usual = replace(usual, bytes=spread([2e6]))

    def short(*rows: MethodSummary) -> list[str]:
        found = Results(target, "test_accuracy", None, list(rows), lead)
        words = "\n".join(results.verdict(found)).replace("\N{NO-BREAK SPACE}", " ")
        return [line for line in words.splitlines() if line.startswith("in short")]

    assert short(usual, faster, slower) == [
        "in short: FedADMM needs 45 % fewer rounds than mean to test accuracy ≥ 90 %, and sends "
        "25 % more"
    ]
    assert short(faster, slower) == []


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
