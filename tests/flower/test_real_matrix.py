"""The exhaustive matrix with real processes: `make faults`, about half an hour.

One fault a case (or two), FedADMM, three clients, four rounds.  After each: nothing folded twice
or lost, the server's mean is that of the clients' disks, and the model is that of a fault-free
run with the same participation.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter

import pytest
import torch
from typer.testing import CliRunner

from fedadmm.cli import app
from fedadmm.core.privacy import Accountant

from .harness import check_invariant, check_versions
from .real import Stage, nothing_left, result, simulated

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        os.environ.get("FEDADMM_FAULTS") != "1", reason="the exhaustive matrix: make faults"
    ),
]
ROUNDS = 4

DEATHS = {
    "client app dies before commit": [("client-1.round-1.before-commit", "me")],
    "client app dies between commit and reply": [("client-1.round-1.after-commit", "me")],
    "node dies before commit": [("client-1.round-1.before-commit", "group")],
    "node dies between commit and reply": [("client-1.round-1.after-commit", "group")],
    "server dies before push": [("server.round-2.before-push", "me")],
    "server dies after push": [("server.round-2.after-push", "me")],
    "server dies before fold": [("server.round-2.before-fold", "me")],
    "server dies before checkpoint": [("server.round-2.before-checkpoint", "me")],
    "server dies after checkpoint": [("server.round-2.after-checkpoint", "me")],
    "node after commit, server before checkpoint": [
        ("client-1.round-1.after-commit", "group"),
        ("server.round-2.before-checkpoint", "me"),
    ],
    "two nodes at once": [
        ("client-1.round-1.before-commit", "group"),
        ("client-2.round-1.after-commit", "group"),
    ],
}


def finish(stage, *actions, rounds=ROUNDS, **config):
    with stage.ground as ground:
        ground.start()
        stage.play(1000, *actions, rounds=rounds, **config)
    nothing_left(stage)
    settings = stage.module.federation("fedadmm", clients=3, rounds=rounds, **_ledger(config))
    trace = [list(record["cohort"]["clients"]) for record in stage.records()]
    check_invariant(settings, stage.layout())
    print("participation", trace, "network", stage.summary()["network"])
    return settings, trace


def _ledger(config):
    return {"ledger": config["ledger"]} if "ledger" in config else {}


def equal(stage, settings, trace):
    check_versions(settings, stage.layout(), trace)
    wanted = simulated(stage, settings, trace).params
    assert torch.allclose(result(stage, "fedadmm"), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", DEATHS)
def test_deaths(case, tmp_path):
    stage = Stage(tmp_path, clients=3, tls=False)
    for point, who in DEATHS[case]:
        stage.sabotage(point, who)
    settings, trace = finish(stage, round_timeout=300.0, resend_after=150.0)
    assert len(stage.happened()) == len(DEATHS[case])
    assert trace == [[0, 1, 2]] * ROUNDS
    equal(stage, settings, trace)


def test_replies_come_twice(tmp_path):
    """While a slow client holds the round open, the others answer the copies of their tasks."""
    stage = Stage(tmp_path, clients=3, tls=False)
    stage.sabotage("client-2.round-1.before-commit", "nobody")
    settings, trace = finish(stage, round_timeout=300.0, resend_after=10.0)
    assert stage.summary()["network"]["duplicate"] > 0
    equal(stage, settings, trace)


def after(stage, rounds, action):
    def look():
        if len(stage.records()) < rounds:
            return False
        action()
        return True

    return look


def test_a_client_app_dies_after_its_reply(tmp_path):
    """Its node is ended between two rounds, when the reply is out and the state committed."""
    stage = Stage(tmp_path, clients=3, tls=False)
    kill = after(stage, 2, lambda: stage.ground.group("client-1").kill())
    settings, trace = finish(stage, kill, round_timeout=300.0, resend_after=150.0)
    equal(stage, settings, trace)


def test_the_superlink_restarts(tmp_path):
    stage = Stage(tmp_path, clients=3, tls=False)
    settings, trace = finish(
        stage, after(stage, 2, stage.restart_link), round_timeout=300.0, resend_after=150.0
    )
    equal(stage, settings, trace)


def test_a_client_is_away_for_rounds(tmp_path):
    stage = Stage(tmp_path, clients=3, tls=False)

    def leave():
        stage.away.add("client-1")
        stage.ground.group("client-1").stop()

    back = after(stage, 3, lambda: stage.away.discard("client-1"))
    settings, trace = finish(
        stage, after(stage, 1, leave), back, rounds=8, round_timeout=60.0, resend_after=150.0
    )
    assert 1 in trace[0]
    assert 1 not in trace[1]
    assert 1 in trace[-1]
    equal(stage, settings, trace)


def test_a_disk_is_wiped_and_repaired(tmp_path):
    stage = Stage(tmp_path, clients=3, tls=False)
    wipe = after(stage, 2, lambda: stage.wipe(1))
    finish(stage, wipe, ledger="disk", round_timeout=300.0, resend_after=150.0)
    assert stage.summary()["network"]["repaired"] == 1


def test_a_disk_is_wiped_and_quarantined(tmp_path):
    stage = Stage(tmp_path, clients=3, tls=False)
    wipe = after(stage, 2, lambda: stage.wipe(1))
    with stage.ground as ground:
        ground.start()
        stage.play(1000, wipe, rounds=ROUNDS, round_timeout=300.0, resend_after=150.0)
    nothing_left(stage)
    assert stage.summary()["network"]["lost"] >= 1
    assert [record["cohort"]["clients"] for record in stage.records()][-1] == [0, 2]


def test_a_server_restored_from_a_backup(tmp_path):
    """Its folder is that of round 2, the sites have seen round 5: named, then accepted."""
    stage = Stage(tmp_path, clients=3, tls=False)
    folder, backup = tmp_path / "server", tmp_path / "backup"
    patience = {"ledger": "disk", "round_timeout": 300.0, "resend_after": 150.0}

    def run(**config):
        group = stage.run(**patience, **config)
        stage.ground.wait(group, 600)
        return group.tail(200)

    with stage.ground as ground:
        ground.start()
        run(rounds=2)
        (folder / "fedadmm" / "summary.json").unlink()
        shutil.copytree(folder, backup)
        run(rounds=5)
        assert [record["round"] for record in stage.records()] == [1, 2, 3, 4, 5]
        shutil.rmtree(folder)
        backup.rename(folder)
        text = run(rounds=5)
        assert not stage.finished()
        assert "3 clients are ahead of this server" in text, text
        assert [record["round"] for record in stage.records()] == [1, 2]
        run(rounds=5, accept_rollback=True)
    nothing_left(stage)
    assert stage.summary()["code"] == "completed"
    assert stage.summary()["network"]["repaired"] == 3
    assert [record["cohort"]["clients"] for record in stage.records()] == [[0, 1, 2]] * 5
    settings = stage.module.federation("fedadmm", clients=3, rounds=5, ledger="disk")
    check_invariant(settings, stage.layout())


LIES = {
    "shape": "shape",
    '{"info.drift": 1e200}': "range",
    "nan": "finite",
    '{"info.weight": NaN}': "range",
    '{"info.weight": 1e300}': "range",
    f'{{"info.solve.steps": {10**400}}}': "range",
}
"""What one site sends, one lie a round, and the word by which it is refused."""


def test_messages_that_ended_a_server_cost_only_their_sender(tmp_path):
    """A shape whose sides cannot be multiplied, NaN, absurd numbers, from one of three sites."""
    stage = Stage(tmp_path, clients=3, tls=False)
    for number, lie in enumerate(LIES):
        stage.sabotage(f"client-1.round-{number}.lie", lie)
    rounds = len(LIES) + 2
    settings, trace = finish(stage, rounds=rounds, round_timeout=300.0, resend_after=150.0)
    assert len(stage.happened()) == len(LIES)
    assert trace == [[0, 2]] * len(LIES) + [[0, 1, 2]] * 2
    assert stage.summary()["network"] == Counter(LIES.values())
    equal(stage, settings, trace)


def test_records_that_a_power_cut_took_leave_a_gap(tmp_path):
    """The server is killed after a checkpoint; half a record, no event and half a file are left."""
    stage = Stage(tmp_path, clients=3, tls=False)
    death = "server.round-2.after-checkpoint"
    stage.sabotage("client-1.round-0.lie", "nan")
    stage.sabotage(death)
    folder = tmp_path / "server" / "fedadmm"
    metrics, events = folder / "metrics.jsonl", folder / "events.jsonl"
    unfinished = folder / "checkpoint" / "server.safetensors.1.tmp"
    patience = {"rounds": ROUNDS, "round_timeout": 300.0, "resend_after": 150.0}
    with stage.ground as ground:
        ground.start()
        stage.until(600, death, **patience)
        metrics.write_bytes(metrics.read_bytes()[:40])
        events.write_bytes(bytes(events.stat().st_size))
        unfinished.write_bytes((folder / "checkpoint" / "server.safetensors").read_bytes()[:40])
        stage.play(1000, **patience)
    nothing_left(stage)
    assert [record["round"] for record in stage.records()] == [3, 4]
    assert events.read_bytes() == b""
    assert not unfinished.exists()
    settings = stage.module.federation("fedadmm", clients=3, rounds=ROUNDS)
    check_invariant(settings, stage.layout())
    equal(stage, settings, [[0, 2], *[[0, 1, 2]] * (ROUNDS - 1)])


def test_a_run_does_not_go_on_with_other_weights_or_another_start(tmp_path):
    stage = Stage(tmp_path, clients=3, tls=False)
    patience = {"round_timeout": 300.0, "resend_after": 150.0}

    def run(**config):
        group = stage.run(**patience, **config)
        stage.ground.wait(group, 600)
        return group.tail(200)

    with stage.ground as ground:
        ground.start()
        run(rounds=2)
        (tmp_path / "server" / "fedadmm" / "summary.json").unlink()
        for changed, name in (({"weight": 2.0}, "weights"), ({"start": 1.0}, "initial")):
            text = run(rounds=4, **changed)
            assert f"holds another run, which differs in {name}" in text, text
            assert not stage.finished()
        run(rounds=4)
    nothing_left(stage)
    assert [record["cohort"]["clients"] for record in stage.records()] == [[0, 1, 2]] * 4
    settings = stage.module.federation("fedadmm", clients=3, rounds=4)
    check_invariant(settings, stage.layout())
    equal(stage, settings, [[0, 1, 2]] * 4)


def test_asynchronous_steps_with_real_processes(tmp_path):
    stage = Stage(tmp_path, clients=3, tls=False)
    stage.sabotage("server.round-2.after-checkpoint")
    with stage.ground as ground:
        ground.start()
        stage.play(
            1000,
            algorithms="async-feddr",
            rounds=8,
            mode="asynchronous",
            round_timeout=300.0,
            resend_after=150.0,
        )
    nothing_left(stage)
    settings = stage.module.federation("async-feddr", clients=3, rounds=8, mode="asynchronous")
    check_invariant(settings, stage.layout())


def test_hospitals_hide_their_patients_from_the_command_on(tmp_path):
    """Real sites with keys make noised steps, each counts its own, and the page shows epsilon."""
    out = tmp_path / "run"
    noised = {"name": "dp-sgd", "lr": 0.1, "batch_size": 20, "delta": 1e-4}
    noised |= {"clip": 1.0, "multiplier": 1.5}
    sets = [word for k, v in noised.items() for word in ("--set", f"local.solver.{k}={v}")]
    base = ["deploy", "local", "hospitals", "--clients", "4", "--tls", "--rounds", "2"]
    done = CliRunner().invoke(app, [*base, *sets, "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    spent = json.loads(done.stdout)["privacy"]
    # Of each hospital's rows, five epochs in each of two rounds; the smallest has the fewest steps
    # in an epoch, and so the largest share of its rows in each.
    accounts = [json.loads(path.read_text()) for path in out.rglob("account.json")]
    counts = {row["steps"] for account in accounts for row in account["noised"]}
    wanted = max(Accountant(1.5, 1e-4, 10 / steps).epsilon(steps) for steps in counts)
    assert spent == {"hides": "records", "epsilon": wanted, "delta": 1e-4}
    assert "Privacy budget consumed" in (out / "report.html").read_text()
