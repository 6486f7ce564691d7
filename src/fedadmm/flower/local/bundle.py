"""Flower apps as folders: one made from a configuration, one to start from with your own data."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from fedadmm.core.errors import ConfigError
from fedadmm.core.tables import to_table
from fedadmm.flower.configured import CONFIG, DEPLOYMENT, Deployment
from fedadmm.run.experiment import Experiment
from fedadmm.study import config as configs

PACKAGE = "federation"

_PYPROJECT = """\
[project]
name = "fedadmm-federation"
version = "0.1.0"
description = "A federation of fedadmm"
license = "Apache-2.0"
dependencies = ["fedadmm[flower]"]

[tool.flwr.app]
publisher = "fedadmm"

[tool.flwr.app.components]
serverapp = "{package}.app:server"
clientapp = "{package}.app:client"

[tool.flwr.app.config]
run-dir = {run_dir}
accept-rollback = false
accept-nodes = false
leave-out = ""
operator-key = ""
status-port = 0
"""

_CONFIGURED = '''\
"""The federation that config.toml and deployment.toml describe."""

from pathlib import Path

from fedadmm.flower.configured import apps

made = apps(Path(__file__).parent)
server = made.server
client = made.client
'''

OWN_APP = '''\
"""A federation with your own model and data; every site runs this file on its own rows."""

import numpy as np
import torch

import fedadmm as fa
from fedadmm.flower import Federation, client_app, server_app

FEATURES, CLIENTS, ROUNDS = {features}, {clients}, {rounds}


def model():
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 1), torch.nn.Flatten(0))


def load(context):  # this site's rows: a CSV with a header, the label (0 or 1) in the last column
    table = np.loadtxt(context.node_config["data"], delimiter=",", skiprows=1, dtype=np.float32)
    rows, labels = torch.from_numpy(table[:, :-1]), torch.from_numpy(table[:, -1])
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    return fa.ModelObjective(model(), loss, rows, labels)


federation = Federation(
    fa.FedADMM(rho=0.1), clients=CLIENTS, rounds=ROUNDS, model=model, ledger="disk",
    solver=fa.SGD(lr=0.1, batch_size=20), stop=fa.Epochs(5), evaluate_every=10,
    names=[f"client-{{i}}" for i in range(CLIENTS)],
)
server = server_app(federation)
client = client_app(federation, load)
'''


def write_configured(folder: Path, config: Experiment, deployment: Deployment, run: Path) -> Path:
    """The app of a configuration; returns its folder."""
    package = _package(folder, run)
    for name, source in _own_modules(Path.cwd()):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    (package / "app.py").write_text(_CONFIGURED)
    (package / CONFIG).write_text(configs.write(config.tree))
    (package / DEPLOYMENT).write_text(configs.write(to_table(deployment)))
    return folder


def write_own(folder: Path, clients: int, rounds: int, features: int, run: str) -> Path:
    """An app to start from; returns the file to edit."""
    package = _package(folder, run)
    path = package / "app.py"
    path.write_text(OWN_APP.format(clients=clients, rounds=rounds, features=features))
    return path


def _own_modules(here: Path) -> Iterator[tuple[Path, Path]]:
    """The loaded modules that were found in the current folder, as parts that are not ours are.

    They travel with the app, because no other machine has that folder; what is installed does not.
    """
    for name, module in sorted(sys.modules.items()):
        file = vars(module).get("__file__")
        path = Path(*name.split("."))
        for inside in (path.with_suffix(".py"), path / "__init__.py"):
            if file is not None and Path(file).resolve() == here.resolve() / inside:
                _check_name(name)
                yield inside, Path(file)


def _check_name(name: str) -> None:
    """Refuse a module that would not arrive, or would hide another one."""
    first, last = name.split(".")[0], name.split(".")[-1]
    if first == PACKAGE:
        raise ConfigError(f"the module {name!r} must not be called {PACKAGE}, as the app itself is")
    if last.startswith("test_") or last.endswith("_test"):
        raise ConfigError(
            f"the module {name!r} must be called otherwise, because Flower takes files that begin "
            "with test_ or end with _test for tests and leaves them out of an app"
        )


def _package(folder: Path, run: Path | str) -> Path:
    package = folder / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text('"""A federation."""\n')
    text = _PYPROJECT.format(package=PACKAGE, run_dir=json.dumps(str(run)))
    (folder / "pyproject.toml").write_text(text)
    return package
