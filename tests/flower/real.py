"""SuperLink and SuperNodes for the tests: really started, on loopback, always taken down."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import fedadmm as fa
from fedadmm.core.errors import EngineError
from fedadmm.flower.deploy.keys import make_identities
from fedadmm.flower.deploy.network import LocalNetwork
from fedadmm.flower.deploy.processes import ProcessTree, recorded
from fedadmm.study import run_dir as files

APP = Path(__file__).with_name("bundle_app.py")
DEFAULTS: dict[str, Any] = {
    "run-dir": "",
    "algorithms": "fedadmm",
    "clients": 3,
    "rounds": 3,
    "cohort": 3,
    "round-timeout": 60.0,
    "resend-after": 20.0,
    "ledger": "none",
    "named": False,
    "mode": "rounds",
    "accept-rollback": False,
    "masked": False,
    "start": 0.0,
    "weight": 1.0,
}


def app_module(plan: Path) -> ModuleType:
    """The app's own module, for the settings and the objectives that a test compares with."""
    os.environ["FEDADMM_TEST_PLAN"] = str(plan)
    spec = importlib.util.spec_from_file_location("bundle_app", APP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Stage:
    """A ground with the tests' app on it, and a plan of who dies where."""

    def __init__(self, folder: Path, clients: int, tls: bool) -> None:
        self.folder = folder
        self.plan = folder / "plan"
        self.plan.mkdir(parents=True)
        self.module = app_module(self.plan)
        self.clients = clients
        self.name = "fedadmm"
        self.away: set[str] = set()
        self.link_died = False
        self.app = _bundle(folder / "app")
        nodes = [{"state-dir": str(folder / f"site-{client}")} for client in range(clients)]
        own = [folder / f"own-{client}" for client in range(clients)]
        make_identities(own)
        for node, place in zip(nodes, own, strict=True):
            node |= {"identity": str(place / "identity"), "peers": str(place / "peers.json")}
        environment = {"FEDADMM_TEST_PLAN": str(self.plan), "OMP_NUM_THREADS": "1"}
        self.ground = LocalNetwork(folder / "ground", nodes, tls=tls, environment=environment)

    def sabotage(self, point: str, who: str = "me") -> None:
        (self.plan / point).write_text(who)

    def happened(self) -> list[str]:
        return sorted(path.name for path in self.plan.glob("*.happened"))

    def run(self, **config: Any) -> ProcessTree:
        given = {key.replace("_", "-"): value for key, value in config.items()}
        chosen = DEFAULTS | {"run-dir": str(self.folder / "server"), "clients": self.clients}
        return self.ground.run(self.app, chosen | given)

    def records(self) -> list[dict[str, Any]]:
        return files.RunDir(self.folder / "server" / self.name).records()

    def finished(self, name: str | None = None) -> bool:
        return (self.folder / "server" / (name or self.name) / files.SUMMARY).is_file()

    def summary(self) -> dict[str, Any]:
        return files.read_json(self.folder / "server" / self.name / files.SUMMARY)

    def wipe(self, client: int) -> None:
        shutil.rmtree(self.folder / f"site-{client}")

    def play(self, timeout: float, *actions: Any, **config: Any) -> int:
        """Run to the end like a patient operator: dead nodes and dead servers are started again.

        Each action is called between looks until it returns True.  Returns the number of starts.
        """
        self.name = config.get("algorithms", self.name)
        waiting, starts, known = list(actions), 1, set(self.happened())
        run = self.run(**config)
        deadline = time.monotonic() + timeout
        while not self.finished():
            assert time.monotonic() < deadline, f"not finished in time:\n{run.tail(30)}"
            waiting = [action for action in waiting if not action()]
            for client in range(self.clients):
                name = f"client-{client}"
                if not self.ground.group(name).running() and name not in self.away:
                    self.ground.start_node(client)
            fresh = set(self.happened()) - known
            known |= fresh
            died = any(name.startswith("server") for name in fresh)
            if died or self.link_died or (not run.running() and not self.finished()):
                self.link_died = False
                with suppress(EngineError):
                    self._stop_runs()
                assert starts < 8, f"the server does not stay up:\n{run.tail(30)}"
                run, starts = self.run(**config), starts + 1
            time.sleep(0.2)
        self.ground.wait(run, 60.0)
        return starts

    def until(self, timeout: float, happened: str, **config: Any) -> None:
        """Run until a point of the plan was reached, and stop there."""
        run, deadline = self.run(**config), time.monotonic() + timeout
        while f"{happened}.happened" not in self.happened():
            assert time.monotonic() < deadline, f"{happened} not in time:\n{run.tail(30)}"
            time.sleep(0.2)
        with suppress(EngineError):
            self._stop_runs()

    def restart_link(self) -> None:
        """The SuperLink dies with everything below it, and comes back."""
        self.ground.group("superlink").kill()
        self.ground.start_link()
        self.link_died = True

    def _stop_runs(self) -> None:
        for run in self.ground.runs():
            if run["status"].startswith(("running", "starting", "pending")):
                self.ground.flwr("stop", run["run-id"], "fedadmm")

    def layout(self) -> Path:
        """The layout that the harness' checks know: server/checkpoint and site-i side by side."""
        folder = self.folder / "seen"
        folder.mkdir(exist_ok=True)
        places = {"server": self.folder / "server" / self.name}
        places |= {f"site-{c}": self.folder / f"site-{c}" for c in range(self.clients)}
        for link, target in places.items():
            (folder / link).unlink(missing_ok=True)
            (folder / link).symlink_to(target)
        return folder


def simulated(stage, settings, trace=None):
    run = settings.experiment
    make = stage.module.objective if run.local.personal is None else stage.module.network
    clients = [make(client) for client in range(settings.clients)]
    problem = fa.Problem(clients, initial=run.problem.initial)
    sampler = run.sampler if trace is None else fa.TraceSampling(trace)
    nothing = fa.Evaluation(objective=False, test=False)
    one_by_one = replace(run, engine=fa.engines.Sequential())  # as sites are
    chosen = replace(one_by_one, problem=problem, sampler=sampler, evaluate=nothing)
    return fa.simulate(chosen)


def result(stage, name):
    return files.RunDir(stage.folder / "server" / name).model(last=True).params


def nothing_left(stage):
    """No process of the ground runs, no port of it is open."""
    assert recorded(stage.folder / "ground") == []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                line = Path(f"/proc/{entry}/cmdline").read_text()
                assert str(stage.folder) not in line, line
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", stage.ground.port)) != 0


def _bundle(folder: Path) -> Path:
    package = folder / "faulty"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    shutil.copy(APP, package / "app.py")
    config = "\n".join(f"{key} = {json.dumps(value)}" for key, value in DEFAULTS.items())
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "fedadmm-faulty"\nversion = "0.1.0"\ndescription = "x"\n'
        'license = "Apache-2.0"\ndependencies = ["flwr"]\n[tool.flwr.app]\npublisher = "test"\n'
        '[tool.flwr.app.components]\nserverapp = "faulty.app:server"\n'
        f'clientapp = "faulty.app:client"\n[tool.flwr.app.config]\n{config}\n'
    )
    return folder
