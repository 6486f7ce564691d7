"""`fedadmm deploy init`: a project for several machines, with keys and exact commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

from annotated_types import Ge, Le

from fedadmm.core.errors import ConfigError
from fedadmm.core.validation import Count, check
from fedadmm.flower.local import commands
from fedadmm.flower.local.bundle import write_own
from fedadmm.flower.local.commands import shell
from fedadmm.flower.local.keys import (
    Certificates,
    make_certificates,
    make_identities,
    make_node_key,
    make_operator_key,
)
from fedadmm.flower.site.policy import POLICY, written

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
    certificates = make_certificates(server / "keys", [host, "localhost", commands.LOOPBACK])
    operator = make_operator_key(server / "keys" / "operator")
    sites = []
    for client in range(clients):
        site = folder / "sites" / f"client-{client}"
        site.mkdir(parents=True)
        public = make_node_key(site / "node-key")
        public.rename(server / "keys" / f"client-{client}.pub")
        (site / "ca.crt").write_bytes(certificates.authority.read_bytes())
        agreed = {"evaluations": EVALUATIONS, "server_key": operator}
        (site / POLICY).write_text(written(agreed))
        sites.append(site)
    make_identities(sites)
    for private in (server, *sites):
        private.chmod(0o700)
    text = folder / "COMMANDS.md"
    text.write_text(_commands(clients, host, port))
    return Project(folder, app, server, sites, text)


def _commands(clients: int, host: str, port: int) -> str:
    link_port = port + 1
    keys = Certificates.in_folder(Path("keys"))
    nodes = "\n".join(
        shell(commands.register(f"keys/client-{i}.pub", CONNECTION, f"client-{i}"))
        for i in range(clients)
    )
    site = {
        "partition-id": 0,
        "state-dir": "$PWD/state",
        "data": "$PWD/rows.csv",
        "policy": f"$PWD/{POLICY}",
    }
    start = {"run-dir": "$PWD/run", "operator-key": "$PWD/keys/operator"}
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
{shell(commands.superlink(link_port, "superlink.db", keys))}
```

The gateway is what the sites reach: port {port}, and only the calls of nodes.  In a second shell,
in the folder `server`, and leave it running:

```sh
{shell(commands.gateway(f"0.0.0.0:{port}", link_port, "keys"))}
```

Once, in a third shell, in the folder `server`, make the sites known:

```sh
umask 077
export FLWR_HOME="$PWD/flower" FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
mkdir -p flower
cat > flower/config.toml <<END
{commands.connection(CONNECTION, link_port, "$PWD/keys/ca.crt").rstrip()}
END
{nodes}
```

## Each site

`identity` is a site's own, and `peers.json` lists whom it may be summed with under masks, for an
app with `aggregate=fa.MaskedSum()` and `ledger="none"`.  Sites that do not trust whoever ran
`deploy init` make an identity themselves (`fedadmm deploy identity .`) and exchange the lines that
it prints without the server.

Carry `sites/client-I` to site I (and nowhere else), put the site's rows into it as `rows.csv`, and
leave it running; for client 0, in its folder:

```sh
umask 077
export FLWR_HOME="$PWD/flower"
{shell(commands.supernode(f"{host}:{port}", site, ("ca.crt", "node-key")))}
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
{shell(commands.run("../app", CONNECTION, start))}
```

`run/metrics.jsonl` grows by one line a round.  After any interruption give the same command again:
the run goes on from its last checkpoint.
"""
