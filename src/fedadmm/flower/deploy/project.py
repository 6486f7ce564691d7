"""Flower apps as folders, and `fedadmm deploy init`: a project with keys and exact commands."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Le

from fedadmm.core.config_tree import to_config
from fedadmm.core.errors import ConfigError
from fedadmm.core.parts import Positive
from fedadmm.core.privacy import composed_epsilon, most_affordable, multiplier_for
from fedadmm.core.validation import Count, check
from fedadmm.data.problems.recorded import TableOptions
from fedadmm.flower.configured import (
    CONFIG,
    DEPLOYMENT,
    Deployment,
    TableSites,
    node_names,
    sites,
    table_sites,
)
from fedadmm.flower.deploy import network
from fedadmm.flower.deploy.keys import (
    Certificates,
    add_peer,
    make_certificates,
    make_identities,
    make_identity,
    make_node_key,
    make_operator_key,
)
from fedadmm.flower.deploy.network import shell
from fedadmm.flower.federation import SITES_FILE, ListedSites, read_sites
from fedadmm.flower.site.policy import POLICY, written
from fedadmm.flower.site.table import PREPARATION, TablePreparation
from fedadmm.run.experiment import Experiment
from fedadmm.study import config as configs

PORT, PEERS = 9443, "peers.json"
BATCH, EPOCHS, DELTA, EVERY = 20, 5, 1e-5, 10
"""The local work of a new project and the rounds between evaluations, to which noise is fitted."""
CONNECTION = "federation"
EVALUATIONS = 20
"""How many questions a day the sites answer, until they say otherwise."""


class Noise(NamedTuple):
    """Example-level differential privacy, fitted to the sites' numbers of samples."""

    epsilon: float
    multiplier: float
    rounds: dict[int, int]
    """The number of samples of a site -> the rounds that its budget lasts."""
    evaluation: float
    """Standard deviation of the noise on the number of correct answers in an evaluation."""

    @classmethod
    def fit(cls, epsilon: float, rounds: int, samples: Sequence[int]) -> Noise:
        """Return the least noise with which every site can take part in all rounds.

        Args:
            epsilon: the privacy budget of a site, at delta 1e-5.
            rounds: the rounds of the run, each with `EPOCHS` epochs in batches of `BATCH`.
            samples: the numbers of training samples of the sites.
        """
        check("deploy init", "epsilon", epsilon, Positive)
        kinds = {count: -(-count // BATCH) for count in samples}  # steps of an epoch
        asked = -(-rounds // EVERY)
        # Alone the evaluations would take the whole budget with 1/sqrt(10) of this noise, so that
        # they take about a tenth of it, in Renyi divergence.
        evaluation = math.ceil(10 * math.sqrt(10) * multiplier_for(epsilon, DELTA, 1, asked)) / 10
        additional = {(evaluation, 1.0): asked}
        fitted = max(
            multiplier_for(epsilon, DELTA, 1 / steps, rounds * EPOCHS * steps, additional)
            for steps in set(kinds.values())
        )
        multiplier = math.ceil(1000 * fitted) / 1000

        def affords(steps: int, count: int) -> bool:
            made = {(multiplier, 1 / steps): count * EPOCHS * steps}
            asked = {(evaluation, 1.0): -(-count // EVERY)}
            return composed_epsilon(made | asked, DELTA) <= epsilon

        lasts = {count: most_affordable(partial(affords, one)) for count, one in kinds.items()}
        return cls(epsilon, multiplier, lasts, evaluation)


class Project(NamedTuple):
    """What was written."""

    folder: Path
    app: Path
    """The file with the model and the data, to be edited."""
    server: Path
    sites: list[Path]
    commands: Path
    noise: Noise | None = None


def write_project(
    folder: Path,
    clients: int,
    host: str,
    *,
    port: int = PORT,
    rounds: int = 50,
    features: int = 13,
    epsilon: float | None = None,
    samples: Sequence[int] = (100,),
    tables: TableOptions | None = None,
) -> Project:
    """Write a folder for the server, and one for each site to be carried there.

    Args:
        folder: where; it must be empty.
        clients: how many sites; with tables one per file.
        host: the server's name or address, as the sites see it.
        port: the port that the sites reach.
        rounds: how many rounds.
        features: columns of the sites' tables, without the label.
        epsilon: the privacy budget of every site; None adds no noise.
        samples: the numbers of training samples of the sites, to which the noise is fitted.
        tables: the sites' CSV files; the app then prepares their columns jointly.
    """
    for name, value in (("clients", clients), ("rounds", rounds), ("features", features)):
        check("deploy init", name, value, Count)
    check("deploy init", "port", port, Annotated[int, Ge(1), Le(65534)])
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; choose another folder")
    server, joint = folder / "server", None
    if tables is not None:
        joint = joined_tables(tables)
        clients, samples = len(joint.names), joint.samples
    noise = None if epsilon is None else Noise.fit(epsilon, rounds, samples)
    if joint is not None and tables is not None:
        app = _write_tables(folder / "app", tables, joint, rounds, noise)
    else:
        app = write_own(folder / "app", rounds, features, "run", noise)
    sites_file(folder).write_text(_SITES_HEAD + "".join(map(_listed, node_names(clients))))
    make_certificates(server / "keys", [host, "localhost", network.LOOPBACK])
    operator = make_operator_key(server / "keys" / "operator")
    sites = [_write_site(folder, client, operator, noise) for client in range(clients)]
    make_identities(sites)
    (folder / PEERS).write_bytes((sites[0] / PEERS).read_bytes())
    server.chmod(0o700)
    text = folder / "COMMANDS.md"
    text.write_text(_commands(clients, host, port))
    return Project(folder, app, server, sites, text, noise)


def joined_tables(options: TableOptions) -> TablePreparation:
    """Return the joint preparation of the sites' tables, from the statistics of each file."""
    found = table_sites(options)
    if found is None:
        raise ConfigError("--csv: got one file or a column of clients, expected a file per site.")
    return found.preparation


def _write_tables(
    folder: Path,
    options: TableOptions,
    joint: TablePreparation,
    rounds: int,
    noise: Noise | None,
) -> Path:
    """Write the app of a configuration whose sites have tables; return the file to edit."""
    solver: dict[str, Any] = {"name": "sgd", "lr": 0.1, "batch_size": BATCH}
    if noise is not None:
        private = {"clip": 1.0, "multiplier": noise.multiplier, "budget": noise.epsilon}
        solver |= {"name": "dp-sgd", "delta": DELTA, **private}
    tree = {
        "rounds": rounds,
        "problem": {
            "name": "table",
            "path": "rows.csv",
            "target": options.target,
            "kind": options.kind,
            "model": options.model,
            "preparation": "from-sums",
            "weights": "samples",
            "leave_out": list(options.leave_out),
        },
        "algorithm": {"name": "fedadmm", "rho": {"name": "per-work", "pull": 0.25}},
        "local": {"solver": solver, "stop": {"name": "epochs", "epochs": EPOCHS}},
        "evaluate": {"every": EVERY},
    }
    configs.resolve(tree)  # a wrong option is reported here, and not at the sites
    package = _package(folder, "run")
    (package / "app.py").write_text(_CONFIGURED)
    (package / CONFIG).write_text(configs.write(tree))
    network_part = Deployment(len(joint.names), named=True)
    (package / DEPLOYMENT).write_text(configs.write(to_config(network_part)))
    joint.write(package / PREPARATION)
    return package / CONFIG


def _write_site(folder: Path, client: int, operator: str, noise: Noise | None = None) -> Path:
    """Write the folder of one site; its node's public key goes to the server's."""
    site, keys = folder / "sites" / f"client-{client}", folder / "server" / "keys"
    site.mkdir(parents=True)
    site.chmod(0o700)
    make_node_key(site / "node-key").rename(keys / f"client-{client}.pub")
    (site / "ca.crt").write_bytes(Certificates.in_folder(keys).authority.read_bytes())
    policy: dict[str, Any] = {"evaluations": EVALUATIONS, "server_key": operator}
    if noise is not None:
        policy |= {"epsilon": noise.epsilon, "evaluation_noise": noise.evaluation}
    (site / POLICY).write_text(written(policy))
    return site


class Change(NamedTuple):
    """What was written for a federation with other sites, and the commands that are left to do."""

    site: Path
    commands: list[str]
    identity: str = ""
    """The public identity of a new site, which every other site adds to its peers.json."""


def add_site(folder: Path) -> Change:
    """Add a site to a project of `deploy init`: its folder, identity and entry in sites.toml.

    The folders of other sites that are still in the project learn the new identity.
    """
    listed = _listed_sites(folder)
    client, keys = len(listed.names), folder / "server" / "keys"
    site = _write_site(folder, client, (keys / "operator.pub").read_text().strip())
    identity = make_identity(site)
    add_peer(folder / PEERS, client, identity)
    for known in sorted((folder / "sites").glob("*")):
        add_peer(known / PEERS, client, identity)
    (site / PEERS).write_bytes((folder / PEERS).read_bytes())
    with sites_file(folder).open("a") as stream:
        stream.write(_listed(site.name))
    register = network.register(f"keys/{site.name}.pub", CONNECTION, site.name)
    commands = [shell(register), *_STOP, _run_command({"accept-sites": True})]
    return Change(site, commands, identity)


def remove_site(folder: Path, client: int) -> Change:
    """Mark a site as left in sites.toml: the server takes out exactly what it contributed."""
    listed = _listed_sites(folder)
    last = len(listed.names) - 1
    check("deploy remove-site", "client", client, Annotated[int, Ge(0), Le(last)])
    gone = {*listed.left, client}
    text = "".join(_listed(name, one in gone) for one, name in enumerate(listed.names))
    sites_file(folder).write_text(_SITES_HEAD + text)
    unregister = ["flwr", "supernode", "unregister", "NODE", CONNECTION]
    commands = [*_STOP, _run_command({}), shell(unregister)]
    return Change(folder / "sites" / f"client-{client}", commands)


_STOP = [shell(["flwr", "list", CONNECTION]), shell(["flwr", "stop", "RUN", CONNECTION])]
"""Ends the run that still trains: Ctrl-C ends only the log of `flwr run --stream`."""
_SITES_HEAD = """\
# The sites of the federation, in the order of their client numbers.  A new site is appended; a site
# that leaves for good keeps its place and gets left = true.
"""


def _listed(name: str, left: bool = False) -> str:
    return f"\n[[site]]\nname = {json.dumps(name)}\n" + "left = true\n" * left


def sites_file(folder: Path) -> Path:
    """Return the path of a project's list of sites, which is part of its app."""
    return folder / "app" / PACKAGE / SITES_FILE


def _listed_sites(folder: Path) -> ListedSites:
    path = sites_file(folder)
    if not path.is_file():
        raise ConfigError(
            f"DIR: got '{folder}', expected a project of `deploy init`, which has a {SITES_FILE}."
        )
    return read_sites(path)


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

Install the same `fedadmm[flower,privacy]` everywhere.  Everything private stays where it is:
`server/keys/server.key` on the server, `node-key` at its site.  TLS and node authentication are on.

## Server ({host})

The SuperLink takes commands from anyone who reaches it, and those commands run code at every
site.  So it listens on loopback: give no stranger an account on this machine.  In the folder
`server`, and leave it running:

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

`identity` is a site's own, and `peers.json` lists the sites it may be summed with under masks, for
an app with `aggregator=fa.MaskedSum()` and `ledger="none"`.  Sites that do not trust the person who
ran `deploy init` delete both files, make an identity themselves (`fedadmm deploy identity .`) and
exchange the lines that it prints without the server (`--peer`).

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

from pathlib import Path

import numpy as np
import torch

import fedadmm as fa
from fedadmm.flower import Federation, client_app, server_app

FEATURES, ROUNDS = {features}, {rounds}
SITES = Path(__file__).with_name("sites.toml")


def model():
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 2))  # a score for each class


def load(context):  # this site's rows: a CSV with a header, the label (0 or 1) in the last column
    table = np.loadtxt(context.node_config["data"], delimiter=",", skiprows=1, dtype=np.float32)
    rows, labels = torch.from_numpy(table[:, :-1]), torch.from_numpy(table[:, -1]).long()
    return fa.ModelObjective(model(), torch.nn.functional.cross_entropy, rows, labels)


{solver}
NETWORK = dict(ledger="disk")
# The server sees only sums of three sites or more (docs: Secure aggregation):
# NETWORK = dict(ledger="none", aggregator=fa.MaskedSum(), pipeline=[fa.Clip(10.0)])

# If sites are often absent, take fa.AlignedADMM instead of fa.FedADMM.
federation = Federation(
    fa.FedADMM(rho=fa.PerWork(0.25)), rounds=ROUNDS, sites=SITES, model=model, solver=SOLVER,
    stop=fa.Epochs({epochs}), evaluate_every={every}, **NETWORK)
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
    apart = sites(config)
    if isinstance(apart, TableSites):
        apart.preparation.write(package / PREPARATION)
    return folder


_PLAIN = """\
# Noise protects each sample (docs: Differential privacy).  Fit it to your sites when the project is
# written: fedadmm deploy init --epsilon 8 --rounds {rounds} --samples 100
SOLVER = fa.SGD(lr=0.1, batch_size={batch})"""
_NOISED = """\
# Noise protects each sample (docs: Differential privacy).  It is fitted: {rounds} rounds cost
# epsilon {epsilon:g} at most, at delta {delta:g}.
SOLVER = fa.DPSGD(
    lr=0.1, clip=1.0, multiplier={multiplier}, batch_size={batch}, budget={epsilon:g})"""


def own_app(rounds: int, features: int, noise: Noise | None = None) -> str:
    """Return the text of an app to start from."""
    given: dict[str, Any] = {"rounds": rounds, "batch": BATCH, "delta": DELTA}
    template = _PLAIN if noise is None else _NOISED
    solver = template.format(**(({} if noise is None else noise._asdict()) | given))
    sizes = {"rounds": rounds, "features": features, "epochs": EPOCHS, "every": EVERY}
    return OWN_APP.format(solver=solver, **sizes)


def write_own(
    folder: Path, rounds: int, features: int, run: str, noise: Noise | None = None
) -> Path:
    """Write an app to start from; return the file to edit."""
    path = _package(folder, run) / "app.py"
    path.write_text(own_app(rounds, features, noise))
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
