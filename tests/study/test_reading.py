"""Presets, files, keys set by hand, and tables over tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedadmm.core.config_tree import Tree
from fedadmm.core.errors import ConfigError
from fedadmm.study import config
from fedadmm.study.config import resolve, toml_tables


def test_presets_are_read_without_torch() -> None:
    code = "import sys; from fedadmm.study import config; config.read('quickstart'); "
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_file_comes_before_a_preset_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert config.read("quickstart")["problem"]["name"] == "digits"
    Path("quickstart").write_text("rounds = 3")
    assert config.read("quickstart") == {"rounds": 3}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("[patient_no, visit,3]", ["patient_no", "visit", 3]),
        ("fedavg", "fedavg"),
        ('"a b"', "a b"),
        ("{ name = 'geometric' }", {"name": "geometric"}),
        ("1e-3", 1e-3),
        ("a=b", "a=b"),
        ("1\nrounds = 2", "1\nrounds = 2"),
        ("", ""),
    ],
)
def test_values_are_toml_or_else_strings(text: str, value: object) -> None:
    assert config.assignment(f"a.b={text}") == ("a.b", value)


def test_naming_another_part_starts_its_table_afresh() -> None:
    tree: Tree = {"algorithm": {"name": "fedadmm", "rho": 1.0}}
    config.assign(tree, "algorithm.name", "fedadmm")
    assert tree["algorithm"] == {"name": "fedadmm", "rho": 1.0}
    config.assign(tree, "algorithm.name", "fedavg")
    assert tree["algorithm"] == {"name": "fedavg"}
    config.assign(tree, "algorithm.rho.name", "geometric")
    assert tree["algorithm"] == {"name": "fedavg", "rho": {"name": "geometric"}}


def test_tables_merge_unless_they_name_another_part() -> None:
    base = {"solver": {"name": "sgd", "lr": 0.1}, "rounds": 3}
    assert config.merged(base, {"solver": {"lr": 0.3}})["solver"] == {"name": "sgd", "lr": 0.3}
    assert config.merged(base, {"solver": {"name": "exact"}})["solver"] == {"name": "exact"}
    assert base == {"solver": {"name": "sgd", "lr": 0.1}, "rounds": 3}


@pytest.mark.parametrize("text", ["rho", "=3", "a..b=3", ".=1"])
def test_an_assignment_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--set: got .*, expected KEY=VALUE"):
        config.assignment(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a." * 30_000 + "a = 1", "a key has more than 1000 dots"),
        ("['a' . " + '"b" . ' * 1000 + "c]", "a key has more than 1000 dots"),
        ("a = " + "[" * 10_000, "it is nested too deeply"),
        ("# " + "x" * 10**7, "it has 10000002 characters, but at most 10000000 are read"),
    ],
    ids=["bare", "quoted", "brackets", "long"],
)
def test_toml_that_would_take_for_ever_is_refused(text: str, why: str, tmp_path: Path) -> None:
    """The parser's time grows with the square of a key's parts: 20 seconds for 100 kB."""
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"a\.toml: is not TOML \({why}"):
        config.read(str(path))


def test_long_values_are_no_long_keys() -> None:
    numbers, words = [0.5] * 200, "one. two. three. " * 50
    text = f"a.b.c = {numbers}\nd = '{words}'\ne = {[[1, 2]] * 2000}\n"
    found = toml_tables(text + "f = 1.5")
    assert found == {"a": {"b": {"c": numbers}}, "d": words, "e": [[1, 2]] * 2000, "f": 1.5}


def test_what_is_not_toml_or_not_text_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"a\.toml: is not TOML \(.*line 1"):
        config.read(str(path))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"a\.toml: is not a text in UTF-8"):
        config.read(str(path))


def test_another_method_chooses_its_own_start_of_local_training() -> None:
    """A run directory may say start = "own", which FedAvg could not have."""
    tree = resolve({"algorithm": {"name": "fedadmm-printed"}}).tree
    assert tree["local"]["start"] == "own"
    config.assign(tree, "algorithm.name", "fedavg")
    assert resolve(tree).local.start == "global"
    config.assign(tree, "algorithm.name", "fedavg")  # the same again leaves the table alone
    config.assign(tree, "local.start", "current")
    assert tree["local"]["start"] == "current"
