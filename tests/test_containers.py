"""The image, the compose file and the manifests, as far as no daemon and no cluster is needed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

pytest.importorskip("flwr", reason="the commands of a deployment are those of Flower")

from fedadmm.flower.deploy.project import write_project

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
    build = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "src"}
    assert names == build | {"constraints.txt"}
    assert names == allowed
    assert all((ROOT / name).exists() for name in names)
    assert text.index("USER fedadmm") < text.index("CMD")


MANIFESTS = {
    (one["kind"], one["metadata"]["name"]): one
    for one in yaml.safe_load_all((ROOT / "docker" / "kubernetes.yaml").read_text())
}
PODS = {
    name: one["spec"]["template"]["spec"]
    for (kind, name), one in MANIFESTS.items()
    if kind == "Deployment"
}


@pytest.mark.parametrize(
    ("pod", "container"), [("server", "superlink"), ("server", "gateway"), ("site-0", "node")]
)
def test_a_pod_runs_what_a_machine_would(pod: str, container: str, told: list[list[str]]) -> None:
    (found,) = [one for one in PODS[pod]["containers"] if one["name"] == container]
    parted = [word.split("=", 1) if word.startswith("--") else [word] for word in found["command"]]
    flat = [part.replace("/site/keys/", "/site/") for parts in parted for part in parts]
    assert flat in told


def test_manifests_name_only_what_they_hold_or_their_head_makes() -> None:
    """Secrets and the app are made by commands at the top of the file; all else is in the file."""
    text = (ROOT / "docker" / "kubernetes.yaml").read_text()
    made = set(re.findall(r"kubectl create (secret generic|configmap) (\S+)", text))
    made |= {("configmap", name) for kind, name in MANIFESTS if kind == "ConfigMap"}
    assert PODS.keys() == {"server", "site-0", "site-1"}
    for (kind, name), one in MANIFESTS.items():
        versions = {"Deployment": "apps/v1"}
        assert one["apiVersion"] == versions.get(kind, "v1"), name
    for name, pod in PODS.items():
        spec = MANIFESTS["Deployment", name]["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"] == labels
        assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert claim == name  # a claim for each site, and one for the server
                assert ("PersistentVolumeClaim", claim) in MANIFESTS
            elif "secret" in volume:
                assert ("secret generic", volume["secret"]["secretName"]) in made
                assert volume["secret"]["defaultMode"] == 0o440
            else:
                assert ("configmap", volume["configMap"]["name"]) in made
        assert pod["securityContext"]["runAsNonRoot"]
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
    service = MANIFESTS["Service", "gateway"]["spec"]
    assert service["selector"] == {"app": "server"}
    ports = [p for c in PODS["server"]["containers"] for p in c.get("ports", ())]
    assert ports == [{"name": service["ports"][0]["targetPort"], "containerPort": 9443}]
    first, second = (yaml.safe_dump(PODS[f"site-{number}"]) for number in (0, 1))
    assert first.replace("site-0", "site-1").replace("id=0", "id=1") == second


def test_the_operators_scripts_say_what_the_commands_say(told: list[list[str]]) -> None:
    scripts = MANIFESTS["ConfigMap", "operator"]["data"]
    (run,) = [line for line in told if line[:2] == ["flwr", "run"]]
    last = scripts["run.sh"].replace("$PWD", "/site").strip().splitlines()[-1]
    assert shlex.split(last) == run
    assert "flwr supernode register" in scripts["register.sh"]
    compose = SERVICES["operator"]["command"][2].replace("$$", "$")
    assert compose.startswith(scripts["register.sh"])
