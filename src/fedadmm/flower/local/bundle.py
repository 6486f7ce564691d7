"""Flower apps as folders: one made from a configuration, one to start from with your own data."""

from __future__ import annotations

import json
from pathlib import Path

from fedadmm.flower.configured import CONFIG, DEPLOYMENT, Deployment
from fedadmm.study import loading
from fedadmm.study.config import Run

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


def write_configured(folder: Path, config: Run, deployment: Deployment, run: Path) -> Path:
    """The app of a configuration; returns its folder."""
    package = _package(folder, run)
    (package / "app.py").write_text(_CONFIGURED)
    (package / CONFIG).write_text(loading.write(config.tree))
    (package / DEPLOYMENT).write_text(loading.write(deployment._asdict()))
    return folder


def write_own(folder: Path, clients: int, rounds: int, features: int, run: str) -> Path:
    """An app to start from; returns the file to edit."""
    package = _package(folder, run)
    path = package / "app.py"
    path.write_text(OWN_APP.format(clients=clients, rounds=rounds, features=features))
    return path


def _package(folder: Path, run: Path | str) -> Path:
    package = folder / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text('"""A federation."""\n')
    text = _PYPROJECT.format(package=PACKAGE, run_dir=json.dumps(str(run)))
    (folder / "pyproject.toml").write_text(text)
    return package
