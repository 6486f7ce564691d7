"""`fedadmm advise`: the recommended setting runs, learns and keeps what was configured."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import fedadmm as fa
from fedadmm.run.engines import VirtualTime
from fedadmm.study.advise import advise
from fedadmm.study.config import resolve
from fedadmm.study.single_run import run
from support.commands import call, write_small

QUICK = {
    "problem": {"name": "digits", "clients": 20, "max_train": 600, "max_test": 300},
    "local": {
        "solver": {"name": "sgd", "batch_size": 10},
        "stop": {"name": "epochs", "epochs": 5},
    },
    "sampler": {"name": "uniform", "size": 0.3},
}


def test_learning_rate_and_penalty_follow_from_the_smoothness() -> None:
    """quadratics declares L = 3, and one epoch of full batches is one step."""
    tree = {"problem": {"name": "quadratics", "smoothness": 3.0}, "local": {"stop": {"epochs": 8}}}
    tree["local"]["solver"] = {"name": "sgd", "batch_size": "none"}
    advice = advise(resolve(tree))
    assert (advice.constants.smoothness, advice.local_steps) == (3.0, 8)
    rho = 0.25 * 3.0 / (8 - 0.25)
    assert advice.settings["algorithm.rho"] == pytest.approx(rho, rel=5e-3)
    assert advice.settings["local.solver.lr"] == pytest.approx(1 / (3.0 + rho), rel=5e-3)


@pytest.mark.parametrize(
    ("sampler", "method", "output"),
    [
        ({"name": "full"}, "fedadmm", "last-iterate"),
        ({"name": "uniform", "size": 0.5}, "aligned-admm", "participants-mean"),
    ],
)
def test_method_follows_from_the_participation_rate(
    sampler: dict[str, object], method: str, output: str
) -> None:
    tree = {"problem": {"name": "quadratics"}, "sampler": sampler}
    regularizer = {"name": "l1", "lam": 0.1}
    advice = advise(resolve(tree | {"regularizer": regularizer}), clients=2)
    assert advice.config["algorithm"]["name"] == method
    assert advice.config["output"]["name"] == output
    assert advice.config["sampler"] == sampler
    assert advice.config["regularizer"] == regularizer
    assert advice.config["local"]["start"] == "global"


def test_asynchronous_runs_are_advised_async_feddr() -> None:
    tree = {"problem": {"name": "quadratics"}, "algorithm": {"name": "async-feddr"}}
    advice = advise(resolve(tree | {"engine": {"name": "virtual-time", "concurrency": 3}}))
    assert advice.config["algorithm"]["name"] == "async-feddr"
    assert resolve(advice.config).engine == VirtualTime(concurrency=3)


def test_flat_problem_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    flat = fa.Problem([fa.Quadratic(torch.zeros(2, 2), torch.zeros(2))], initial=torch.zeros(2))
    chosen = resolve({"problem": {"name": "quadratics"}})
    monkeypatch.setattr(type(chosen), "load_problem", lambda self: flat)
    with pytest.raises(fa.errors.CompatibilityError, match=r"^problem: "):
        advise(chosen)


def test_written_configuration_runs_and_learns(tmp_path: Path) -> None:
    source, written, out = tmp_path / "a.toml", tmp_path / "b.toml", tmp_path / "run"
    source.write_text(tomli_w.dumps(QUICK))
    shown = call("advise", source, "--write", written, "--json")
    assert shown.exit_code == 0, shown.stderr
    document = json.loads(shown.stdout)
    config = tomllib.loads(written.read_text())
    assert document["config"] == config
    assert config["sampler"]["size"] == 0.3
    rate, steps = config["local"]["solver"]["lr"], document["local_steps"]
    assert 0 < rate < 2 / document["constants"]["smoothness"]
    assert config["algorithm"]["rho"] * rate * steps == pytest.approx(0.25, rel=1e-2)
    ran = call(
        "run", written, "--rounds", 60, "--engine", "vectorised", "--out", out, "--no-report"
    )
    assert ran.exit_code == 0, ran.stderr
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    accuracies = [record["metrics"]["test_accuracy"] for record in records]
    assert np.mean(accuracies[-5:]) > 0.7 > 0.4 > accuracies[0]


def test_full_participation_starts_local_training_at_the_global_model(tmp_path: Path) -> None:
    """From the clients' own models, with the same numbers, the target is not reached in time."""
    everybody = QUICK | {
        "problem": QUICK["problem"] | {"partition": "shards"},
        "sampler": {"name": "full"},
        "engine": {"name": "vectorised"},
        "rounds": 20,
        "target": {"metric": "test_accuracy", "value": 0.88, "end_run": True},
    }
    advice = advise(resolve(everybody))
    advised = run(resolve(advice.config), tmp_path / "global")
    local = advice.config["local"] | {"start": "own"}
    own = run(resolve(advice.config | {"local": local}), tmp_path / "own")
    assert advised["rounds_to_target"] is not None
    assert own["rounds_to_target"] is None


@pytest.mark.parametrize("sampler", [{"name": "full"}, {"name": "uniform", "size": 0.5}])
def test_first_line_is_a_command_that_runs_the_advice(
    tmp_path: Path, sampler: dict[str, object]
) -> None:
    table = {"name": "saturating", "clients": 4, "dimension": 3}
    own = write_small(tmp_path / "own.toml", problem=table, sampler=sampler)
    words = ("--clients", 2, "--set", "problem.clients=5", "--seed", 3)
    shown = call("advise", own, *words)
    assert shown.exit_code == 0, shown.stderr
    advised = json.loads(call("advise", own, *words, "--json").stdout)["config"]
    first, *numbers = shown.stdout.splitlines()
    assert [line.split(",")[0].strip() for line in numbers[:2]] == ["penalty", "learning rate"]
    printed = call(*shlex.split(first)[1:], "--print-config")
    assert printed.exit_code == 0, printed.stderr
    assert tomllib.loads(printed.stdout) == advised


def test_unknown_configuration_is_rejected() -> None:
    wrong = call("advise", "nonsense")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "'nonsense'" in wrong.stderr
