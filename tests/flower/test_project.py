"""The commands that `deploy init` writes, run word for word; and a stranger who knows the address.

Really started: a SuperLink, a gateway and two nodes with keys.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.flower.deploy import network
from fedadmm.flower.deploy.keys import make_node_key
from fedadmm.flower.deploy.network import LocalNetwork
from fedadmm.flower.deploy.processes import ProcessTree, environment, free_ports
from fedadmm.flower.deploy.project import write_project
from fedadmm.flower.federation import Federation
from fedadmm.flower.server.checkpoint import ServerState
from fedadmm.study import run_dir as files

from .test_membership import sum_of

pytestmark = pytest.mark.timeout(600)


OWN_IMPORT = "from federation.my_method import Mine\n"
OWN_METHOD = """\
from dataclasses import dataclass

from fedadmm import FedADMM


@dataclass(frozen=True)
class Mine(FedADMM):
    rho: float = 0.3
"""


class Shells:
    """Runs blocks of COMMANDS.md as a person would, and ends what it left running."""

    def __init__(self, folder: Path, text: str) -> None:
        self.blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.environment = {k: v for k, v in environment(folder).items() if k != "FLWR_HOME"}
        self.running: dict[str, ProcessTree] = {}
        self.typed: dict[str, tuple[str, Path]] = {}

    def leave_running(self, name, block, folder):
        command = ["bash", "-ec", block]
        group = ProcessTree(name, command, self.logs / f"{name}.log", self.environment, folder)
        self.running[name], self.typed[name] = group, (block, folder)
        return group

    def restart(self, name):
        self.running[name].stop()
        return self.leave_running(name, *self.typed[name])

    def run(self, block, folder):
        return subprocess.run(
            ["bash", "-ec", block], cwd=folder, env=self.environment, capture_output=True,
            text=True, timeout=400, check=False,
        )  # fmt: skip

    def close(self):
        for group in self.running.values():
            group.ask_to_end()
        for group in self.running.values():
            group.stop()


def listening(port, group, timeout=60.0):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        assert group.running(), group.tail()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(group.tail())


def listeners(port):
    """The addresses on which this machine listens on a port, from the system's own table."""
    tables = (Path("/proc/net") / name for name in ("tcp", "tcp6"))
    lines = [line for t in tables if t.exists() for line in t.read_text().splitlines()[1:]]
    found = [line.split() for line in lines]
    return {row[1].partition(":")[0] for row in found if row[3] == "0A" and _port(row[1]) == port}


def _port(address):
    return int(address.partition(":")[2], 16)


def rows(path, seed):
    table = np.random.default_rng(seed).normal(size=(40, 5))
    table[:, 4] = table[:, 0] > 0
    lines = [",".join(f"{x:.4f}" for x in row) for row in table]
    path.write_text("a,b,c,d,label\n" + "\n".join(lines) + "\n")


@pytest.fixture
def project(tmp_path):
    """The first three blocks of the commands, and both sites, as written; with an own method."""
    port, _ = free_ports(2)
    made = write_project(tmp_path / "study", 2, "localhost", port=port, rounds=3, features=4)
    made.app.with_name("my_method.py").write_text(OWN_METHOD)
    text = made.app.read_text().replace("fa.FedADMM(rho=fa.PerWork(0.25))", "Mine()")
    made.app.write_text(text.replace("import torch\n", "import torch\n" + OWN_IMPORT))
    shells = Shells(tmp_path, made.commands.read_text())
    assert len(shells.blocks) == 5
    link, gateway, register, site, _ = shells.blocks
    try:
        listening(port + 1, shells.leave_running("link", link, made.server))
        listening(port, shells.leave_running("gateway", gateway, made.server))
        done = shells.run(register, made.server)
        assert done.returncode == 0, done.stdout + done.stderr
        for number, folder in enumerate(made.sites):
            rows(folder / "rows.csv", number)
            block = site.replace("partition-id=0", f"partition-id={number}")
            shells.leave_running(f"site-{number}", block, folder)
        yield made, shells, port
    finally:
        shells.close()


def as_operator(made, shells, block):
    """A block in the third shell of the server."""
    start = 'export FLWR_HOME="$PWD/flower" FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1\n'
    return shells.run(start + block, made.server)


def check_completed(made, done, rounds):
    """Both sites took part in so many rounds, and nothing of them was refused or lost."""
    summary = made.server / "run" / files.SUMMARY
    assert summary.is_file(), done.stdout[-3000:] + done.stderr[-2000:]
    assert files.read_json(summary)["code"] == "completed"
    records = files.RunDir(made.server / "run").records()
    assert [record["round"] for record in records] == list(range(1, rounds + 1))
    assert [len(record["cohort"]["clients"]) for record in records] == [2] * rounds
    assert records[-1]["work"]["penalty_mean"] == pytest.approx(0.3)  # the own method's


def test_the_written_commands_work_and_strangers_stay_outside(project, tmp_path):
    made, shells, port = project
    check_completed(made, as_operator(made, shells, shells.blocks[4]), 3)
    check_private(made)
    assert listeners(port + 1) == {"0100007F"}  # loopback and nothing else
    check_strangers(made, shells, port, tmp_path)


@pytest.mark.skipif(os.environ.get("FEDADMM_FAULTS") != "1", reason="minutes: make faults")
@pytest.mark.timeout(1200)
def test_keys_and_certificates_change_and_the_run_goes_on(project):
    """The commands of docs/deployment.md between two halves of a run; the second one is watched."""
    made, shells, port = project
    check_completed(made, as_operator(made, shells, shells.blocks[4]), 3)
    (made.server / "run" / files.SUMMARY).unlink()
    change_key(made, shells)
    change_certificates(made, shells, port)
    until_online(made, shells, 2)
    made.app.write_text(made.app.read_text().replace("ROUNDS = 4, 2, 3", "ROUNDS = 4, 2, 5"))
    watched = free_ports(1)[0]
    block = shells.blocks[4].replace(
        "--run-config ", f"--run-config 'status-port={watched} accept-nodes=true' --run-config "
    )
    seen, over = [], threading.Event()
    watcher = threading.Thread(target=watch, args=(watched, seen, over))
    watcher.start()
    try:
        done = as_operator(made, shells, block)
    finally:
        over.set()
        watcher.join()
    check_completed(made, done, 5)
    assert 4.0 in seen, seen
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", watched)) != 0


@pytest.mark.release
@pytest.mark.timeout(1200)
def test_a_site_joins_a_running_federation_and_another_leaves(project, tmp_path, monkeypatch):
    """As `add-site` and `remove-site` say; at the end the mean is that of the members' disks."""
    made, shells, _ = project
    check_completed(made, as_operator(made, shells, shells.blocks[4]), 3)

    def change(command, rounds):
        text = re.sub(r"(ROUNDS = \d+, \d+), \d+", rf"\g<1>, {rounds}", made.app.read_text())
        made.app.write_text(text)
        (made.server / "run" / files.SUMMARY).unlink()
        done = as_operator(made, shells, command)
        assert (made.server / "run" / files.SUMMARY).is_file(), done.stdout[-3000:] + done.stderr

    def told(command):
        done = shells.run(f"fedadmm deploy {command} --json", made.folder)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    added = told("add-site .")
    register, *_, run = added["commands"]  # in between, what stops a run that still trains
    site = made.folder / added["site"]
    rows(site / "rows.csv", 2)
    assert as_operator(made, shells, register).returncode == 0
    block = shells.blocks[3].replace("partition-id=0", "partition-id=2")
    shells.leave_running("site-2", block, site)
    until_online(made, shells, 3)
    change(run, 5)
    *_, run, unregister = told("remove-site . 0")["commands"]
    change(run, 7)
    seats = json.loads(shells.run("fedadmm deploy status run --json", made.server).stdout)["sites"]
    node = next(seat["node"] for seat in seats if seat["client"] == 0)
    assert as_operator(made, shells, unregister.replace("NODE", str(node))).returncode == 0
    assert list(operator(made, shells).values()).count("online") == 2
    records = files.RunDir(made.server / "run").records()
    asked = [[0, 1]] * 3 + [[0, 1, 2]] * 2 + [[1, 2]] * 2
    assert [record["cohort"]["clients"] for record in records] == asked
    layout = tmp_path / "layout"
    layout.mkdir()
    (layout / "server").symlink_to(made.server / "run")
    for client in range(3):
        (layout / f"site-{client}").symlink_to(made.folder / f"sites/client-{client}/state")
    monkeypatch.setattr(ServerState, "_compare", lambda *_: None)  # the app's own settings
    own = {"initial": torch.zeros(5), "solver": fa.SGD(lr=0.1, batch_size=20), "take_out": [0]}
    settings = Federation(fa.FedADMM(rho=0.3), 3, 7, stop=fa.Epochs(5), **own)
    held, wanted = sum_of(settings, layout, [0.0, 0.5, 0.5])
    assert float((held[0] - wanted[0]).abs().max()) < 1e-6


def until_online(made, shells, nodes, timeout=120.0):
    """A round begins with whoever is there, so both sites have to be back before it does."""
    deadline = time.monotonic() + timeout
    while list(operator(made, shells).values()).count("online") < nodes:
        assert time.monotonic() < deadline, operator(made, shells)
        time.sleep(1.0)


def change_key(made, shells):
    """The old key loses its rights, the new one gets them; the site's state stays where it is."""
    assert shells.run("fedadmm deploy rotate-key .", made.sites[0]).returncode == 0
    shutil.copy(made.sites[0] / "node-key.pub", made.server / "keys" / "client-0.pub")
    told = json.loads(shells.run("fedadmm deploy status run --json", made.server).stdout)
    node = next(site["node"] for site in told["sites"] if site["client"] == 0)
    done = as_operator(
        made,
        shells,
        f"flwr supernode unregister {node} federation\n"
        "flwr supernode register keys/client-0.pub federation --name client-0\n",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shells.restart("site-0")


def change_certificates(made, shells, port):
    """First the sites trust both authorities, then the server changes to the new one."""
    assert shells.run("fedadmm deploy rotate-certificates keys", made.server).returncode == 0
    for number, site in enumerate(made.sites):
        shutil.copy(made.server / "keys" / "next" / "ca-both.crt", site / "ca.crt")
        shells.restart(f"site-{number}")
    done = shells.run("mv keys/next/* keys/ && rmdir keys/next", made.server)
    assert done.returncode == 0, done.stderr
    listening(port + 1, shells.restart("link"))
    listening(port, shells.restart("gateway"))


def watch(port, seen, over):
    """The rounds that the server tells of while it runs."""
    while not over.wait(0.2):
        with suppress(httpx.HTTPError):
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text
            assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).json()["healthy"]
            seen.append(float(re.search(r"^fedadmm_round (\S+)$", text, re.MULTILINE)[1]))


def check_private(made):
    """Nobody else on the machine reads uploads, states or keys."""
    assert (made.server / "superlink.db").stat().st_mode & 0o077 == 0
    for folder in (made.server, made.server / "run" / "checkpoint", *made.sites):
        assert folder.stat().st_mode & 0o077 == 0, folder


def check_strangers(made, shells, port, tmp_path):
    """Only the address and the public certificate are known, as to anybody."""
    home = tmp_path / "stranger"
    home.mkdir()
    certificate = str(made.sites[0] / "ca.crt")
    config = network.connection("target", port, certificate)
    (home / "config.toml").write_text(config)
    make_node_key(home / "own")
    before = operator(made, shells)
    assert len(before) == 2
    attempts = [
        ["flwr", "supernode", "ls", "target", "--format", "json"],
        ["flwr", "ls", "target", "--format", "json"],
        network.register(str(home / "own.pub"), "target", "client-0"),
        network.run(str(made.folder / "app"), "target", {"run-dir": str(home / "run")}),
    ]
    for attempt in attempts:
        done = subprocess.run(
            attempt, cwd=home, env=shells.environment | {"FLWR_HOME": str(home)},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode != 0 or '"success": false' in done.stdout, (attempt, done.stdout)
    trusted = ssl.create_default_context(cafile=certificate)
    paths = ["control/list-nodes", "runtime/acquire-task", "fleet/../control/list-nodes"]
    paths += ["fleet/%2e%2e/control/list-nodes", "fleet/x/y", "fleet//v1/control/list-nodes"]
    with httpx.Client(verify=trusted, base_url=f"https://localhost:{port}") as client:
        for path in paths:
            assert client.post(f"/v1/{path}").status_code == 404, path
        assert client.get("/docs").status_code == 404
        assert client.get("/v1/fleet/pull-messages").status_code == 404
        unsigned = client.post("/v1/fleet/pull-messages")
        assert 400 <= unsigned.status_code < 500
    assert operator(made, shells) == before
    assert not (home / "run").exists()


def operator(made, shells):
    """The nodes that the SuperLink knows, asked on its own machine."""
    env = shells.environment | {"FLWR_HOME": str(made.server / "flower")}
    done = subprocess.run(
        ["flwr", "supernode", "ls", "federation", "--format", "json"], cwd=made.server, env=env,
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return {node["node-id"]: node["status"] for node in json.loads(done.stdout)["nodes"]}


def test_a_folder_called_like_the_connection_disturbs_nothing(tmp_path, monkeypatch):
    """A clone of this repository beside the run is a folder `fedadmm` with a pyproject.toml."""
    clone = tmp_path / "here" / "fedadmm"
    clone.mkdir(parents=True)
    (clone / "pyproject.toml").write_text('[project]\nname = "fedadmm"\nversion = "0"\n')
    monkeypatch.chdir(clone.parent)
    with LocalNetwork(Path("network").resolve(), [{"state-dir": "x"}], tls=True) as network:
        network.start_link()
        network.register(0)
        found = json.loads(network.flwr("supernode", "ls", "fedadmm", "--format", "json"))
        assert len(found["nodes"]) == 1
        assert os.stat("network/superlink.db").st_mode & 0o077 == 0
