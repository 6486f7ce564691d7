"""Watching a server from its own machine, and new keys for a deployment that goes on."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import threading

import httpx
import pytest
from typer.testing import CliRunner

import fedadmm as fa
from fedadmm.cli import app
from fedadmm.core.errors import ConfigError, ParameterError
from fedadmm.flower.deploy.keys import (
    Certificates,
    make_certificates,
    make_node_key,
    rotate_certificates,
    rotate_node_key,
)
from fedadmm.flower.deploy.processes import free_ports
from fedadmm.flower.server.server_app import RunMonitor, StatusEndpoint

from .harness import FakeGrid, federation, run_through

pytestmark = pytest.mark.usefixtures("quick")


def numbers(text):
    """The samples of an exposition, by name and labels."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in lines:
        assert re.fullmatch(r'fedadmm_[a-z_]+(\{[a-z]+="\w+"(,[a-z]+="\w+")*\})? \S+', line), line
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_health_and_metrics_tell_what_the_rounds_brought(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=4, evaluate_every=4)
    grid = FakeGrid(settings, tmp_path)
    watched, port = RunMonitor(settings), free_ports(1)[0]

    def act(report):
        grid.offline = {3} if report.record["round"] >= 2 else set()
        watched(report)

    with StatusEndpoint(port, watched), httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        history = run_through(settings, grid, tmp_path, act)
        health = client.get("/health")
        assert (health.status_code, health.json()["round"]) == (200, 4)
        found = numbers(client.get("/metrics").text)
        assert client.get("/metrics/../x").status_code == 404
        assert client.post("/health").status_code == 501
    sent = sum(record["traffic"]["bytes_up"] for record in history.records)
    assert found["fedadmm_received_bytes_total"] == sent
    assert (found["fedadmm_round"], found["fedadmm_participants"]) == (4, 3)
    assert found['fedadmm_client_last_round{client="3"}'] == 2
    assert found['fedadmm_client_events_total{client="3",reason="missing"}'] == 2
    assert found["fedadmm_loss"] == history.records[-1]["metrics"]["loss"]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_server_without_rounds_for_too_long_is_not_healthy(monkeypatch):
    settings = federation(fa.FedADMM(rho=1.0))
    now = [0.0]
    monkeypatch.setattr("fedadmm.flower.server.server_app.clock.now", lambda: now[0])
    watched = RunMonitor(settings)
    limit = settings.patience.start + 2 * settings.patience.round
    for now[0], healthy in ((limit - 1, True), (limit + 1, False)):
        assert watched.health()["healthy"] is healthy


def test_a_port_that_is_taken_or_is_none_is_named():
    watched = RunMonitor(federation(fa.FedADMM(rho=1.0)))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"status-port is {port}, but nothing can listen"):
            StatusEndpoint(port, watched)
    with pytest.raises(ParameterError, match="status-port: got 70000, expected"):
        StatusEndpoint(70000, watched)


def test_a_new_node_key_replaces_the_old_one(tmp_path):
    make_node_key(tmp_path / "node-key")
    before = (tmp_path / "node-key").read_bytes()
    (tmp_path / "state").mkdir()
    made = rotate_node_key(tmp_path)
    assert made.private.read_bytes() != before
    assert made.private.stat().st_mode & 0o077 == 0
    derived = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(made.private)], capture_output=True, text=True, check=False
    ) if _has_ssh() else None  # fmt: skip
    if derived is not None:
        assert derived.stdout.split()[:2] == made.public.read_text().split()[:2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node-key", "node-key.pub", "state"]
    with pytest.raises(ConfigError, match="there is no node-key in it"):
        rotate_node_key(tmp_path / "state")


def _has_ssh():
    import shutil

    return shutil.which("ssh-keygen") is not None


def test_sites_that_trust_both_authorities_notice_no_change_of_certificates(tmp_path):
    """Real TLS: before and after the change with both, and not with the old one alone."""
    now = make_certificates(tmp_path, ["localhost", "127.0.0.1"])
    old = tmp_path / "old.crt"
    old.write_bytes(now.authority.read_bytes())
    made = rotate_certificates(tmp_path)
    later = Certificates.in_folder(tmp_path / "next")
    assert later.key.stat().st_mode & 0o077 == 0
    for server, trusted, welcome in (
        (now, made.public, True),
        (later, made.public, True),
        (later, later.authority, True),
        (later, old, False),
        (now, later.authority, False),
    ):
        assert shakes_hands(server, trusted) is welcome
    with pytest.raises(ConfigError, match="is there already"):
        rotate_certificates(tmp_path)
    done = CliRunner().invoke(app, ["deploy", "rotate-certificates", str(tmp_path / "next")])
    assert done.exit_code == 0, done.output


def shakes_hands(server, trusted):
    """Whether a client that trusts an authority takes a server for what it says it is."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(server.certificate, server.key)
    theirs = ssl.create_default_context(cafile=str(trusted))
    left, right = socket.socketpair()

    def answer():
        try:
            ours.wrap_socket(left, server_side=True).close()
        except (ssl.SSLError, OSError):
            left.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        theirs.wrap_socket(right, server_hostname="localhost").close()
        return True
    except ssl.SSLError:
        return False
    finally:
        right.close()
        thread.join()
