"""The commands of a deployment, written once: run here, or printed for people to run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedadmm.flower.local.keys import Certificates

LOOPBACK = "127.0.0.1"
_PLAIN = re.compile(r"[A-Za-z0-9_./:=-]+")


def superlink(port: int, database: str, certificates: Certificates | None) -> list[str]:
    """The SuperLink, which only this machine can reach: whoever reaches it commands all sites."""
    command = ["flower-superlink", "--host", LOOPBACK, "--port", str(port)]
    command += ["--database", database, "--disable-runtime-dependency-installation"]
    if certificates is None:
        return [*command, "--insecure"]
    command += ["--ssl-certfile", str(certificates.certificate)]
    command += ["--ssl-keyfile", str(certificates.key)]
    command += ["--ssl-ca-certfile", str(certificates.authority)]
    return [*command, "--enable-supernode-auth"]


def gateway(listen: str, link_port: int, keys: str) -> list[str]:
    """What the sites reach instead of the SuperLink."""
    link = f"{LOOPBACK}:{link_port}"
    return ["fedadmm", "deploy", "gateway", "--listen", listen, "--superlink", link, "--keys", keys]


def supernode(
    address: str, config: Mapping[str, Any], security: tuple[str, str] | None
) -> list[str]:
    """A site's node; `security` is the authority to trust and the node's own key."""
    command = ["flower-supernode", "--superlink", address]
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
    """A run of a Flower app, which ends when the run does."""
    return ["flwr", "run", app, connection, "--stream", "--run-config", settings(config)]


def settings(config: Mapping[str, Any]) -> str:
    """Keys and values as Flower's commands take them."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def connection(name: str, port: int, authority: str | None) -> str:
    """The config.toml by which `flwr` finds the SuperLink; it wants absolute paths."""
    secure = f"root-certificates = {json.dumps(authority)}" if authority else "insecure = true"
    return (
        f"[superlink]\ndefault = {json.dumps(name)}\n\n[superlink.{name}]\n"
        f"address = {json.dumps(f'{LOOPBACK}:{port}')}\n{secure}\n"
    )


def shell(command: Sequence[str]) -> str:
    """A command as a line for a shell, in which $PWD means the folder."""
    words = [
        word if _PLAIN.fullmatch(word) else '"' + word.replace('"', '\\"') + '"' for word in command
    ]
    return " ".join(words)
