"""A data set, its folder and its problem have one name; short forms are taken wherever it is."""

import json
import os
import re
from pathlib import Path

import pytest

from fedadmm.data import problems
from fedadmm.data.download import SOURCES, source
from fedadmm.study.config import resolve
from support.commands import call

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *("mnist", "fashion-mnist", "mnist-writers", "cifar10", "cifar10-small"),
    *("femnist", "heart-disease"),
)
SHORT = {"fmnist": "fashion-mnist", "heart": "heart-disease"}
NAMES = {name: name for name in FOLDERS} | SHORT


def test_these_are_all_names_and_short_forms() -> None:
    assert set(SOURCES) == set(FOLDERS)
    assert {short: one.name for one in SOURCES.values() for short in one.aliases} == SHORT


@pytest.mark.parametrize("name", NAMES)
def test_a_data_set_is_a_problem_of_the_same_name(name: str) -> None:
    assert problems.options(name).name == problems.options(name).dataset() == NAMES[name]
    config = resolve({"problem": {"name": name}})
    assert config.name("problem") == NAMES[name]
    assert resolve(config.tree) == config


@pytest.mark.parametrize("name", NAMES)
def test_every_data_command_takes_every_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDADMM_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checked = call("data", "check", name, "--json")
    assert checked.exit_code == 0, checked.stderr
    rows = json.loads(checked.stdout)["files"]
    assert {row["dataset"] for row in rows} == {NAMES[name]}
    absent = call("data", "path", name)
    if NAMES[name] == "heart-disease":  # comes with the package
        assert (Path(absent.stdout.strip()) / "README.md").is_file()
        return
    assert absent.exit_code == 2
    assert f"{NAMES[name]}: is not (completely) on this machine" in absent.stderr


def test_files_in_place_are_fetched_by_the_short_form_and_called_by_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDADMM_DATA", str(tmp_path))
    (tmp_path / "femnist/train").mkdir(parents=True)
    monkeypatch.setitem(SOURCES, "femnist", _with_short_form("leaf"))
    for command in ("fetch", "path"):
        told = json.loads(call("data", command, "leaf", "--json").stdout)
        assert told == {"name": "femnist", "folder": str(tmp_path / "femnist")}
    assert call("data", "fetch", "leaf").stdout.split() == ["femnist", str(tmp_path / "femnist")]


def _with_short_form(short: str):
    from dataclasses import replace

    return replace(SOURCES["femnist"], aliases=(short,))


def test_no_short_form_is_the_name_of_another_problem() -> None:
    assert not set(SHORT) & set(problems.names())


def test_the_objective_is_left_out_for_large_problems_only() -> None:
    for name in ("fmnist", "fashion-mnist", "mnist"):
        assert resolve({"problem": {"name": name}}).evaluate.objective is False
    for name in ("heart", "heart-disease", "digits"):
        assert resolve({"problem": {"name": name}}).evaluate.objective is True


def test_the_commands_that_people_are_told_name_known_data_sets() -> None:
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.py"), ROOT / "README.md"]
    told = [
        name
        for page in pages
        for name in re.findall(r"fedadmm data (?:fetch|path|check) ([a-z][\w-]*)", page.read_text())
    ]
    assert "mnist" in told
    for name in told:
        assert source(name).name in SOURCES


@pytest.mark.skipif(not os.environ.get("FEDADMM_DATA"), reason="FEDADMM_DATA is not set")
def test_a_short_form_is_shown_under_the_full_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = json.loads(call("data", "show", "heart", "--json").stdout)
    assert (shown["problem"], shown["picture"]) == ("heart-disease", "heart-disease-partition.png")
    assert shown["summary"]["clients"] == 4
    assert (tmp_path / "heart-disease-partition.png").is_file()
