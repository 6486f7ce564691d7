"""A server restored from a backup: named, and never the end of a run."""

from __future__ import annotations

import shutil

import pytest

import fedadmm as fa
from fedadmm.core.errors import EngineError

from .harness import (
    FakeGrid,
    check_invariant,
    check_versions,
    federation,
    run_through,
    server_on_disk,
)

pytestmark = pytest.mark.usefixtures("quick")
ROUNDS = 18


def restored(tmp_path, settings, at=4, until=16):
    """A run whose server went on until a round, and then got the folder of an earlier one back."""
    grid, backup = FakeGrid(settings, tmp_path), tmp_path / "backup"

    class Enough(Exception):  # noqa: N818
        pass

    def copy_and_stop(report):
        if report.record["round"] == at + 1:
            shutil.copytree(tmp_path / "server", backup)
        if report.record["round"] == until:
            raise Enough

    with pytest.raises(Enough):
        run_through(settings, grid, tmp_path, copy_and_stop)
    shutil.rmtree(tmp_path / "server")
    backup.rename(tmp_path / "server")
    assert server_on_disk(settings, tmp_path).state.round == at
    return grid


@pytest.mark.parametrize("mode", ["rounds", "asynchronous"])
@pytest.mark.parametrize("ledger", ["none", "disk"])
def test_a_rollback_is_named_and_completes_nothing(mode, ledger, tmp_path):
    algorithm = fa.FedADMM(rho=1.0) if mode == "rounds" else fa.AsyncFedDR(eta=1.0)
    settings = federation(algorithm, rounds=ROUNDS, ledger=ledger, mode=mode)
    grid = restored(tmp_path, settings)
    for _ in range(5):
        with pytest.raises(EngineError, match=r"ahead of this server .* restored from a backup"):
            run_through(settings, grid, tmp_path)
    assert server_on_disk(settings, tmp_path).state.round == 4


@pytest.mark.parametrize("mode", ["rounds", "asynchronous"])
def test_the_way_out_takes_everybody_out_and_starts_again(mode, tmp_path):
    algorithm = fa.FedADMM(rho=1.0) if mode == "rounds" else fa.AsyncFedDR(eta=1.0)
    settings = federation(algorithm, rounds=ROUNDS, ledger="disk", mode=mode)
    grid = restored(tmp_path, settings)
    accepting = federation(algorithm, rounds=ROUNDS, ledger="disk", mode=mode, accept_rollback=True)
    history = run_through(accepting, grid, tmp_path)
    assert history.outcome.ending.code == "completed"
    assert history.outcome.counts["repaired"] >= 3
    check_invariant(settings, tmp_path)
    if mode == "rounds":
        assert history.trace == [[0, 1, 2, 3]] * (ROUNDS - 4)
        check_versions(settings, tmp_path, history.trace)


def test_without_a_ledger_there_is_no_way_out_but_the_newer_checkpoint(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=ROUNDS, accept_rollback=True)
    grid = restored(tmp_path, settings)
    with pytest.raises(EngineError, match="bring back the newer checkpoint"):
        run_through(settings, grid, tmp_path)


def test_one_site_that_claims_to_be_ahead_costs_only_itself(tmp_path):
    from fedadmm.flower.protocol import wire

    settings = federation(fa.FedADMM(rho=1.0), rounds=4, ledger="disk")
    grid = FakeGrid(settings, tmp_path)

    def ahead(content, client):
        reply, _ = wire.read_reply(content, 10**6)
        lie = reply._replace(kind="stale", reason="I know more")
        return wire.write(lie, b"") if client == 2 else content

    grid.spoil = ahead
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 3]] * 4
    assert history.outcome.counts == {"rollback": 4}


def test_not_even_when_it_is_asked_alone(tmp_path):
    from fedadmm.flower.protocol import wire

    order = [[0, 1], [2], [3], [2], [0, 3], [1, 2]]
    settings = federation(
        fa.FedADMM(rho=1.0), rounds=4, sampler=fa.TraceSampling(order, repeat=True)
    )
    grid = FakeGrid(settings, tmp_path)

    def ahead(content, client):
        reply, _ = wire.read_reply(content, 10**6)
        lie = reply._replace(kind="stale", reason="I know more")
        return wire.write(lie, b"") if client == 2 else content

    grid.spoil = ahead
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1], [], [3], [], [0, 3], [1]]
    assert history.outcome.ending.code == "completed"


def test_an_empty_round_does_not_complete_a_run(tmp_path):
    """Nobody answers in the last two rounds of four: two more are made."""
    settings = federation(fa.FedADMM(rho=1.0), rounds=4)
    grid = FakeGrid(settings, tmp_path)

    def silent(report):
        away = report.record["round"] in (2, 3)
        grid.fault = (lambda moment, *_: "drop") if away else (lambda *_: None)

    history = run_through(settings, grid, tmp_path, silent)
    assert history.trace == [[0, 1, 2, 3]] * 2 + [[]] * 2 + [[0, 1, 2, 3]] * 2
    assert history.outcome.ending.sentence == "completed all 4 rounds, and 2 without an update"
    check_invariant(settings, tmp_path)


def test_empty_rounds_are_remembered_over_restarts(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=3)
    grid = FakeGrid(settings, tmp_path, lambda *_: "drop")
    grid.fault = lambda moment, message, client: (
        "drop" if message.metadata.group_id.isdigit() else None
    )
    for _ in range(3):
        with pytest.raises(EngineError, match="no client returned an update in 4 rounds in a row"):
            run_through(settings, grid, tmp_path)
    grid.fault = lambda *_: None
    history = run_through(settings, grid, tmp_path)
    assert history.outcome.ending.code == "completed"
    assert history.trace == [[0, 1, 2, 3]] * 3
    check_invariant(settings, tmp_path)


def test_a_cohort_of_nobody_is_a_round_like_any_other(tmp_path):
    """The sampler's choice, not a fault: the run is as long as a simulated one."""
    settings = federation(
        fa.FedADMM(rho=1.0), rounds=5, sampler=fa.TraceSampling([[0, 1], [], [], [], [2, 3]])
    )
    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    assert history.trace == [[0, 1], [], [], [], [2, 3]]
