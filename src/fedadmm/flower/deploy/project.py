"""Flower apps as folders, and `fedadmm deploy init`: a project with keys and exact commands."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Le

from fedadmm.core.config_tree import to_config
from fedadmm.core.errors import ConfigError
from fedadmm.core.validation import Count, check
from fedadmm.flower.configured import CONFIG, DEPLOYMENT, Deployment
from fedadmm.flower.deploy import network
from fedadmm.flower.deploy.keys import (
    Certificates,
    make_certificates,
    make_identities,
    make_identity,
    make_node_key,
    make_operator_key,
)
from fedadmm.flower.deploy.network import shell
from fedadmm.flower.site.policy import POLICY, written
from fedadmm.run.experiment import Experiment
from fedadmm.study import config as configs

PORT = 9443
CONNECTION = "federation"
EVALUATIONS = 20
"""How many questions a day the sites answer, until they say otherwise."""


class Project(NamedTuple):
    """What was written."""

    folder: Path
    app: Path
    """The file with the model and the data, to be edited."""
    server: Path
    sites: list[Path]
    commands: Path


def write_project(
    folder: Path,
    clients: int,
    host: str,
    *,
    port: int = PORT,
    rounds: int = 50,
    features: int = 13,
) -> Project:
    """A folder for the server, and one for each site to be carried there."""
    for name, value in (("clients", clients), ("rounds", rounds), ("features", features)):
        check("deploy init", name, value, Count)
    check("deploy init", "port", port, Annotated[int, Ge(1), Le(65534)])
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; choose another folder")
    server = folder / "server"
    app = write_own(folder / "app", clients, rounds, features, "run")
    make_certificates(server / "keys", [host, "localhost", network.LOOPBACK])
    operator = make_operator_key(server / "keys" / "operator")
    sites = [_write_site(folder, client, operator) for client in range(clients)]
    make_identities(sites)
    server.chmod(0o700)
    text = folder / "COMMANDS.md"
    text.write_text(_commands(clients, host, port))
    return Project(folder, app, server, sites, text)


def _write_site(folder: Path, client: int, operator: str) -> Path:
    """The folder of one site; its node's public key goes to the server's."""
    site, keys = folder / "sites" / f"client-{client}", folder / "server" / "keys"
    site.mkdir(parents=True)
    site.chmod(0o700)
    make_node_key(site / "node-key").rename(keys / f"client-{client}.pub")
    (site / "ca.crt").write_bytes(Certificates.in_folder(keys).authority.read_bytes())
    (site / POLICY).write_text(written({"evaluations": EVALUATIONS, "server_key": operator}))
    return site


class Change(NamedTuple):
    """What was written for a federation with other sites, and the commands that are left to do."""

    site: Path
    commands: list[str]


def add_site(folder: Path) -> Change:
    """One more site in a project of `deploy init`: its folder, and its number in the app."""
    app, clients = _sites_of(folder)
    keys = folder / "server" / "keys"
    site = _write_site(folder, clients, (keys / "operator.pub").read_text().strip())
    make_identity(site)
    app.write_text(_CLIENTS.sub(rf"\g<1>{clients + 1}\g<2>", app.read_text(), count=1))
    register = network.register(f"keys/{site.name}.pub", CONNECTION, site.name)
    return Change(site, [shell(register), *_STOP, _run_command({"accept-sites": True})])


def remove_site(folder: Path, client: int) -> Change:
    """One site less: the others keep their numbers, and the server takes out what it brought."""
    _, clients = _sites_of(folder)
    check("deploy remove-site", "client", client, Annotated[int, Ge(0), Le(clients - 1)])
    unregister = ["flwr", "supernode", "unregister", "NODE", CONNECTION]
    commands = [*_STOP, _run_command({"take-out": str(client)}), shell(unregister)]
    return Change(folder / "sites" / f"client-{client}", commands)


_STOP = [shell(["flwr", "list", CONNECTION]), shell(["flwr", "stop", "RUN", CONNECTION])]
"""Ends the run that still trains: Ctrl-C ends only the log of `flwr run --stream`."""
_CLIENTS = re.compile(r"^(FEATURES, CLIENTS, ROUNDS = \d+, )\d+(, \d+)$", re.MULTILINE)


def _sites_of(folder: Path) -> tuple[Path, int]:
    """A project's app, and how many sites it has."""
    app = folder / "app" / PACKAGE / "app.py"
    line = _CLIENTS.search(app.read_text()) if app.is_file() else None
    if line is None:
        raise ConfigError(
            f"DIR is '{folder}', but must be a project of `deploy init`, whose app.py has a "
            "line such as FEATURES, CLIENTS, ROUNDS = 13, 4, 50"
        )
    return app, int(line[0].rpartition("= ")[2].split(", ")[1])


def _run_command(change: Mapping[str, Any]) -> str:
    start = {"run-dir": "$PWD/run", "operator-key": "$PWD/keys/operator", **change}
    return shell(network.run("../app", CONNECTION, start))


def _commands(clients: int, host: str, port: int) -> str:
    link_port = port + 1
    keys = Certificates.in_folder(Path("keys"))
    nodes = "\n".join(
        shell(network.register(f"keys/client-{i}.pub", CONNECTION, f"client-{i}"))
        for i in range(clients)
    )
    site = {
        "partition-id": 0,
        "state-dir": "$PWD/state",
        "data": "$PWD/rows.csv",
        "policy": f"$PWD/{POLICY}",
    }
    return f"""\
# Commands

Install the same `fedadmm[flower]` everywhere.  Everything private stays where it is: `server/keys/
server.key` on the server, `node-key` at its site.  TLS and node authentication are on.

## Server ({host})

The SuperLink takes commands from whoever reaches it, and those commands run code at every site.  So
it listens on loopback: give no stranger an account on this machine.  In the folder `server`, and
leave it running:

```sh
umask 077
export FLWR_HOME="$PWD/flower" FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
{shell(network.superlink(link_port, "superlink.db", keys))}
```

The gateway is what the sites reach: port {port}, and only the calls of nodes.  In a second shell,
in the folder `server`, and leave it running:

```sh
{shell(network.gateway(f"0.0.0.0:{port}", link_port, "keys"))}
```

Once, in a third shell, in the folder `server`, make the sites known:

```sh
umask 077
export FLWR_HOME="$PWD/flower" FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
mkdir -p flower
cat > flower/config.toml <<END
{network.connection(CONNECTION, link_port, "$PWD/keys/ca.crt").rstrip()}
END
{nodes}
```

## Each site

`identity` is a site's own, and `peers.json` lists whom it may be summed with under masks, for an
app with `aggregator=fa.MaskedSum()` and `ledger="none"`.  Sites that do not trust whoever ran
`deploy init` make an identity themselves (`fedadmm deploy identity .`) and exchange the lines that
it prints without the server.

Carry `sites/client-I` to site I (and nowhere else), put the site's rows into it as `rows.csv`, and
leave it running; for client 0, in its folder:

```sh
umask 077
export FLWR_HOME="$PWD/flower"
{shell(network.supernode(f"{host}:{port}", site, ("ca.crt", "node-key")))}
```

`state` holds this site's half of the training: keep it over restarts.  A site that loses it is
noticed, taken out of the model exactly, and starts again.

`{POLICY}` is what this site agrees to: read it, and change it at any time.  It names the operator's
public key, and limits how many times a day the site measures a model on its rows.  `fedadmm deploy
ledger state` shows what has left the site, and `fedadmm deploy approve state` the runs that wait
for its approval, where it asks for one.

## Run, and resume

On the server, in the third shell:

```sh
{_run_command({})}
```

`run/metrics.jsonl` grows by one line a round.  After any interruption give the same command again:
the run goes on from its last checkpoint.
"""


PACKAGE = "federation"

_PYPROJECT = """\
[project]
name = "fedadmm-federation"
version = "0.1.0"
description = "A federation of fedadmm"
license = "Apache-2.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "fedadmm"

[tool.flwr.app.components]
serverapp = "{package}.app:server"
clientapp = "{package}.app:client"

[tool.flwr.app.config]
run-dir = {run_dir}
accept-rollback = false
accept-nodes = false
accept-sites = false
leave-out = ""
take-out = ""
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


SOLVER = fa.SGD(lr=0.1, batch_size=20)
# Noise hides each site's rows (docs: What leaves a client); sites spend epsilon 8 at most:
# SOLVER = fa.DPSGD(lr=0.1, clip=1.0, multiplier=1.0, batch_size=20, budget=8.0)
NETWORK = dict(ledger="disk")
# The server sees only sums of three sites or more (docs: Secure sums):
# NETWORK = dict(ledger="none", aggregator=fa.MaskedSum(), pipeline=[fa.Clip(10.0)])

# Where sites often sit out, take fa.AlignedADMM instead of fa.FedADMM.
federation = Federation(
    fa.FedADMM(rho=fa.PerWork(0.25)), CLIENTS, ROUNDS, model=model, solver=SOLVER, **NETWORK,
    stop=fa.Epochs(5), evaluate_every=10, names=[f"client-{{i}}" for i in range(CLIENTS)])
server = server_app(federation)
client = client_app(federation, load)
'''


def app_hash(app: Path) -> str:
    """Return the SHA-256 hash of an app's bundle, as `deploy node` compares it.

    Args:
        app: the folder of the app, which is built as `flwr run` does it, or a bundle (.fab).
    """
    from flwr.cli.build import build_fab_from_disk

    if not app.exists():
        raise ConfigError(f"APP: got '{app}', expected the folder of a Flower app or a .fab file.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a dependency of Flower's
            content = app.read_bytes() if app.is_file() else build_fab_from_disk(app)
    except ValueError as error:
        raise ConfigError(f"APP: got '{app}', expected a Flower app; {error}") from None
    return hashlib.sha256(content).hexdigest()


def write_configured(folder: Path, config: Experiment, deployment: Deployment, run: Path) -> Path:
    """The app of a configuration; returns its folder."""
    package = _package(folder, run)
    for name, source in _own_modules(Path.cwd()):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    (package / "app.py").write_text(_CONFIGURED)
    (package / CONFIG).write_text(configs.write(config.tree))
    (package / DEPLOYMENT).write_text(configs.write(to_config(deployment)))
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
