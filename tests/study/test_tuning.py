"""A search finds what is best, cuts what is not, and goes on where it was interrupted."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedadmm.core.errors import ConfigError, StateError
from fedadmm.core.tables import flattened
from fedadmm.study import config as configs
from fedadmm.study.config import resolve
from fedadmm.study.records import Columns
from fedadmm.study.report.panels import sections
from fedadmm.study.rundir import RunDir
from fedadmm.study.runner import Event, Recorded
from fedadmm.study.running import run
from fedadmm.study.tuning import Range, Score, ranges_of, tune
from support.commands import SMALL, call, write_small
from support.commands import read_content as read
from support.records import made

optuna = pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
KEYS = ["local.solver.lr=0.001..0.1 log", "algorithm.rho=0.5,1.0"]


def names(out: Path) -> list[str]:
    return [row["directory"] for row in json.loads((out / "results.json").read_text())["runs"]]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("tune")
    tune(SMALL, ranges_of(KEYS), out, 8)
    return out


def test_the_best_trial_is_the_one_whose_last_measurement_is_best(searched: Path) -> None:
    result = json.loads((searched / "results.json").read_text())
    assert len(result["runs"]) == 8
    whole = [row for row in result["runs"] if row["state"] == "completed"]
    losses = {
        row["trial"]: RunDir(searched / row["directory"]).records()[-1]["metrics"]["objective"]
        for row in whole
    }
    assert result["best"]["trial"] == min(losses, key=lambda trial: losses[trial])
    best = tomllib.loads((searched / "best.toml").read_text())
    for key, value in result["best"]["set"].items():
        assert flattened(best)[key] == value
        low, high = (0.001, 0.1) if key == "local.solver.lr" else (0.5, 1.0)
        assert low <= value <= high
    assert resolve(configs.read(str(searched / "best.toml"))).rounds == 4


def test_what_is_behind_half_of_the_others_is_cut_and_keeps_its_checkpoint(searched: Path) -> None:
    result = json.loads((searched / "results.json").read_text())
    cut = [row for row in result["runs"] if row["state"] == "cut"]
    assert cut, "no trial was cut; the ranges of this test must hold bad ones"
    folder = searched / cut[0]["directory"]
    assert cut[0]["rounds"] < 4
    assert RunDir(folder).summary()["code"] == "interrupted"
    assert run(resolve(configs.read(str(folder))), folder, resume=True)["rounds"] == 4


def test_a_search_that_was_interrupted_goes_on_as_if_it_had_not_been(
    searched: Path, tmp_path: Path
) -> None:
    def press(event: Event) -> None:
        if isinstance(event, Recorded) and event.job == 3 and event.record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(SMALL, ranges_of(KEYS), tmp_path, 8, watch=press)
    assert not (tmp_path / "results.json").exists()
    tune(SMALL, ranges_of(KEYS), tmp_path, 8)
    assert names(tmp_path) == names(searched)
    before = names(tmp_path)
    longer = tune(SMALL, ranges_of(KEYS), tmp_path, 9).document["runs"]
    assert [row["directory"] for row in longer][:8] == before
    assert len(longer) == 9


def test_another_search_in_the_same_folder_is_refused(searched: Path) -> None:
    other = ranges_of(["local.solver.lr=0.001..0.2 log", KEYS[1]])
    with pytest.raises(StateError, match=r"differs in config\.rounds, ranges\.local\.solver\.lr"):
        tune(SMALL | {"rounds": 9}, other, searched, 9)


def test_what_is_set_reaches_every_trial_that_has_the_key(tmp_path: Path) -> None:
    ranges = ranges_of(["algorithm.name=fedavg,fedprox"])
    small = SMALL | {"rounds": 1, "algorithm": {"name": "fedavg"}}
    result = tune(small, ranges, tmp_path, 4, settings=[("algorithm.rho", 7.0)])
    trees = [run.config for run in result.runs]
    assert {(tree["algorithm"]["name"], tree["algorithm"].get("rho")) for tree in trees} == {
        ("fedavg", None),
        ("fedprox", 7.0),
    }
    with pytest.raises(StateError, match=r"differs in set\.algorithm\.rho"):
        tune(small, ranges, tmp_path, 4, settings=[("algorithm.rho", 8.0)])
    for key, message in (
        ("algorithm.roh", "algorithm.roh is set to 7, but is not a key of fedavg, fedprox"),
        ("algorithm.name", "algorithm.name is set to 7, but algorithm.name is varied"),
    ):
        with pytest.raises(ConfigError, match=message):
            tune(small, ranges, tmp_path / "refused", 4, settings=[(key, 7)])
    assert not (tmp_path / "refused").exists()


def test_a_run_that_reaches_its_target_is_before_one_that_does_not() -> None:
    target = {"metric": "loss", "value": 0.5, "at_least": False}
    score = Score(resolve(SMALL | {"target": target, "rounds": 10}))
    columns = Columns([made(1, loss=1.0), made(2, loss=0.75)])
    assert score.of_run(columns, 7) == 7
    assert score.of_run(columns, None) == 10 * 1.5  # half of the target away from it
    assert score.of_run(columns, None) > 10
    assert Score(resolve(SMALL)).of_run(Columns([made(1, test_accuracy=0.9)]), None) == -0.9
    assert Score(resolve(SMALL)).of_run(Columns([made(1, loss=float("nan"))]), None) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1..20", optuna.distributions.IntDistribution(1, 20)),
        ("0.1 .. 2", optuna.distributions.FloatDistribution(0.1, 2.0)),
        ("1e-3..1 log", optuna.distributions.FloatDistribution(1e-3, 1.0, log=True)),
        ("a, b", optuna.distributions.CategoricalDistribution(["a", "b"])),
        ("0.5,true", optuna.distributions.CategoricalDistribution([0.5, True])),
    ],
)
def test_ranges_are_read_as_they_are_written(text: str, kind: Any) -> None:
    assert Range("x", text).distribution() == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("local.solver.lr", "must be KEY=RANGE"),
        ("local.solver.lr=2..1", "must have LOW < HIGH"),
        ("local.solver.lr=0..1 log", "must have 0 < LOW < HIGH"),
        ("local.solver.lr=a..b", "must be LOW..HIGH, LOW..HIGH log or A,B,C"),
    ],
)
def test_bad_ranges_are_refused_before_anything_is_written(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(SMALL, ranges_of([text]), tmp_path / "out", 2)
    assert not (tmp_path / "out").exists()


def test_the_report_shows_every_trial_and_the_best_ones_curves(searched: Path) -> None:
    content = read(searched)
    (section,) = [one for one in sections(content) if one.name == "trials"]
    assert len(section.panels[0].values) == 8
    assert 1 <= len(content.labels) <= 8


def test_the_command_prints_the_trials_and_how_to_run_the_best(tmp_path: Path) -> None:
    config = write_small(tmp_path / "small.toml", rounds=2)
    out = tmp_path / "out"
    told = call("tune", config, "--keys", KEYS[0], "--trials", 2, "--out", out, "--no-report")
    assert told.exit_code == 0, told.stderr
    assert f"tune    {out}" in told.stdout
    assert (out / "tables/trials.tex").is_file()
    assert call("tune", config, "--out", out).exit_code == 2


def test_a_folder_alone_says_how_a_search_goes_on(tmp_path: Path) -> None:
    config, out = write_small(tmp_path / "c.toml"), tmp_path / "out"
    given = [
        "--keys",
        KEYS[0],
        "--keys",
        "algorithm.name=fedavg,fedadmm",
        "--set",
        "algorithm.rho=2",
    ]
    begun = call("tune", config, *given, "--trials", 2, "--out", out, "--no-report")
    assert begun.exit_code == 0, begun.stderr
    on = call("tune", "--out", out, "--resume", "--trials", 4, "--no-report", "--json")
    assert on.exit_code == 0, on.stderr
    whole = call("tune", config, *given, "--trials", 4, "--out", tmp_path / "other", "--no-report")
    assert whole.exit_code == 0, whole.stderr
    one, other = (
        json.loads((folder / "results.json").read_text()) for folder in (out, tmp_path / "other")
    )
    assert [run["set"] for run in one["runs"]] == [run["set"] for run in other["runs"]]
    assert [run["final"] for run in one["runs"]] == [run["final"] for run in other["runs"]]
