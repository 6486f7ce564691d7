"""A SuperLink and SuperNodes on loopback, and the commands that start them here or elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedadmm.core import signals
from fedadmm.core.errors import EngineError
from fedadmm.flower.deploy import processes
from fedadmm.flower.deploy.keys import Certificates, make_certificates, make_node_key
from fedadmm.flower.deploy.processes import ProcessTree

CONNECTION = "fedadmm"
_START = 60.0
"""Seconds to wait until a process listens, and until a command ends."""


def node_name(client: int) -> str:
    """Return the registered name of a client's node."""
    return f"client-{client}"


class LocalNetwork:
    """Starts and stops Flower's processes under one folder; use it in a `with` statement.

    `nodes` is the node configuration of each client except `partition-id`.  With `tls` every
    connection is encrypted, every node has a registered key, and nodes come in by the gateway, as
    they do over several machines.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[Mapping[str, Any]],
        *,
        tls: bool,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.tls = tls
        self._nodes = list(nodes)
        self._home = folder / "flower"
        self._logs = folder / "logs"
        for made in (folder, self._home, self._logs):
            made.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        for old in folder.glob("superlink.db*"):  # a new network knows no old nodes
            old.unlink()
        ports = processes.free_ports(2 + len(self._nodes))
        self._link_port, gateway, *self._node_ports = ports
        self.port = gateway if tls else self._link_port
        self._environment = processes.environment(self._home, environment)
        self._groups: dict[str, ProcessTree] = {}
        self.certificates: Certificates | None = None
        authority = None
        if tls:
            self.certificates = make_certificates(folder / "keys", [LOOPBACK, "localhost"])
            authority = str(self.certificates.authority)
        config = connection(CONNECTION, self._link_port, authority)
        (self._home / "config.toml").write_text(config)

    def __enter__(self) -> LocalNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start everything: SuperLink, keys, SuperNodes."""
        self.start_link()
        for client in range(len(self._nodes)):
            if self.tls:
                self.register(client)
            self.start_node(client)

    def start_link(self) -> None:
        """Start the SuperLink, on its old port and database after a stop; then the gateway."""
        database = str(self.folder / "superlink.db")
        command = superlink(self._link_port, database, self.certificates)
        group = self._launch("superlink", command)
        processes.wait_for_port(self._link_port, group, _START)
        if self.tls:
            keys = str(self.folder / "keys")
            listen = f"{LOOPBACK}:{self.port}"
            group = self._launch("gateway", gateway(listen, self._link_port, keys))
            processes.wait_for_port(self.port, group, _START)

    def key(self, client: int) -> Path:
        """Return the path of a node's private key, which is created on first use."""
        path = self.folder / "keys" / node_name(client)
        if not path.exists():
            make_node_key(path)
        return path

    def register(self, client: int) -> None:
        """Register a node's public key at the SuperLink."""
        public = self.key(client).with_name(node_name(client) + ".pub")
        self.flwr(*register(str(public), CONNECTION, node_name(client))[1:])

    def start_node(
        self, client: int, key: Path | None = None, *, warm: bool = True, **changes: Any
    ) -> ProcessTree:
        """Start a SuperNode; without TLS it has no key."""
        config = {**self._nodes[client], "partition-id": client, **changes}
        security = None
        if self.certificates is not None:
            security = str(self.certificates.authority), str(key or self.key(client))
        command = supernode(f"{LOOPBACK}:{self.port}", config, security, warm=warm)
        command += ["--port", str(self._node_ports[client])]
        return self._launch(node_name(client), command)

    def run(self, app: Path, config: Mapping[str, Any]) -> ProcessTree:
        """Start a run of a Flower app; the process ends when the run does."""
        return self._launch("run", run(str(app.resolve()), CONNECTION, config))

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs of the SuperLink."""
        answer = json.loads(self.flwr("ls", CONNECTION, "--format", "json"))
        found: list[dict[str, Any]] = answer.get("runs", [])
        return found

    def flwr(self, *arguments: str) -> str:
        """Run one command of Flower's own and return its output."""
        done = subprocess.run(
            ["flwr", *arguments],
            env=self._environment,
            cwd=self._home,
            capture_output=True,
            text=True,
            timeout=_START,
            check=False,
        )
        if done.returncode:
            raise EngineError(f"flwr {arguments[0]} failed: {done.stdout} {done.stderr}"[-800:])
        return done.stdout

    def group(self, name: str) -> ProcessTree:
        """Return a process that was started."""
        return self._groups[name]

    def wait(
        self, group: ProcessTree, timeout: float, look: Callable[[], None] | None = None
    ) -> None:
        """Wait until a process ends; `look` is called in between."""
        deadline = time.monotonic() + timeout
        while group.running():
            if time.monotonic() > deadline:
                raise EngineError(f"{group.name} did not end within {timeout:g} s:\n{group.tail()}")
            if look is not None:
                look()
            time.sleep(0.1)

    def close(self) -> None:
        """Stop all processes, including those of a failed start."""
        # A second Ctrl-C, or a supervisor that signals the group, would leave processes running.
        with signals.ignored(*signals.END):
            for group in self._groups.values():
                group.ask_to_end()
            for group in self._groups.values():
                with suppress(OSError):
                    group.stop()
            self._groups = {}
            processes.record(self.folder, [])

    def _launch(self, name: str, command: Sequence[str]) -> ProcessTree:
        if name in self._groups:
            self._groups[name].stop()
        # In a folder of its own: `flwr` takes a folder that is called like a connection for an app.
        log = self._logs / f"{name}.log"
        group = ProcessTree(name, command, log, self._environment, self._home)
        self._groups[name] = group
        processes.record(self.folder, list(self._groups.values()))
        return group


LOOPBACK = "127.0.0.1"
_PLAIN = re.compile(r"[A-Za-z0-9_./:=-]+")


def superlink(port: int, database: str, certificates: Certificates | None) -> list[str]:
    """Return the command of the SuperLink, which is reachable from this machine only."""
    command = ["flower-superlink", "--host", LOOPBACK, "--port", str(port)]
    command += ["--database", database, "--disable-runtime-dependency-installation"]
    if certificates is None:
        return [*command, "--insecure"]
    command += ["--ssl-certfile", str(certificates.certificate)]
    command += ["--ssl-keyfile", str(certificates.key)]
    command += ["--ssl-ca-certfile", str(certificates.authority)]
    return [*command, "--enable-supernode-auth"]


def gateway(listen: str, link_port: int, keys: str) -> list[str]:
    """Return the command of the gateway, which the sites reach instead of the SuperLink."""
    link = f"{LOOPBACK}:{link_port}"
    return ["fedadmm", "deploy", "gateway", "--listen", listen, "--superlink", link, "--keys", keys]


def supernode(
    address: str, config: Mapping[str, Any], security: tuple[str, str] | None, *, warm: bool = True
) -> list[str]:
    """Return the command of a site's node; `security` is the trusted authority and its key.

    One that is not warm is Flower's own, which starts a fresh Python for every message.
    """
    command = [*(["fedadmm", "deploy", "node"] if warm else ["flower-supernode"])]
    command += ["--superlink", address]
    if security is None:
        command.append("--insecure")
    else:
        command += ["--root-certificates", security[0]]
        command += ["--auth-supernode-private-key", security[1]]
    return [*command, "--node-config", settings(config)]


def register(public_key: str, connection: str, name: str) -> list[str]:
    """Make a node's public key known to the SuperLink."""
    return ["flwr", "supernode", "register", public_key, connection, "--name", name]


def run(app: str, connection: str, config: Mapping[str, Any]) -> list[str]:
    """Return the command that runs a Flower app, and ends with the run."""
    return ["flwr", "run", app, connection, "--stream", "--run-config", settings(config)]


def settings(config: Mapping[str, Any]) -> str:
    """Return keys and values in the format of Flower's options."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def connection(name: str, port: int, authority: str | None) -> str:
    """Return the config.toml by which `flwr` finds the SuperLink; paths must be absolute."""
    secure = f"root-certificates = {json.dumps(authority)}" if authority else "insecure = true"
    return (
        f"[superlink]\ndefault = {json.dumps(name)}\n\n[superlink.{name}]\n"
        f"address = {json.dumps(f'{LOOPBACK}:{port}')}\n{secure}\n"
    )


def shell(command: Sequence[str]) -> str:
    """Return a command as a line for a shell, which expands $PWD."""
    words = [
        word if _PLAIN.fullmatch(word) else '"' + word.replace('"', '\\"') + '"' for word in command
    ]
    return " ".join(words)
