"""Bad input: exit code 2, one short message on standard error, never a traceback."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings, strategies as st

from support.commands import SMALL, call, write_small


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_small(tmp_path / "small.toml")


def refused(*arguments: object) -> str:
    """The message of a command line that is refused."""
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("fedadmm: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("fedadmm: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "algorithm.rh0=1"), "algorithm.rh0 is not a key of fedadmm; did you mean rho?"),
        (("--set", "algorithm.rho=0"), "algorithm.rho: got 0.0, expected > 0 and finite"),
        (
            ("--set", "algorithm.rho=x"),
            "algorithm.rho: got 'x', expected > 0 and finite, or a schedule",
        ),
        (("--set", "rho"), "--set: got 'rho', expected KEY=VALUE, as in algorithm.rho=0.1"),
        (
            ("--algorithm", "fedadm"),
            "algorithm.name is 'fedadm', which is not known; did you mean ",
        ),
        (("--engine", "vectorized"), "engine.name is 'vectorized', "),
        (("--rounds", "0"), "rounds: got 0, expected a whole number of at least 1"),
        (("--rounds", "x"), "Invalid value for '--rounds': 'x' is not a valid int"),
        (("--seed", "-1"), "seed: got -1, expected a whole number of at least 0"),
        (
            ("--set", "precision=half"),
            "precision: got 'half', expected one of 'float32', 'float64'",
        ),
        (("--set", "device=abacus"), "device is 'abacus', but cannot be used"),
        (
            ("--checkpoint-every", "-2"),
            "checkpoint.every: got -2, expected a whole number of at least 0",
        ),
        (("--tracker", "comet"), "callbacks[0].name is 'comet', which is not known"),
        (("--roundz", "3"), "No such option '--roundz'."),
        (
            ("--set", "sampler.size=9"),
            "UniformSampling.size: got 9, expected at most the number ",
        ),
        (
            ("--algorithm", "fedpd"),
            "sampler: got UniformSampling, expected all clients in every round for FedPD.",
        ),
        (
            ("--algorithm", "fedavg", "--set", "regularizer.name=l1", "--set", "regularizer.lam=1"),
            "regularizer: got L1, expected g = 0 for FedAvg.",
        ),
        (("--set", "target={metric='acc', value=1}"), "target.metric is 'acc', which is not measu"),
        (("--set", "algorithm.rho=1e308"), "algorithm.rho: got 1e+308, expected at most 1.844674"),
        (
            ("--set", "local.solver.lr=1e300"),
            "local.solver.lr: got 1e+300, expected at most 1.844674e+19 in ",
        ),
        (
            ("--set", "local.solver.lr=1e300", "--set", "precision=float64"),
            "local.solver.lr: got 1e+300, expected at most 1.340781e+154 in float64",
        ),
        (
            ("--set", "problem.dimension=10000000"),
            "problem.name is 'quadratics' with clients 4, dimension 10000000, data_seed 0, but "
            "must fit into the memory of this machine (800 TB at once)",
        ),
        (
            ("--set", "problem.clients=1000000000000"),
            "problem.clients: got 1000000000000, expected at most 1000000",
        ),
        (
            ("--engine", "workers", "--workers", "100000"),
            "engine.workers: got 100000, expected at most 1024",
        ),
    ],
)
def test_run_says_what_is_wrong(
    config: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert refused("run", config, "--out", tmp_path / "out", *arguments).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("run",),
            "Invalid value: CONFIG: got nothing, expected a preset, a problem, a file or -",
        ),
        (("run", "--resume"), "Invalid value: --resume needs the folder to go on with: --out FOLD"),
        (
            ("run", "--resume", "--out", "nowhere"),
            "Invalid value: --out is 'nowhere', where there is nothing to go on with (no config.to",
        ),
        (
            ("compare", "--resume", "--out", "nowhere"),
            "Invalid value: --out is 'nowhere', where there is nothing to go on with (no study.tom",
        ),
        (("run", "quikstart"), "there is no file, preset or problem 'quikstart'; did you mean qu"),
        (("run", "no/such.toml"), "there is no file 'no/such.toml'; name an existing one"),
        (("runn",), "No such command 'runn'. Did you mean 'run'?"),
        (("compare", "quickstart", "--algorithms", "fedav"), "--algorithms names 'fedav'; did you"),
        (
            ("compare", "quickstart", "--seeds", "a"),
            "Invalid value: --seeds: got 'a', expected wh",
        ),
        (
            ("compare", "quickstart", "--seeds", "1,,2"),
            "Invalid value: --seeds: got '1,,2', expected",
        ),
        (("compare", "quickstart", "--set", "seeds=[]"), "seeds is [], expected at least one"),
        (("sweep", "quickstart", "--grid", "rounds"), "--grid: got 'rounds', expected KEY=A,B"),
        (("sweep", "quickstart", "--grid", "rounds=0,1"), "rounds=0: rounds: got 0, expected a"),
        (("report", "nowhere"), "nowhere: no such directory"),
        (("export", "nowhere"), "nowhere: no such folder"),
        (
            ("algorithms", "fedadm"),
            "algorithm is 'fedadm', which is not known; did you mean fedadm",
        ),
        (("data", "path", "mnits"), "data: name: got 'mnits', expected one of"),
        (
            ("data", "show", "digit"),
            "problem.name is 'digit', which is not known; did you mean dig",
        ),
        (("config", "show", "quick"), "there is no preset 'quick'; did you mean quickstart?"),
        (("sweep", "quickstart"), "Invalid value: --grid is missing, as in --grid algorithm.rho=0"),
        (("export", "nowhere", "--format", "onnx"), "nowhere: no such folder"),
        (("--set",), "No such option '--set'. (an option of a command comes after the command; "),
    ],
)
def test_every_command_says_what_is_wrong(arguments: tuple[str, ...], message: str) -> None:
    assert refused(*arguments).startswith(message)


def test_without_a_command_the_help_is_all_that_is_said() -> None:
    result = call()
    assert result.exit_code == 2
    assert "Usage" in result.output
    assert "fedadmm:" not in result.output


def test_a_mistake_in_ones_own_file_names_the_file_and_the_line(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mistaken.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedadmm import Sampler\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Mistaken(Sampler):\n"
        "    def sample(self, seed, round_index, clients):\n"
        "        return [1 // round_index]\n"
    )
    table = 'sampler={name = "mistaken:Mistaken"}'
    result = call("run", config, "--out", tmp_path / "a", "--set", table)
    assert (result.exit_code, result.stderr) == (
        1,
        "fedadmm: mistaken.py fails in line 8 (ZeroDivisionError: integer division or modulo by "
        "zero); --debug shows where\n",
    )


def test_a_folder_and_an_empty_file_are_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("# nothing but a remark\n")
    message = refused("run", tmp_path / "empty.toml")
    assert message.startswith(f"{tmp_path / 'empty.toml'}: is empty, but must say at least what is")
    message = refused("run", tmp_path)
    assert message.startswith(f"'{tmp_path}': got a folder without config.toml, expected a run di")


def test_a_byte_order_mark_is_no_mistake(config: Path) -> None:
    plain = call("run", config, "--print-config").stdout
    config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes())
    assert call("run", config, "--print-config").stdout == plain


def test_a_refused_run_leaves_its_folder_free(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused("run", config, "--out", out, "--set", "sampler.size=9")
    assert call("run", config, "--out", out, "--no-report").exit_code == 0


def test_a_taken_folder_is_refused(config: Path, tmp_path: Path) -> None:
    assert call("run", config, "--out", tmp_path / "out", "--no-report").exit_code == 0
    assert "already holds a run; add --resume" in refused("run", config, "--out", tmp_path / "out")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write into read-only folders")
def test_a_read_only_folder_is_reported_before_round_0(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fixed"
    folder.mkdir(mode=0o500)
    message = refused("run", config, "--out", folder / "out")
    assert message == f"--out is '{folder / 'out'}', but cannot be written (Permission denied)"


def test_a_file_in_the_way_is_reported_before_round_0(config: Path, tmp_path: Path) -> None:
    message = refused("run", config, "--out", config / "out")
    assert message == f"--out is '{config / 'out'}', but cannot be written (Not a directory)"


def test_an_internal_error_is_short_unless_debug(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*ignored: object, **also: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("fedadmm.run.simulate.first_vector", broken)
    result = call("run", config, "--out", tmp_path / "a")
    assert result.exit_code == 1
    assert result.stderr == "fedadmm: internal error (RuntimeError: a bug); --debug shows where\n"
    shown = call("run", config, "--out", tmp_path / "b", "--debug")
    assert isinstance(shown.exception, RuntimeError)


NUMBERS = [0, 1, -1, 2, 7, 0.0, 0.5, -0.5, 1e-9, 1e9, float("nan"), float("inf"), True, False]
WORDS = ["", "none", "x", "sgd", "fedavg", "exact", "full", "tracking", "ß\n\x7f"]
LISTS = [[], [1], ["a"], [[0]]]
TABLES = [
    *({}, {"name": "x"}, {"name": "geometric"}, {"a": {"b": 1}}),
    {"name": "piecewise", "values": {"0": 1}},
]
VALUES = st.sampled_from([*NUMBERS, *WORDS, *LISTS, *TABLES])
KEYS = st.sampled_from(
    (
        *("name", "rho", "lr", "size", "steps", "clients", "metric", "value", "every", "rh0"),
        *("rounds", "seed", "precision", "tolerance", "callbacks", "", "a.b", "ß"),
        *("problem", "regularizer", "algorithm", "solver", "stop", "sampler", "engine"),
        *("evaluate", "target", "store", "checkpoint"),
    )
)


def _tables(tree: dict[str, Any]) -> list[dict[str, Any]]:
    return [tree, *(value for value in tree.values() if isinstance(value, dict))]


def mutate(tree: dict[str, Any], kind: str, data: st.DataObject) -> None:
    """Change one key somewhere."""
    table = data.draw(st.sampled_from(_tables(tree)))
    key = data.draw(st.sampled_from(sorted(table)) if table and kind != "set" else KEYS)
    if kind == "delete":
        table.pop(key, None)
    elif kind == "rename":
        table[key[:-1] + data.draw(st.sampled_from("abx0"))] = table.pop(key, 1)
    elif kind == "nest":
        table[key] = {"name": table.get(key, "x")}
    else:
        table[key] = data.draw(VALUES)


def harmless(result: Any) -> None:
    assert result.exit_code in (0, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    if result.exit_code == 2:
        assert result.stdout == ""
        assert result.stderr.startswith("fedadmm: ")
        assert len(result.stderr) < 1500


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_mutated_configuration_gives_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tree = copy.deepcopy(SMALL)
    for _ in range(data.draw(st.integers(1, 3))):
        mutate(tree, data.draw(st.sampled_from(["set", "delete", "nest", "rename"])), data)
    tree.setdefault("problem", SMALL["problem"])  # the usual problem would take its time
    folder = tmp_path_factory.mktemp("mutant")
    path = folder / "mutant.toml"
    path.write_text(tomli_w.dumps(tree), "utf-8")
    harmless(call("run", path, "--out", folder / "out", "--no-report"))


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_damaged_file_gives_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(tomli_w.dumps(SMALL).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(content)))
        end = min(len(content), begin + data.draw(st.integers(0, 6)))
        content[begin:end] = data.draw(st.binary(max_size=4) | st.sampled_from([b"[", b'"', b"="]))
    path = tmp_path_factory.mktemp("damaged") / "damaged.toml"
    path.write_bytes(content)
    harmless(call("run", path, "--print-config"))
