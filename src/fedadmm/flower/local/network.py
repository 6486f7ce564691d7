"""A SuperLink and SuperNodes on loopback: the real thing, on one machine."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from fedadmm.errors import EngineError
from fedadmm.flower.local import processes
from fedadmm.flower.local.keys import Certificates, make_certificates, make_node_key
from fedadmm.flower.local.processes import Group

CONNECTION = "fedadmm"
HOST = "127.0.0.1"
_START = 60.0
"""Seconds that a process has to start listening, and a command to come back."""


def node_name(client: int) -> str:
    """The registered name of a client's node."""
    return f"client-{client}"


class LocalNetwork:
    """Starts and stops Flower's processes under one folder; use it in a `with` statement.

    `nodes` is the node configuration of each client besides `partition-id`.  With `tls` every
    connection is encrypted and every node has a registered key.
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
        for old in folder.glob("superlink.db*"):  # a new ground knows no old nodes
            old.unlink()
        self.port, *self._node_ports = processes.free_ports(1 + len(self._nodes))
        self._environment = processes.environment(self._home, environment)
        self._groups: dict[str, Group] = {}
        self.certificates: Certificates | None = None
        if tls:
            self.certificates = make_certificates(folder / "keys", [HOST, "localhost"])
        self._write_connection()

    def __enter__(self) -> LocalNetwork:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start everything: SuperLink, keys, SuperNodes."""
        self.start_link()
        for client in range(len(self._nodes)):
            if self.tls:
                self.register(client)
            self.start_node(client)

    def start_link(self) -> None:
        """Start the SuperLink, on its old port and database after a stop."""
        command = ["flower-superlink", "--host", HOST, "--port", str(self.port)]
        command += ["--database", str(self.folder / "superlink.db")]
        command += ["--disable-runtime-dependency-installation"]
        if self.certificates is None:
            command.append("--insecure")
        else:
            command += ["--ssl-certfile", str(self.certificates.certificate)]
            command += ["--ssl-keyfile", str(self.certificates.key)]
            command += ["--ssl-ca-certfile", str(self.certificates.authority)]
            command.append("--enable-supernode-auth")
        group = self._launch("superlink", command)
        processes.wait_for_port(self.port, group, _START)

    def key(self, client: int) -> Path:
        """A node's private key; made on first use."""
        path = self.folder / "keys" / node_name(client)
        if not path.exists():
            make_node_key(path)
        return path

    def register(self, client: int) -> None:
        """Make a node's public key known to the SuperLink."""
        public = self.key(client).with_name(node_name(client) + ".pub")
        self.flwr("supernode", "register", str(public), CONNECTION, "--name", node_name(client))

    def start_node(self, client: int, key: Path | None = None, **changes: Any) -> Group:
        """Start a SuperNode; without TLS it comes without a key."""
        config = {**self._nodes[client], "partition-id": client, **changes}
        command = ["flower-supernode", "--superlink", f"{HOST}:{self.port}", "--host", HOST]
        command += ["--port", str(self._node_ports[client])]
        command += ["--node-config", " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())]
        if self.certificates is None:
            command.append("--insecure")
        else:
            command += ["--root-certificates", str(self.certificates.authority)]
            command += ["--auth-supernode-private-key", str(key or self.key(client))]
        return self._launch(node_name(client), command)

    def run(self, app: Path, config: Mapping[str, Any]) -> Group:
        """Start a run of a Flower app; the process ends when the run does."""
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        command = ["flwr", "run", str(app), CONNECTION, "--stream", "--run-config", text]
        return self._launch("run", command)

    def runs(self) -> list[dict[str, Any]]:
        """The runs that the SuperLink knows."""
        answer = json.loads(self.flwr("ls", CONNECTION, "--format", "json"))
        found: list[dict[str, Any]] = answer.get("runs", [])
        return found

    def flwr(self, *arguments: str) -> str:
        """One command of Flower's own."""
        done = subprocess.run(
            ["flwr", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_START,
            check=False,
        )
        if done.returncode:
            raise EngineError(f"flwr {arguments[0]} failed: {done.stdout} {done.stderr}"[-800:])
        return done.stdout

    def group(self, name: str) -> Group:
        """A process that was started."""
        return self._groups[name]

    def wait(self, group: Group, timeout: float, look: Callable[[], None] | None = None) -> None:
        """Wait until a process ends; `look` is called in between."""
        deadline = time.monotonic() + timeout
        while group.running():
            if time.monotonic() > deadline:
                raise EngineError(f"{group.name} did not end within {timeout:g} s:\n{group.tail()}")
            if look is not None:
                look()
            time.sleep(0.1)

    def close(self) -> None:
        """Take everything down at once; also what a failed start left behind."""
        with processes.undisturbed():
            for group in self._groups.values():
                group.ask_to_end()
            for group in self._groups.values():
                with suppress(OSError):
                    group.stop()
            self._groups = {}
            processes.record(self.folder, [])

    def _launch(self, name: str, command: Sequence[str]) -> Group:
        if name in self._groups:
            self._groups[name].stop()
        group = Group(name, command, self._logs / f"{name}.log", self._environment)
        self._groups[name] = group
        processes.record(self.folder, list(self._groups.values()))
        return group

    def _write_connection(self) -> None:
        lines = [
            f"[superlink]\ndefault = {json.dumps(CONNECTION)}\n",
            f"[superlink.{CONNECTION}]",
            f"address = {json.dumps(f'{HOST}:{self.port}')}",
        ]
        if self.certificates is None:
            lines.append("insecure = true")
        else:
            lines.append(f"root-certificates = {json.dumps(str(self.certificates.authority))}")
        (self._home / "config.toml").write_text("\n".join(lines) + "\n")
