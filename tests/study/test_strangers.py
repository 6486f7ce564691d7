"""`package.module:Name` reaches a part that is not ours: in every family, on every engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedadmm as fa
from fedadmm.core.errors import ConfigError
from fedadmm.run.engines import ENGINES
from fedadmm.study import config as configs
from fedadmm.study.compare import compare, plan
from fedadmm.study.config import merged, resolve
from fedadmm.study.report import write_report
from fedadmm.study.report.figures import SPARE
from fedadmm.study.single_run import run
from support import strangers
from support.commands import SMALL, call, write_small

ALL: dict[str, Any] = {
    "problem": {"name": "support.strangers:Bowls", "clients": 6},
    "regularizer": {"name": "support.strangers:Ridge"},
    "algorithm": {"name": "feddr", "eta": 0.5},
    "local": {
        "solver": {"name": "support.strangers:Solver"},
        "stop": {"name": "support.strangers:Stop"},
    },
    "sampler": {"name": "support.strangers:EveryOther"},
    "engine": {"name": "support.strangers:Engineer"},
    "callbacks": [{"name": "support.strangers:Counting"}],
}


def test_every_family_takes_a_stranger_and_its_configuration_comes_back(tmp_path: Path) -> None:
    chosen = resolve(SMALL | ALL)
    assert isinstance(chosen.problem, strangers.Bowls)
    assert isinstance(chosen.engine, strangers.Engineer)
    summary = run(chosen, tmp_path)
    assert summary["code"] == "completed"
    assert (tmp_path / "seen.txt").read_text() == "4"
    assert resolve(configs.read(str(tmp_path))) == chosen
    problem = chosen.load_problem()
    result = fa.simulate(
        fa.FedDR(eta=0.5),
        problem,
        4,
        sampler=fa.TraceSampling(((0, 2, 4), (1, 3, 5)), repeat=True),
        solver=fa.GradientDescent(0.02),
        stop=fa.Steps(2),
        initial=problem.start(0).float(),
    )
    assert isinstance(problem.regularizer, strangers.Ridge)
    assert summary["final"]["objective"] == pytest.approx(
        result.history[-1]["metrics"]["objective"], abs=1e-7
    )


def test_a_schedule_may_be_a_stranger_too() -> None:
    schedule = {"name": "support.strangers:Halving", "first": 0.25}
    chosen = resolve(SMALL | {"algorithm": {"name": "fedadmm", "rho": schedule}})
    assert chosen.algorithm.rho == strangers.Halving(0.25)
    wrong = SMALL | {"algorithm": {"name": "fedadmm", "rho": schedule | {"frist": 1.0}}}
    with pytest.raises(ConfigError, match=r"rho.frist is not a key of support.strangers:Halving"):
        resolve(wrong)


def test_a_model_may_be_a_stranger_too() -> None:
    def start(model: str) -> Any:
        table = {"name": "digits", "clients": 4, "model": model}
        return resolve(SMALL | {"problem": table}).load_problem().start(0)

    assert start("support.strangers:perceptron").equal(start("mlp-64-32-10"))
    with pytest.raises(ConfigError, match=r"^model: name is 'nowhere:Net', which cannot be import"):
        start("nowhere:Net")
    with pytest.raises(fa.errors.ParameterError, match=r"^model: got 'support.commands:SMALL'"):
        start("support.commands:SMALL")


def test_a_mistake_in_a_strangers_table_is_named() -> None:
    with pytest.raises(ConfigError, match=r"local.solver.lr: got -1.0, expected > 0 and finite"):
        resolve(
            merged(SMALL, {"local": {"solver": {"name": "support.strangers:Solver", "lr": -1.0}}})
        )
    with pytest.raises(
        ConfigError, match=r"local.solver.rate is not a key of support.strangers:Solver"
    ):
        resolve(
            merged(SMALL, {"local": {"solver": {"name": "support.strangers:Solver", "rate": 1.0}}})
        )


@pytest.mark.parametrize(
    ("family", "name", "message"),
    [
        ("sampler", "no_such_module:X", r"cannot be imported \(No module named 'no_such_module'\)"),
        ("sampler", "support.strangers:Nobody", "cannot be imported .*'Nobody'.*current folder"),
        ("sampler", ":X", "cannot be imported"),
        ("sampler", "support.strangers:Loose", "is a dataclass that can be changed, expected"),
        ("sampler", "support.strangers:perceptron", "is not a frozen dataclass"),
        ("sampler", "support.strangers:Empty", "not a subclass of fedadmm.core.sampling.Sampler"),
        ("problem", "support.strangers:Empty", "has no load, expected load"),
        (
            "algorithm",
            "support.strangers:Empty",
            "not a subclass of fedadmm.core.contracts.Algorithm",
        ),
        (
            "engine",
            "support.strangers:Empty",
            "not a subclass of fedadmm.run.engines.choice.EngineCh",
        ),
        ("solver", "fedadmm.core.local_work:LocalSolver", "is not a frozen dataclass"),
    ],
)
def test_what_is_no_part_of_the_family_is_refused(family: str, name: str, message: str) -> None:
    tree = {"local": {family: {"name": name}}} if family == "solver" else {family: {"name": name}}
    with pytest.raises(ConfigError, match=f"^{family}.name is {name!r}, which .*{message}"):
        resolve(SMALL | tree)


def test_what_is_no_callback_is_refused() -> None:
    name = "support.strangers:Empty"
    message = (
        f"^callback.name is {name!r}, which is not a subclass of .*callbacks.Callback, expected"
    )
    with pytest.raises(ConfigError, match=message):
        resolve(SMALL | {"callbacks": [{"name": name}]})


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "ray"])
def test_a_method_that_is_not_ours_is_compared_on_every_engine(tmp_path: Path, engine: str) -> None:
    own = {"name": engine, "mode": "sync"} if engine == "virtual-time" else {"name": engine}
    solver = {"name": "sgd", "lr": 0.05, "batch_size": "none"}
    tree = SMALL | {"engine": own, "problem": {"name": "digits", "clients": 4}}
    tree["problem"] |= {"max_train": 80, "max_test": 40}
    tree |= {"rounds": 2, "local": {"solver": solver, "stop": {"name": "steps", "steps": 2}}}
    names = ["support.strangers:Method", "fedprox"]
    tree["algorithm"] = {"name": "fedprox", "rho": 0.5}
    result = compare(plan(tree, names), tmp_path).document
    mine, ours = result["runs"]
    assert (mine["label"], mine["algorithm"]) == ("Method", "support.strangers:Method")
    assert mine["final"]["loss"] == pytest.approx(ours["final"]["loss"], rel=1e-4)
    page = write_report(tmp_path).read_text()
    results = page[page.index("<h2>Results</h2>") : page.index("</table>")]
    assert "</svg>Method" in results
    assert SPARE[0].light in results


@pytest.mark.parametrize(
    "options", [("--jobs", "2"), pytest.param(("--engine", "ray"), marks=pytest.mark.release)]
)
def test_a_file_in_the_current_folder_counts(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Also in processes that are started for it: of a comparison, of a Ray cluster."""
    if "ray" in options:
        pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    (tmp_path / "my_method.py").write_text(
        "from dataclasses import dataclass\n"
        "import fedadmm\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Mine(fedadmm.FedAvg):\n"
        "    '''FedAvg, but mine.'''\n"
    )
    write_small(tmp_path / "small.toml", rounds=2, seeds=[0, 1] if "--jobs" in options else [0])
    command = [sys.executable, "-P", "-m", "fedadmm", "compare", "small.toml", *options]
    command += ["--algorithms", "my_method:Mine,fedavg", "--out", "out", "--json", "--no-report"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=240, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    mine, ours = json.loads(done.stdout)["table"]
    assert mine["label"] == "Mine"
    assert mine["final"]["mean"] == ours["final"]["mean"]


def test_a_name_on_the_command_line_is_enough(tmp_path: Path) -> None:
    path = write_small(tmp_path / "small.toml")
    setting = "sampler.name=support.strangers:EveryOther"
    done = call("run", path, "--set", setting, "--out", tmp_path / "out", "--no-report", "--json")
    assert done.exit_code == 0, done.stderr
    config = configs.read(str(tmp_path / "out"))
    assert config["sampler"] == {"name": "support.strangers:EveryOther"}
