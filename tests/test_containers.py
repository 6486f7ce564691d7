"""The image and the compose file, as far as they can be looked at without a Docker daemon."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

pytest.importorskip("flwr", reason="the commands of a deployment are those of Flower")

from fedadmm.flower.local.project import write_project

ROOT = Path(__file__).parents[1]
SERVICES = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]


def words(service: str) -> list[str]:
    return shlex.split(SERVICES[service]["command"])


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The lines of COMMANDS.md for the same federation."""
    folder = tmp_path_factory.mktemp("deployment") / "study"
    text = write_project(folder, 2, "gateway", port=9443, rounds=5, features=3).commands.read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line.replace("$PWD", "/site")) for line in lines if "<<" not in line]


@pytest.mark.parametrize("service", ["superlink", "gateway", "site-0"])
def test_a_container_runs_what_a_machine_would(service: str, told: list[list[str]]) -> None:
    assert words(service) in told


def test_the_sites_differ_in_their_number_alone() -> None:
    first, second = (yaml.safe_dump(SERVICES[f"site-{i}"]) for i in (0, 1))
    assert first != second
    changed = first.replace("client-0", "client-1").replace("partition-id=0", "partition-id=1")
    assert changed == second


def test_the_operator_says_what_the_commands_say(told: list[list[str]]) -> None:
    script = SERVICES["operator"]["command"][2].replace("$$PWD", "/site")
    (run,) = [line for line in told if line[:2] == ["flwr", "run"]]
    assert shlex.split(script.strip().splitlines()[-1]) == run
    (register,) = [line for line in told if line[:3] == ["flwr", "supernode", "register"]][:1]
    assert " ".join(register[:3]) in script


def test_the_superlink_is_out_of_the_sites_reach() -> None:
    assert SERVICES["superlink"]["ports"] == ["9443:9443"]
    assert words("superlink")[1:3] == ["--host", "127.0.0.1"]
    for service in ("gateway", "operator"):
        assert SERVICES[service]["network_mode"] == "service:superlink"


def test_the_image_copies_what_is_there_and_not_ignored() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text()
    allowed = set(re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    copied = [line.split()[1:-1] for line in re.findall(r"^COPY (?!--from).*", text, re.MULTILINE)]
    names = {name.removeprefix("./") for line in copied for name in line}
    assert names == {"pyproject.toml", "README.md", "LICENSE", "src", "constraints.txt"}
    assert names == allowed
    assert all((ROOT / name).exists() for name in names)
    assert text.index("USER fedadmm") < text.index("CMD")
