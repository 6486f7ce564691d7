"""Sites come and leave in the middle of a run, which goes on as if it had always had these."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fedadmm as fa
from fedadmm.core.errors import StateError
from fedadmm.flower.server.checkpoint import ServerState, fingerprint
from fedadmm.flower.server.server_app import configured
from fedadmm.run.components import CATCH_UP

from .harness import (
    Crash,
    FakeGrid,
    contribution,
    federation,
    is_aligned,
    objectives,
    run_through,
    server_on_disk,
    simulated,
    states_on_disk,
    tracked,
)

pytestmark = pytest.mark.usefixtures("quick")

METHODS = {
    "fedadmm": fa.FedADMM(rho=1.0),
    "fedadmm-insa": fa.FedADMMInSa(beta=1.0),
    "feddr": fa.FedDR(eta=1.0),
    "scaffold": fa.Scaffold(),
    "feddyn": fa.FedDyn(eta=1.0),
    "consensus": fa.ConsensusADMM(rho=1.0),
    "aligned": fa.AlignedADMM(rho=1.0, sigma=0.6),
}
LONG = {"solver": fa.GradientDescent(lr=0.3), "stop": fa.Steps(20)}
WEIGHTS = [0.4, 0.3, 0.2, 0.1]


def made(algorithm, clients=4, **changes):
    changes = {"ledger": "disk", "clients": clients, "rounds": 3} | changes
    return federation(algorithm, **changes)


def play(settings, folder, fault=lambda *_: None):
    return run_through(settings, FakeGrid(settings, folder, fault), folder)


def sum_of(settings, folder, weights):
    """The weighted mean of what stands on the sites' own disks, written down independently."""
    saved, algorithm = server_on_disk(settings, folder), settings.experiment.algorithm
    states = states_on_disk(settings, folder)
    parts = []
    for client, weight in enumerate(weights):
        state = states[client]
        if is_aligned(algorithm):
            state = algorithm.catch_up(state, saved.state.components[CATCH_UP].missed(client))
        parts.append([weight * part.double() for part in contribution(algorithm, state)])
    held = [leaf.double() for leaf in tracked(algorithm, saved.state.server)]
    return held, [sum(column) for column in zip(*parts, strict=True)]


@pytest.mark.parametrize("name", METHODS)
def test_a_site_that_leaves_counts_nothing_and_the_others_all(name, tmp_path):
    """After 3 rounds client 1 leaves; the server then holds the mean of the other three."""
    algorithm = METHODS[name]
    play(made(algorithm, weights=WEIGHTS), tmp_path)
    left = made(algorithm, weights=WEIGHTS, rounds=4, take_out=[1])
    history = play(left, tmp_path)
    assert history.trace == [[0, 2, 3]]
    held, wanted = sum_of(left, tmp_path, [0.4 / 0.7, 0.0, 0.2 / 0.7, 0.1 / 0.7])
    for got, value in zip(held, wanted, strict=True):
        assert torch.allclose(got, value, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", METHODS)
def test_a_site_that_comes_counts_from_its_start(name, tmp_path):
    algorithm = METHODS[name]
    play(made(algorithm, clients=3), tmp_path)
    grown = made(algorithm, clients=4, rounds=4, accept_sites=True)
    history = play(grown, tmp_path)
    assert history.trace == [[0, 1, 2, 3]]
    held, wanted = sum_of(grown, tmp_path, [0.25] * 4)
    for got, value in zip(held, wanted, strict=True):
        assert torch.allclose(got, value, rtol=0, atol=2e-6)


@pytest.mark.parametrize("algorithm", [METHODS["fedadmm"], METHODS["aligned"]], ids=["plain", "al"])
def test_three_sites_gain_a_fourth_and_lose_one(algorithm, tmp_path):
    """The limit is the minimiser over those who are members at the end: its gradient vanishes."""
    play(made(algorithm, clients=3, **LONG), tmp_path)
    play(made(algorithm, clients=4, rounds=6, accept_sites=True, **LONG), tmp_path)
    settings = made(algorithm, clients=4, rounds=80, take_out=[0], **LONG)
    outcome = play(settings, tmp_path).outcome
    members = objectives(4)[1:]
    slope = sum(one.gradient(outcome.params) for one in members) / 3
    everybody = sum(one.gradient(outcome.params) for one in objectives(4)) / 4
    assert float(slope.norm()) < 2e-4 < 2e-2 < float(everybody.norm())


def test_who_left_stays_out_without_being_named_again(tmp_path):
    algorithm = METHODS["fedadmm"]
    play(made(algorithm), tmp_path)
    play(made(algorithm, rounds=4, take_out=[2]), tmp_path)
    assert play(made(algorithm, rounds=5), tmp_path).trace == [[0, 1, 3]]
    assert list(server_on_disk(made(algorithm), tmp_path).weights) == pytest.approx(
        [1 / 3, 1 / 3, 0, 1 / 3]
    )


def test_a_crash_in_the_middle_of_the_change_repeats_it_whole(tmp_path, monkeypatch):
    """The change is one rename: before it nothing has changed, after it all has."""
    algorithm, save, dead = METHODS["fedadmm"], ServerState.save, []
    for folder in ("calm", "torn"):
        play(made(algorithm), tmp_path / folder)

    def dies(self, saved, brought):
        moment = "before" if len(dead) == 0 else "after"
        if saved.state.round == 3 and len(dead) < 2:
            dead.append(moment)
            if moment == "after":
                save(self, saved, brought)
            raise Crash
        return save(self, saved, brought)

    settings = made(algorithm, rounds=5, take_out=[1])
    calm = play(settings, tmp_path / "calm").outcome
    monkeypatch.setattr(ServerState, "save", dies)
    torn = play(settings, tmp_path / "torn").outcome
    assert dead == ["before", "after"]
    assert torch.equal(calm.params, torn.params)


def test_other_sites_than_before_are_refused_unless_they_are_accepted(tmp_path):
    algorithm = METHODS["fedadmm"]
    play(made(algorithm, clients=3), tmp_path)
    with pytest.raises(StateError, match=r"holds another run, which differs in clients \(3 -> 4\)"):
        play(made(algorithm, clients=4), tmp_path)
    with pytest.raises(StateError, match=r"^the run has 3 clients, but the app 2; a site leaves"):
        play(made(algorithm, clients=2, accept_sites=True), tmp_path)


def test_without_a_ledger_a_mean_cannot_lose_a_site(tmp_path):
    play(made(METHODS["fedadmm"], ledger="none"), tmp_path / "mean")
    with pytest.raises(StateError, match=r"without ledger='disk' the contribution"):
        play(made(METHODS["fedadmm"], ledger="none", take_out=[0], rounds=4), tmp_path / "mean")
    play(made(fa.FedAvg(), ledger="none"), tmp_path / "average")
    settings = made(fa.FedAvg(), ledger="none", take_out=[0], rounds=4)
    assert play(settings, tmp_path / "average").trace == [[1, 2, 3]]


def test_a_method_that_needs_all_goes_on_with_all_who_are_left(tmp_path):
    play(made(fa.FedSplit(eta=1.0)), tmp_path)
    history = play(made(fa.FedSplit(eta=1.0), rounds=5, take_out=[3]), tmp_path)
    assert history.trace == [[0, 1, 2]] * 2


def test_the_operator_names_them_in_the_run_configuration():
    settings = made(METHODS["fedadmm"])
    found = configured(settings, {"take-out": "2, 3", "accept-sites": True})
    assert (found.take_out, found.accept_sites) == ([2, 3], True)
    with pytest.raises(
        fa.errors.ConfigError, match=r"^run-config: take-out: got '9', expected client"
    ):
        configured(settings, {"take-out": "9"})
    with pytest.raises(fa.errors.ParameterError, match="take_out names all clients"):
        replace(settings, take_out=[0, 1, 2, 3])


def test_a_checkpoint_that_does_not_say_what_clients_count_goes_on(tmp_path):
    """One that was written before sites could come and leave."""
    settings = made(METHODS["fedadmm"])
    play(settings, tmp_path)
    known = fingerprint(settings, settings.server_job())
    disk = ServerState(tmp_path / "server" / "checkpoint", False, known)
    disk.save(server_on_disk(settings, tmp_path)._replace(weights=()), {})
    longer = made(METHODS["fedadmm"], rounds=5)
    assert torch.equal(play(longer, tmp_path).outcome.params, simulated(longer).params)


def test_a_damaged_contribution_keeps_the_sites_as_they_are(tmp_path):
    play(made(METHODS["fedadmm"]), tmp_path)
    (path,) = (tmp_path / "server" / "checkpoint").glob("contribution-2-*")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StateError, match="so the sites of this run cannot change"):
        play(made(METHODS["fedadmm"], rounds=4, take_out=[0]), tmp_path)
    assert play(made(METHODS["fedadmm"], rounds=4), tmp_path).trace == [[0, 1, 2, 3]]
