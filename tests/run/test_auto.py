"""The engine that chooses: stacks for small steps, processes for large ones, nothing timed."""

from __future__ import annotations

import logging
import multiprocessing
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

import fedadmm as fa
from fedadmm.core.local_work import LocalWork
from fedadmm.run.client import Job
from fedadmm.run.engines import Auto, Sequential, Vectorised, Workers
from support.engines import PROBLEMS, assert_same_run, model_federation, run


def job(
    make: Any, batch: int | None = 10, epochs: int = 5, method: Any = None, **sizes: Any
) -> Job:
    problem = model_federation(make, **sizes)
    local = LocalWork(fa.SGD(lr=0.1, batch_size=batch), fa.Epochs(epochs))
    return Job(method or fa.FedAvg(), problem, local, 0, problem.initial)


def small() -> nn.Module:
    return nn.Linear(4, 3)


def large() -> nn.Module:
    """520,000 multiplications a row: a step of three rows is too much for a stack."""
    return nn.Sequential(nn.Linear(4, 400), nn.ReLU(), nn.Linear(400, 1295), nn.Linear(1295, 3))


def test_small_steps_are_stacked_on_any_number_of_cores() -> None:
    for workers in (1, 2, 64):
        assert Auto(workers).chosen(job(small)) == Vectorised(workers=workers)


def test_large_steps_get_processes_of_their_own() -> None:
    assert Auto(workers=2).chosen(job(large, epochs=50)) == Workers(2)
    assert Auto(workers=1).chosen(job(large, epochs=50)) == Sequential()


def test_what_cannot_be_stacked_is_not() -> None:
    def noisy() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3))

    assert Auto(workers=1).chosen(job(noisy)) == Sequential()
    assert Auto(workers=2).chosen(job(noisy, epochs=1)) == Sequential()  # too little to exchange
    assert Auto(workers=2).chosen(job(noisy, epochs=500)) == Workers(2)


def test_clients_with_another_loss_are_not_stacked() -> None:
    given = job(small)
    clients = list(given.problem.clients)
    clients[-1] = replace(clients[-1], loss=nn.CrossEntropyLoss())
    mixed = given._replace(problem=given.problem.with_clients(clients))
    assert Auto(workers=1).chosen(given) == Vectorised(workers=1)
    assert Auto(workers=1).chosen(mixed) == Sequential()


def test_parts_from_elsewhere_may_be_written_for_one_client_at_a_time() -> None:
    class Mine(fa.FedAvg):
        pass

    class Slow(fa.SGD):
        pass

    known = job(small)
    assert Auto(1).chosen(known._replace(algorithm=Mine())) == Sequential()
    local = LocalWork(Slow(lr=0.1), fa.Epochs(5))
    assert Auto(1).chosen(known._replace(local=local)) == Sequential()


def test_the_samples_of_a_step_matter_and_not_those_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """12 multiplications a row: batches of two are below the limit of 30, whole clients above."""
    monkeypatch.setattr("fedadmm.run.engines.auto.STACKED_WORK", 30.0)
    assert Auto(1).chosen(job(small, batch=2)) == Vectorised(workers=1)
    assert Auto(1).chosen(job(small, batch=None)) == Sequential()
    assert Auto(1).chosen(job(small, batch=2, method=fa.FedSGD(lr=0.1))) == Sequential()


@pytest.mark.parametrize("name", ["perceptron", "least squares"])
def test_a_run_is_that_of_the_engine_it_chose(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fedadmm.run.engines.auto"):
        found = run("auto", fa.FedADMM(rho=0.5), PROBLEMS[name]())
    assert "chose vectorised" in caplog.text
    assert_same_run(found, run("sequential", fa.FedADMM(rho=0.5), PROBLEMS[name]()))
    assert multiprocessing.active_children() == []
