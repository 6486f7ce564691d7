"""Every algorithm over the fake grid equals `simulate`, and survives every fault."""

from __future__ import annotations

import pytest
import torch

import fedadmm as fa
from fedadmm.algorithms import REGISTRY

from .harness import (
    Crash,
    FakeGrid,
    check_invariant,
    check_versions,
    federation,
    run_through,
    simulated,
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
    "fednova": fa.FedNova(),
    "fedcm": fa.FedCM(alpha=0.5),
    "fedmid": fa.FedMid(),
    "feddualavg": fa.FedDualAvg(),
    "scaffnew": fa.Scaffnew(p=0.3),
    "adabest": fa.AdaBest(),
    "scaffold": fa.Scaffold(),
    "feddyn": fa.FedDyn(eta=1.0),
    "fedpd": fa.FedPD(eta=1.0, skip_probability=0.3),
    "fedadmm": fa.FedADMM(rho=1.0),
    "fedadmm-in": fa.FedADMMIn(beta=1.0),
    "fedadmm-insa": fa.FedADMMInSa(beta=1.0),
    "feddr": fa.FedDR(eta=1.0, init="prox"),
    "feddr-ii": fa.FedDRII(eta=1.0),
    "fedsplit": fa.FedSplit(eta=1.0),
}


def test_the_table_has_every_algorithm():
    in_rounds = {name for name, method in REGISTRY.items() if not method.asynchronous}
    assert ALGORITHMS.keys() == in_rounds


@pytest.mark.parametrize("name", ALGORITHMS)
def test_equal_to_simulate(name, tmp_path):
    algorithm = ALGORITHMS[name]
    sampler = fa.UniformSampling(2) if algorithm.accepts_partial else fa.FullParticipation()
    settings = federation(algorithm, rounds=8, sampler=sampler)
    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    wanted = simulated(settings)
    assert history.outcome.ending.code == "completed"
    assert torch.equal(history.outcome.params, wanted.params)
    check_invariant(settings, tmp_path)
    if algorithm.name != "feddr":  # its opening round is a version of its own
        check_versions(settings, tmp_path, history.trace)


class Stopping(Crash):
    """The server is killed."""


@pytest.mark.parametrize("sampler", [fa.LossSampling(2, 0.1), fa.LeastRecentlySeenSampling(2)])
@pytest.mark.parametrize("algorithm", [fa.FedADMM(rho=1.0), fa.FedDR(eta=1.0, init="prox")])
def test_a_sampler_that_looks_back_survives_the_death_of_its_server(sampler, algorithm, tmp_path):
    settings = federation(algorithm, rounds=9, sampler=sampler)
    left = [3, 6]

    def die(report):
        if left and report.record["round"] == left[0]:
            left.pop(0)
            raise Stopping

    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path, die)
    wanted = simulated(settings)
    assert history.crashes == 2
    assert history.trace == [record["clients"] for record in wanted.history]
    assert torch.equal(history.outcome.params, wanted.params)
