"""A part from a file that is not ours runs on a deployed federation: its file travels along."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedadmm.core.errors import ConfigError
from fedadmm.flower.configured import Deployment
from fedadmm.flower.deploy.project import write_configured
from fedadmm.study import config as configs
from fedadmm.study.config import resolve
from fedadmm.study.report import write_report
from fedadmm.study.report.figures import SPARE
from support.commands import write_small

METHOD = """\
from dataclasses import dataclass
from own_helpers.numbers import RHO
import fedadmm


@dataclass(frozen=True)
class Mine(fedadmm.FedADMM):
    '''FedADMM, but mine.'''

    rho: float = RHO
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a method, its helpers and a configuration, and nothing of it loaded."""
    (tmp_path / "my_own_method.py").write_text(METHOD)
    (tmp_path / "own_helpers").mkdir()
    (tmp_path / "own_helpers" / "__init__.py").write_text("")
    (tmp_path / "own_helpers" / "numbers.py").write_text("RHO = 0.25\n")
    (tmp_path / "unused.py").write_text("raise SystemExit\n")
    problem = {"name": "digits", "clients": 2, "max_train": 60, "max_test": 40}
    write_small(tmp_path / "small.toml", rounds=2, problem=problem)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    forget()


def forget() -> None:
    """As in a process that has loaded none of it."""
    own = ("my_own_method", "own_helpers", "federation", "test_own")
    for name in [name for name in sys.modules if name.split(".")[0] in own]:
        del sys.modules[name]


def configured(here: Path):
    tree = configs.run_only(configs.read("small.toml"))
    tree["algorithm"] = {"name": "my_own_method:Mine"}
    return resolve(tree)


def test_what_was_loaded_from_the_current_folder_is_in_the_app(here, monkeypatch):
    """The app loads where that folder is not: at a site."""
    app = write_configured(here / "app", configured(here), Deployment(clients=2), here / "run")
    carried = {str(path.relative_to(app)) for path in app.rglob("*.py")}
    own = {"my_own_method.py", "own_helpers/__init__.py", "own_helpers/numbers.py"}
    assert carried == own | {"federation/__init__.py", "federation/app.py"}
    forget()
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    monkeypatch.setattr(sys, "path", [str(app), *(p for p in sys.path if p != str(here))])
    made = importlib.import_module("federation.app").made
    assert isinstance(made.server, ServerApp)
    assert isinstance(made.client, ClientApp)
    assert Path(sys.modules["my_own_method"].__file__).parent == app


def test_a_module_that_would_not_arrive_is_refused(here):
    (here / "test_own.py").write_text("from my_own_method import Mine\n")
    tree = configs.run_only(configs.read("small.toml"))
    tree["algorithm"] = {"name": "test_own:Mine"}
    config = resolve(tree)
    with pytest.raises(ConfigError, match="the module 'test_own' must be called otherwise"):
        write_configured(here / "app", config, Deployment(clients=2), here / "run")


@pytest.mark.timeout(900)
@pytest.mark.skipif(os.environ.get("FEDADMM_FAULTS") != "1", reason="real processes: make faults")
def test_a_method_from_a_file_is_deployed_and_reported(here):
    """The same model as the method that it is a copy of, a colour and a row of its own."""

    def call(*words: str) -> dict:
        command = [sys.executable, "-P", "-m", "fedadmm", *words, "--json", "--no-report"]
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    own = ("--set", "algorithm.name=my_own_method:Mine")
    mine = call("deploy", "local", "small.toml", "--clients", "2", "--out", "mine", *own)
    ours = call("run", "small.toml", "--set", "algorithm.rho=0.25", "--out", "ours")
    assert mine["code"] == ours["code"] == "completed"
    assert mine["final"]["test_loss"] == pytest.approx(ours["final"]["test_loss"], rel=1e-5)
    page = write_report(here / "mine").read_text()
    assert "Mine" in page
    assert SPARE[0].light in page
