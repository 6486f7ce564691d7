"""Every algorithm over the fake grid equals `simulate`, and survives every fault."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from flwr.app import Message
from torch import nn

import fedadmm as fa
from fedadmm.algorithms import REGISTRY
from fedadmm.core.codec import digest
from fedadmm.core.objectives.losses import binary_cross_entropy
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import RefusedError, Task
from fedadmm.flower.server.checkpoint import ServerState
from fedadmm.run.components import CATCH_UP

from . import harness
from .harness import (
    DIMENSION,
    Crash,
    FakeGrid,
    check_invariant,
    check_versions,
    federation,
    objectives,
    records_on_disk,
    run_through,
    server_on_disk,
    simulated,
    states_on_disk,
)

pytestmark = pytest.mark.usefixtures("quick")

ALGORITHMS = {
    "fedsgd": fa.FedSGD(lr=0.2),
    "fedavg": fa.FedAvg(),
    "fedprox": fa.FedProx(rho=0.1),
    "fedavgm": fa.FedAvgM(),
    "fedadagrad": fa.FedAdagrad(),
    "fedadam": fa.FedAdam(),
    "fedyogi": fa.FedYogi(),
    "fedexp": fa.FedExP(),
    "fednova": fa.FedNova(),
    "fedcm": fa.FedCM(alpha=0.5),
    "fedmid": fa.FedMid(),
    "feddualavg": fa.FedDualAvg(),
    "scaffnew": fa.Scaffnew(p=0.3),
    "adabest": fa.AdaBest(),
    "scaffold": fa.Scaffold(),
    "feddyn": fa.FedDyn(eta=1.0),
    "a-fedpd": fa.AFedPD(rho=1.0),
    "aligned-admm": fa.AlignedADMM(rho=1.0),
    "consensus-admm": fa.ConsensusADMM(rho=1.0),
    "pfedme": fa.PFedMe(rho=1.0),
    "fedpd": fa.FedPD(eta=1.0, skip_probability=0.3),
    "fedadmm": fa.FedADMM(rho=1.0),
    "fedadmm-released": fa.algorithms.FedADMMReleased(rho=1.0),
    "fedadmm-printed": fa.algorithms.FedADMMPrinted(rho=fa.schedules.Piecewise({0: 1.0, 4: 2.0})),
    "fedadmm-wang-released": fa.algorithms.FedADMMWangReleased(rho=1.0),
    "fedadmm-in": fa.FedADMMIn(beta=1.0),
    "fedadmm-in-released": fa.algorithms.FedADMMInReleased(beta=1.0),
    "fedadmm-insa": fa.FedADMMInSa(beta=1.0),
    "fedadmm-insa-released": fa.algorithms.FedADMMInSaReleased(beta=1.0, mu=1.2),
    "feddr": fa.FedDR(eta=1.0, init="prox"),
    "feddr-ii": fa.FedDRII(eta=1.0),
    "fedsplit": fa.FedSplit(eta=1.0),
}


def test_the_table_has_every_algorithm():
    missing = REGISTRY.keys() - ALGORITHMS.keys()
    assert {name for name in missing if not REGISTRY[name]().requirements.asynchronous} == set()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_equal_to_simulate(name, tmp_path):
    algorithm = ALGORITHMS[name]
    sampler = (
        fa.FullParticipation()
        if algorithm.requirements.full_participation
        else fa.UniformSampling(2)
    )
    settings = federation(algorithm, rounds=8, sampler=sampler)
    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    wanted = simulated(settings)
    assert history.outcome.ending.code == "completed"
    assert torch.equal(history.outcome.params, wanted.params)
    check_invariant(settings, tmp_path)
    check_versions(settings, tmp_path, history.trace)


ALIGNED = fa.AlignedADMM(rho=1.0, sigma=0.3)


@pytest.mark.parametrize("sigma", [0.3, "auto"])
def test_absent_clients_move_along_over_restarts_as_in_a_simulation(sigma, tmp_path):
    """One of four a round: a client is away for rounds, and the server dies twice meanwhile."""
    method = fa.AlignedADMM(rho=1.0, sigma=sigma)
    settings = federation(method, rounds=12, sampler=fa.UniformSampling(1), seed=3)
    left = [4, 9]

    def die(report):
        if left and report.record["round"] == left[0]:
            left.pop(0)
            raise Stopping

    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path, die)
    wanted = simulated(settings)
    assert history.crashes == 2
    assert torch.equal(history.outcome.params, wanted.params)
    check_invariant(settings, tmp_path)
    check_versions(settings, tmp_path, history.trace)
    sent = [record["traffic"]["bytes_down"] for record in history.records[1:]]
    assert sent == [record["traffic"]["bytes_down"] for record in wanted.history[1:]]


def test_what_a_solver_keeps_is_in_the_sites_record(tmp_path):
    solver = fa.Adam(0.05, 10, moments="kept")
    settings = federation(fa.FedAvg(), rounds=9, sampler=fa.UniformSampling(2), solver=solver)
    left = [4]

    def die(report):
        if left and report.record["round"] == left[0]:
            left.pop(0)
            raise Stopping

    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path, die)
    assert history.crashes == 1
    assert torch.equal(history.outcome.params, simulated(settings).params)
    check_versions(settings, tmp_path, history.trace)


def networks(clients=4):
    """The harness's rows for one layer with a bias, which has as many parameters."""
    return [
        fa.ModelObjective(
            nn.Linear(DIMENSION - 1, 1), binary_cross_entropy, one.features[:, 1:], one.targets
        )
        for one in objectives(clients)
    ]


PERSONAL = {"ditto": fa.Ditto(0.3), "layers": fa.PersonalLayers(["bias"])}


@pytest.mark.parametrize("name", PERSONAL)
def test_what_a_client_trains_for_itself_is_in_the_sites_record(name, tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "objectives", networks)
    settings = federation(
        fa.FedAvg(), rounds=9, sampler=fa.UniformSampling(2), personal=PERSONAL[name]
    )
    left = [4]

    def die(report):
        if left and report.record["round"] == left[0]:
            left.pop(0)
            raise Stopping

    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path, die)
    wanted = simulated(settings)
    assert history.crashes == 1
    assert torch.equal(history.outcome.params, wanted.params)
    records = records_on_disk(settings, tmp_path)
    for client in wanted.clients:
        kept = wanted.clients.record(client).memory[0]
        assert torch.equal(records[client].memory[0], kept)
        assert bool(kept.any())


OUTPUTS = [
    fa.outputs.Averaged(),
    fa.outputs.ParticipantsMean(),
    fa.outputs.RandomIterate(),
    fa.outputs.TwoOutputs(),
]


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: output.name)
def test_the_sites_and_the_operator_get_what_a_simulation_hands_out(output, tmp_path):
    """The server's own test and the sites see the same model, over a restart."""
    seen = []
    settings = federation(
        ALIGNED,
        rounds=7,
        sampler=fa.UniformSampling(2),
        output=output,
        evaluate_every=1,
        test=lambda x: seen.append(x.clone()) or {"first": float(x[0])},
    )
    left = [3]

    def die(report):
        if left and report.record["round"] == left[0]:
            left.pop(0)
            raise Stopping

    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path, die)
    wanted = simulated(settings)
    assert history.crashes == 1
    assert torch.equal(history.outcome.params, wanted.params)
    theta = settings.experiment.algorithm.global_params(wanted.server)
    assert torch.equal(wanted.params, theta) == isinstance(output, fa.outputs.TwoOutputs)
    assert torch.equal(seen[-2 if isinstance(output, fa.outputs.TwoOutputs) else -1], wanted.params)
    problem = fa.Problem(objectives())
    at_sites = history.records[-1]["network"]["sites"]["metrics"]["loss"]
    assert at_sites == pytest.approx(float(problem.value(wanted.params)), abs=1e-6)


@pytest.mark.parametrize("members", ["all", "seen"])
def test_an_aligned_client_that_lost_its_state_stands_as_if_it_had_always_been_away(
    members, tmp_path
):
    """With another who never came: both duals are the sum of all virtual steps, or do not count."""
    method = fa.AlignedADMM(1.0, 0.6, members)
    settings = federation(method, rounds=6, ledger="disk", sampler=fa.TraceSampling(TRACE))
    grid = FakeGrid(settings, tmp_path)

    def wipe(report):
        if report.record["round"] == 4:
            grid.wipe(1)

    history = run_through(settings, grid, tmp_path, wipe)
    assert history.trace == [[0, 1], [1, 2], [0, 2], [1], [0], [0, 2]]
    assert history.outcome.counts["repaired"] == 1
    saved = server_on_disk(settings, tmp_path)
    states = states_on_disk(settings, tmp_path)
    missed = saved.state.components[CATCH_UP]
    duals = {c: states[c].y + missed.missed(c) for c in range(4)}
    total = saved.state.server.virtual
    assert torch.equal(duals[1], total)
    assert torch.equal(duals[3], total)
    assert bool(total.any())
    counted = range(4) if members == "all" else (0, 2)
    expected = sum(duals[client] for client in counted) / 4
    assert torch.allclose(saved.state.server.h, expected, rtol=0, atol=1e-6)
    assert float(saved.state.server.members) == pytest.approx(len(counted) / 4)


TRACE = [[0, 1], [1, 2], [0, 2], [1], [0, 1], [0, 2], [3]]


class Stopping(Crash):
    """The server is killed."""


@pytest.mark.parametrize("moment", ["before checkpoint", "after checkpoint"])
def test_an_initial_round_is_checkpointed_like_the_others(moment, tmp_path, monkeypatch):
    """Killed before its checkpoint it is made again, from the replies that the sites kept."""
    settings = federation(fa.FedDR(eta=1.0, init="prox"), rounds=3, sampler=fa.UniformSampling(2))
    save, left = ServerState.save, [0]

    def dying(self, saved, brought):
        due = left and bool(brought) and saved.state.round == left[0]
        if due and moment == "before checkpoint":
            raise Stopping(left.pop())
        unkept = save(self, saved, brought)
        if due:
            raise Stopping(left.pop())
        return unkept

    monkeypatch.setattr(ServerState, "save", dying)
    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    wanted = simulated(settings)
    assert history.crashes == 1
    assert [record["round"] for record in history.records] == [0, 1, 2, 3]
    assert history.trace == [record["cohort"]["clients"] for record in wanted.history]
    assert history.trace[0] == [0, 1, 2, 3]
    assert torch.equal(history.outcome.params, wanted.params)
    check_versions(settings, tmp_path, history.trace)


def test_a_federation_takes_an_experiment_with_its_data_and_uses_none_of_them(tmp_path):
    """The server needs the number of clients; the same keywords make the same run."""
    described = federation(fa.FedADMM(rho=1.0), ledger="disk")
    problem = described.problem.with_clients(objectives())
    settings = replace(described, experiment=replace(described.experiment, problem=problem))
    with pytest.raises(fa.errors.StateError, match="the data are at the sites"):
        settings.server_job().problem.clients[0].value(problem.initial)
    found = [
        run_through(one, FakeGrid(one, tmp_path / name), tmp_path / name).outcome.params
        for name, one in (("described", described), ("given", settings))
    ]
    assert torch.equal(*found)


def test_an_experiment_has_all_its_fields_already():
    made = federation(fa.FedADMM(rho=1.0))
    with pytest.raises(
        fa.errors.ParameterError, match="Federation: an experiment has all its fields"
    ):
        Federation(made.experiment, rounds=3)
    with pytest.raises(fa.errors.ConfigError, match=r"tolerance: got 0\.1, expected 'none'"):
        Federation(replace(made.experiment, tolerance=0.1))


# A penalty that fits the sites' work --------------------------------------------------------------

PER_WORK = fa.FedADMM(rho=fa.PerWork(0.25))


def test_a_penalty_per_work_is_that_of_a_simulation(tmp_path):
    """30 rows in batches of 10, two epochs: 6 steps of 0.1, so rho = 0.25 / 0.6."""
    settings = federation(PER_WORK)
    outcome = run_through(settings, FakeGrid(settings, tmp_path), tmp_path).outcome
    assert outcome.fitted == {"rho": pytest.approx(0.25 / 0.6)}
    assert torch.equal(outcome.params, simulated(settings).params)


def test_a_resumed_run_keeps_the_penalty_that_it_began_with(tmp_path):
    asked = []

    def count(moment, message, client):
        if moment == "deliver" and wire.HELLO in message.content and wire.WORK in message.content:
            asked.append(client)

    for rounds in (3, 6):
        settings = federation(PER_WORK, rounds=rounds)
        outcome = run_through(settings, FakeGrid(settings, tmp_path, count), tmp_path).outcome
    assert sorted(asked) == [0, 1, 2, 3]
    assert torch.equal(outcome.params, simulated(settings).params)


@pytest.mark.parametrize("said", [1e9, -1.0, math.nan])
def test_one_site_does_not_set_the_penalty_of_all(tmp_path, said):
    """What is out of proportion, or no length at all, is left out of the mean."""
    settings = federation(PER_WORK, rounds=1)
    grid = FakeGrid(settings, tmp_path)

    def lie(content, client):
        return wire.write_length(said) if client == 2 and wire.WORK in content else content

    grid.spoil = lie
    outcome = run_through(settings, grid, tmp_path).outcome
    assert outcome.fitted == {"rho": pytest.approx(0.25 / 0.6)}


def test_a_site_that_is_away_at_the_start_does_not_keep_the_others_from_it(tmp_path):
    settings = federation(PER_WORK, rounds=2)
    grid = FakeGrid(settings, tmp_path)
    grid.offline = {3}
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 2]] * 2
    assert history.outcome.fitted == {"rho": pytest.approx(0.25 / 0.6)}


def test_a_site_that_approves_runs_says_nothing_of_its_work_before(tmp_path):
    settings = federation(PER_WORK)
    grid = FakeGrid(settings, tmp_path)
    grid.policy["approval"] = True
    with pytest.raises(fa.errors.EngineError, match=r"^no site sent the length of its local work"):
        run_through(settings, grid, tmp_path)
    assert not (tmp_path / "server" / "checkpoint" / "server.safetensors").exists()


def test_a_task_without_the_length_is_not_worked_on_with_another_penalty(tmp_path):
    settings = federation(PER_WORK)
    grid = FakeGrid(settings, tmp_path)
    task = Task("run", 0, 1, 0, 0, "", digest(b""))
    with pytest.raises(RefusedError) as raised:
        grid._app(Message(wire.write(task, b""), 1000, "train"), grid.context(0))
    assert "length" in raised.value.detail
