"""`fedadmm deploy init`: a project for several machines, with keys and exact commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from fedadmm.errors import ConfigError, check_count
from fedadmm.flower.local.bundle import write_own
from fedadmm.flower.local.keys import make_certificates, make_node_key

PORT = 9443
CONNECTION = "federation"


class Project(NamedTuple):
    """What was written."""

    folder: Path
    app: Path
    """The file with the model and the data, to be edited."""
    server: Path
    sites: list[Path]
    commands: Path


def write_project(
    folder: Path, clients: int, host: str, *, rounds: int = 50, features: int = 13
) -> Project:
    """A folder for the server, and one for each site to be carried there."""
    check_count("deploy init", "clients", clients)
    check_count("deploy init", "rounds", rounds)
    check_count("deploy init", "features", features)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; choose another folder")
    server = folder / "server"
    app = write_own(folder / "app", clients, rounds, features, "run")
    certificates = make_certificates(server / "keys", [host, "localhost", "127.0.0.1"])
    home = server / "flower"
    home.mkdir()
    (home / "config.toml").write_text(
        f"[superlink]\ndefault = {json.dumps(CONNECTION)}\n\n[superlink.{CONNECTION}]\n"
        f'address = "127.0.0.1:{PORT}"\nroot-certificates = "../keys/ca.crt"\n'
    )
    sites = []
    for client in range(clients):
        site = folder / "sites" / f"client-{client}"
        site.mkdir(parents=True)
        public = make_node_key(site / "node-key")
        public.rename(server / "keys" / f"client-{client}.pub")
        (site / "ca.crt").write_bytes(certificates.authority.read_bytes())
        sites.append(site)
    commands = folder / "COMMANDS.md"
    commands.write_text(_commands(clients, host))
    return Project(folder, app, server, sites, commands)


def _commands(clients: int, host: str) -> str:
    nodes = "\n".join(
        f"flwr supernode register keys/client-{i}.pub {CONNECTION} --name client-{i}"
        for i in range(clients)
    )
    return f"""\
# Commands

Install the same `fedadmm[flower]` everywhere.  Everything private stays where it is: `server/keys/
server.key` on the server, `node-key` at its site.  TLS and node authentication are on.

## Server ({host})

In the folder `server`, and leave it running:

```sh
export FLWR_HOME="$PWD/flower" FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
flower-superlink --host 0.0.0.0 --port {PORT} --database superlink.db \\
  --ssl-certfile keys/server.crt --ssl-keyfile keys/server.key --ssl-ca-certfile keys/ca.crt \\
  --enable-supernode-auth
```

Once, in a second shell with the same `export`, make the sites known:

```sh
{nodes}
```

## Each site

Carry `sites/client-I` to site I (and nowhere else), put the site's rows beside it, and leave it
running; for client 0:

```sh
export FLWR_HOME="$PWD/flower"
flower-supernode --superlink {host}:{PORT} --root-certificates ca.crt \\
  --auth-supernode-private-key node-key \\
  --node-config 'partition-id=0 state-dir="state" data="rows.csv"'
```

`state` holds this site's half of the training: keep it over restarts.  A site that loses it is
noticed, taken out of the model exactly, and starts again.

## Run, and resume

On the server, in the second shell:

```sh
flwr run ../app {CONNECTION} --stream --run-config "run-dir=\\"$PWD/run\\""
```

`run/metrics.jsonl` grows by one line a round.  After any interruption give the same command again:
the run goes on from its last checkpoint.
"""
