"""Really started: equality with `simulate`, a sequence of faults, and who is not let in."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
import torch
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from typer.testing import CliRunner

from fedadmm.cli import app
from fedadmm.core.codec import read_checksummed
from fedadmm.flower.deploy.keys import make_certificates, make_node_key
from fedadmm.flower.deploy.processes import free_ports
from fedadmm.flower.deploy.project import app_hash
from fedadmm.flower.site.policy import POLICY
from fedadmm.study.run_dir import RunDir

from .harness import check_invariant, records_on_disk, server_on_disk
from .real import Stage, nothing_left, result, simulated

pytestmark = pytest.mark.timeout(900)
SLOW = {"round_timeout": 300.0, "resend_after": 150.0}
"""Patience for machines with other things to do: nobody may be left out by haste."""
NAMES = ("fedavg", "scaffold", "fedadmm", "fedadmm-insa", "feddr", "ditto", "layers")


def equal_to_simulate(stage, names):
    """Run methods one after the other, each of which must end in the model of its simulation."""
    run = stage.run(algorithms=",".join(names), rounds=2, cohort=2, named=True, **SLOW)
    stage.ground.wait(run, 600)
    for name in names:
        settings = stage.module.federation(name, clients=3, rounds=2, cohort=2)
        assert stage.finished(name), run.tail(40)
        wanted = simulated(stage, settings)
        assert torch.allclose(result(stage, name), wanted.params, rtol=0, atol=1e-6)
        stage.name = name
        records = records_on_disk(settings, stage.layout())
        for client in wanted.clients:
            kept = wanted.clients.record(client).memory
            assert (kept is None) == (name not in stage.module.PERSONAL)
            for ours, theirs in zip(kept or (), records[client].memory or (), strict=True):
                assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)


def test_with_tls_and_keys_equal_to_simulate(tmp_path):
    stage = Stage(tmp_path, clients=3, tls=True)
    with stage.ground as ground:
        ground.start()
        equal_to_simulate(stage, ["fedadmm-insa"])
    nothing_left(stage)


CHANGED = """
import sys
if "flwr.supernode.runtime.run_clientapp" in sys.modules:  # in a process of a site
    (PLAN / "ran-at-a-site").write_text("")
"""


@pytest.mark.release
def test_a_changed_app_runs_at_no_site_that_pins_another_one(tmp_path):
    """The server gets an error reply with both hashes; the app's code is not even imported."""
    stage = Stage(tmp_path, clients=3, tls=False)
    pinned = app_hash(stage.app)
    for client in range(3):
        (tmp_path / f"site-{client}").mkdir()
        (tmp_path / f"site-{client}" / POLICY).write_text(f'apps = ["{pinned}"]')
    with stage.ground as ground:
        ground.start()
        ground.wait(stage.run(algorithms="fedavg", rounds=2, **SLOW), 300)
        assert [r["cohort"]["clients"] for r in stage_records(stage, "fedavg")] == [[0, 1, 2]] * 2
        assert acquire_without_secret(ground._node_ports[0]) in (401, 403)
        module = stage.app / "faulty" / "app.py"
        module.write_text(module.read_text() + CHANGED)
        changed = app_hash(stage.app)
        assert changed != pinned
        run = stage.run(algorithms="fedadmm", rounds=1, round_timeout=20.0, start=20.0)
        ground.wait(run, 300)
        assert not stage.finished("fedadmm")
        text = run.log.read_text()
        assert changed in text
        assert pinned in text
        assert not (stage.plan / "ran-at-a-site").exists()
    nothing_left(stage)


def stage_records(stage, name):
    stage.name = name
    return stage.records()


def acquire_without_secret(port):
    """The status with which a node answers whoever asks for a task and has no secret."""
    client = RuntimeHttpClient.from_server_address(
        server_address=f"127.0.0.1:{port}",
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
    )
    try:
        with pytest.raises(httpx.HTTPStatusError) as raised:
            client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
    finally:
        client.close()
    return raised.value.response.status_code


@pytest.mark.release
def test_methods_are_equal_to_simulate_and_closed_to_strangers(tmp_path):
    stage = Stage(tmp_path, clients=3, tls=True)
    with stage.ground as ground:
        ground.start()
        equal_to_simulate(stage, NAMES)
        before = nodes(ground)
        for how, stranger in strangers(stage, tmp_path).items():
            group = stranger()
            assert refused(group, ground, before), (how, group.tail())
            group.stop()
    nothing_left(stage)
    for log in (tmp_path / "ground" / "logs").iterdir():
        assert "PRIVATE KEY" not in log.read_text("utf-8", "replace")


def nodes(ground):
    """Everybody whom the SuperLink has ever let in."""
    found = json.loads(ground.flwr("supernode", "ls", "fedadmm", "--format", "json"))["nodes"]
    return {node["node-id"] for node in found}


def strangers(stage, folder):
    """A node without a registered key, one that trusts another authority, one without TLS."""
    ground = stage.ground
    port = free_ports(1)[0]
    other = make_certificates(folder / "other", ["127.0.0.1"])
    make_node_key(folder / "stranger")
    base = ["flower-supernode", "--superlink", f"127.0.0.1:{ground.port}", "--host", "127.0.0.1"]
    base += ["--port", str(port), "--max-retries", "1", "--node-config", "partition-id=0"]
    trusted = ["--root-certificates", str(ground.certificates.authority)]
    foreign = ["--root-certificates", str(other.authority)]
    unknown = ["--auth-supernode-private-key", str(folder / "stranger")]
    known = ["--auth-supernode-private-key", str(ground.key(0))]
    return {
        "unregistered key": lambda: ground._launch("stranger", base + trusted + unknown),
        "no key": lambda: ground._launch("stranger", base + trusted),
        "another authority": lambda: ground._launch("stranger", base + foreign + known),
        "no TLS": lambda: ground._launch("stranger", [*base, "--insecure"]),
    }


def refused(group, ground, before):
    """It gives up or stays outside; nobody new was let in."""
    deadline = time.monotonic() + 15
    while group.running() and time.monotonic() < deadline:
        time.sleep(0.2)
    return nodes(ground) == before


@pytest.mark.release
def test_a_sequence_of_faults_loses_nothing(tmp_path):
    """Nodes, client apps, server and disk die at chosen points, some of them at once."""
    stage = Stage(tmp_path, clients=3, tls=False)
    stage.sabotage("client-1.round-1.after-commit", "group")
    stage.sabotage("server.round-3.before-checkpoint")
    stage.sabotage("client-2.round-3.before-commit", "group")
    stage.sabotage("server.round-4.after-checkpoint")

    def wipe_after_five():
        if len(stage.records()) < 5:
            return False
        stage.wipe(0)
        return True

    with stage.ground as ground:
        ground.start()
        starts = stage.play(800, wipe_after_five, rounds=7, ledger="disk", **SLOW)
    nothing_left(stage)
    assert len(stage.happened()) == 4
    assert starts == 3
    settings = stage.module.federation("fedadmm", clients=3, rounds=7, ledger="disk")
    check_invariant(settings, stage.layout())
    records = stage.records()
    assert [record["round"] for record in records] == list(range(1, 8))
    assert stage.summary()["network"]["repaired"] == 1
    entry = server_on_disk(settings, stage.layout()).ledger.entry(0)
    assert entry.incarnation == 1


@pytest.mark.release
def test_masked_hospitals_leave_the_server_nothing_but_sums(tmp_path):
    """Real sites with keys and noise: what waits on their disks is in no file of the server."""
    out = tmp_path / "run"
    given = {"aggregator.name": "masked-sum", "pipeline": '[{name="clip", norm=1.0}]'}
    given |= {"local.solver.name": "dp-sgd", "local.solver.lr": 0.1, "local.solver.batch_size": 20}
    given |= {"local.solver.clip": 1, "local.solver.multiplier": 1.5, "local.solver.delta": 1e-4}
    sets = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    base = ["deploy", "local", "hospitals", "--clients", "4", "--tls", "--rounds", "2"]
    done = CliRunner().invoke(app, [*base, *sets, "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    records = RunDir(out).records()
    assert [record["cohort"]["clients"] for record in records] == [[0, 1, 2, 3]] * 2
    assert records[-1]["network"]["sites"]["answered"] == 4
    held = [*(out / "deployment" / "sites").rglob("held-*.safetensors")]
    words = [read_checksummed(path).tensors["words"].numpy().tobytes() for path in held]
    assert len(words) == 8
    files = [path for path in out.rglob("*") if path.is_file() and "sites" not in path.parts]
    assert "superlink.db" in {path.name for path in files}
    everything = b"".join(path.read_bytes() for path in files)
    assert not any(word[:32] in everything for word in words)
    assert b"fedadmm.share" in everything  # what travelled is there to be found


@pytest.mark.release
def test_sites_that_die_around_a_masked_sum_lose_nothing(tmp_path):
    """Before they are ready, after it, and after they masked: each in a round of its own."""
    stage = Stage(tmp_path, clients=4, tls=False)
    stage.sabotage("client-1.round-0.before-commit", "group")
    stage.sabotage("client-2.round-1.after-commit", "group")
    stage.sabotage("client-3.round-2.after-masking", "group")
    with stage.ground as ground:
        ground.start()
        stage.play(900, rounds=4, cohort=4, masked=True)
    nothing_left(stage)
    assert len(stage.happened()) == 3
    records = stage.records()
    trace = [list(record["cohort"]["clients"]) for record in records]
    settings = stage.module.federation("fedadmm", clients=4, rounds=len(records), cohort=4)
    assert len(trace[-1]) == 4
    wanted = simulated(stage, settings, trace).params
    assert torch.allclose(result(stage, "fedadmm"), wanted, rtol=0, atol=2e-6)


@pytest.mark.release
def test_real_sites_answer_no_set_that_is_not_right(tmp_path):
    """A lying server gets words for one set of each upload; then too few sites are left."""
    stage = Stage(tmp_path, clients=4, tls=False)
    stage.sabotage("server.lies")
    with stage.ground as ground:
        ground.start()
        ground.wait(stage.run(rounds=3, cohort=4, masked=True, **SLOW), 800)
        told = json.loads((stage.plan / "told.json").read_text())
        ledgers = {c: left(stage, c) for c in range(4)}
        for client in (2, 3):
            ground.group(f"client-{client}").kill()
        few = {"run_dir": str(tmp_path / "few"), "rounds": 1, "cohort": 4, "masked": True}
        ground.wait(stage.run(**few, **SLOW), 800)
        said = ground.group("run").tail(60)
    nothing_left(stage)
    words = {
        "a set of two": "the set has 2 sites, but this site requires at least 3",
        "a set without the site": "the set lacks the key that this site created",
        "a key of the server's own": "is not signed by the identity that this site has of it",
        "a key of an earlier round": "is not signed by the identity that this site has of it",
        "a member dropped": "this upload was released for another set",
    }
    assert told.keys() == words.keys()
    for name, found in told.items():
        assert found["answered"] == [], name
        assert found["refused"].keys() == {"0", "1", "2", "3"}, name
        assert all(words[name] in reason for reason in found["refused"].values()), found
    assert [record["cohort"]["clients"] for record in stage.records()] == [[0, 1, 2, 3]] * 3
    settings = stage.module.federation("fedadmm", clients=4, rounds=3, cohort=4)
    wanted = simulated(stage, settings).params
    assert torch.allclose(result(stage, "fedadmm"), wanted, rtol=0, atol=2e-6)
    for client, lines in ledgers.items():  # one upload a round left, whatever the server asked
        assert [line["kind"] for line in lines].count("masked") == 3, client
    assert "no client returned an update in 3 rounds in a row" in said, said
    for client in (0, 1):  # they were ready, and sent nothing
        assert left(stage, client)[len(ledgers[client]) :], client
        assert "masked" not in {
            line["kind"] for line in left(stage, client)[len(ledgers[client]) :]
        }


def left(stage, client):
    """What a site's own ledger says that it sent."""
    path = stage.folder / f"site-{client}" / f"ledger_{client}" / "left.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line]


@pytest.mark.release
@pytest.mark.parametrize("masked", [True, False], ids=["masked", "plain"])
def test_the_memory_of_a_real_server_holds_no_single_upload(masked, tmp_path):
    """All readable memory of the server's processes while it holds what the sites sent.

    Without masks the same search finds the uploads.
    """
    stage = Stage(tmp_path, clients=3, tls=False)
    stage.sabotage("tell-secrets")
    point = "server.before-sum" if masked else "server.round-1.before-fold"
    stage.sabotage(point, "nobody")
    with stage.ground as ground:
        ground.start()
        run = stage.run(rounds=1, cohort=3, masked=masked, **SLOW)
        deadline = time.monotonic() + 600
        while f"{point}.happened" not in stage.happened():
            assert time.monotonic() < deadline, run.tail(30)
            time.sleep(0.1)
        secrets = {path.name: path.read_bytes() for path in stage.plan.glob("*.secret")}
        found = {name for pid in server_processes(ground) for name in search(pid, secrets)}
        ground.wait(run, 300)
    kinds = {"message", "words", "key", "sent"} if masked else {"message"}
    assert {name.split("-")[0] for name in secrets} == kinds
    seen = {tuple(name.split("-")[:2]) for name in found}
    assert seen == {("sent" if masked else "message", str(client)) for client in range(3)}


def server_processes(ground):
    """The SuperLink, and the server's app below it."""
    link = psutil.Process(ground.group("superlink").recorded().group)
    return [link.pid, *(one.pid for one in link.children(recursive=True))]


def search(pid, secrets):
    """The secrets that a process's memory holds."""
    found = set()
    try:
        memory = open(f"/proc/{pid}/mem", "rb", buffering=0)  # noqa: SIM115
    except PermissionError:
        pytest.skip("this system lets nobody read another process's memory")
    with memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, _, _, inode, *_ = line.split()
            if not rights.startswith("rw") and inode != "0":
                continue  # what no process can have written
            begin, end = (int(side, 16) for side in span.split("-"))
            with suppress(OSError, ValueError, OverflowError):
                memory.seek(begin)
                data = memory.read(end - begin)
                found |= {name for name, secret in secrets.items() if secret in data}
    return found
