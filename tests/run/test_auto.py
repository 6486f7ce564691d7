"""The engine that measures: the same run, whatever it chooses, and nothing left of measuring."""

from __future__ import annotations

import logging
import multiprocessing
from typing import Any

import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.data import models
from fedadmm.run.engines import Auto, EngineChoice
from fedadmm.run.engines.auto import AutoEngine
from support.engines import PROBLEMS, assert_same_run, model_federation, run


class _Kept(EngineChoice):
    """Starts an engine and keeps hold of it."""

    def __init__(self, choice: Auto) -> None:
        self._choice = choice
        self.engine: Any = None

    def start(self, job: Any, store: Any) -> Any:
        self.engine = self._choice.start(job, store)
        return self.engine


@pytest.mark.parametrize("name", ["perceptron", "least squares"])
def test_the_run_does_not_depend_on_the_choice(name: str) -> None:
    kept = _Kept(Auto(workers=2))
    found = run(kept, fa.FedADMM(rho=0.5), PROBLEMS[name]())
    assert_same_run(found, run("sequential", fa.FedADMM(rho=0.5), PROBLEMS[name]()))
    assert set(kept.engine.seconds) == {"sequential", "workers", "vectorised"}
    assert kept.engine.choice == min(kept.engine.seconds, key=kept.engine.seconds.get)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("fastest", ["sequential", "workers", "vectorised"])
def test_the_fastest_way_is_taken_and_reported(
    fastest: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def measured(self: AutoEngine, ways: dict[str, Any], *_: object) -> dict[str, float]:
        return {name: 0.001 if name == fastest else 0.002 for name in ways}

    monkeypatch.setattr(AutoEngine, "_measure", measured)
    kept = _Kept(Auto(workers=2))
    with caplog.at_level(logging.INFO, logger="fedadmm.run.engines.auto"):
        run(kept, fa.FedAvg(), PROBLEMS["perceptron"]())
    assert kept.engine.choice == fastest
    assert f"chose {fastest}" in caplog.text


def test_stacks_of_large_models_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedadmm.run.engines.auto.STACKED_PARAMETERS", 20)
    kept = _Kept(Auto(workers=2))
    run(kept, fa.FedAvg(), PROBLEMS["perceptron"](), rounds=1)
    assert set(kept.engine.seconds) == {"sequential", "workers"}


def test_ways_that_cannot_run_the_job_are_left_out() -> None:
    noisy = model_federation(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3))
    )
    kept = _Kept(Auto(workers=1))
    run(kept, fa.FedAvg(), noisy)
    assert kept.engine.choice == "sequential"
    assert kept.engine.seconds == {}


def test_measuring_commits_nothing() -> None:
    """With one round, the clients' states are those of that round alone."""
    problem = model_federation(lambda: models.mlp(4, 6, 3))
    found = run("auto", fa.FedADMM(rho=0.5), problem, rounds=1)
    expected = run("sequential", fa.FedADMM(rho=0.5), problem, rounds=1)
    assert_same_run(found, expected)
    assert torch.equal(problem.initial, model_federation(lambda: models.mlp(4, 6, 3)).initial)


class _Resumed(_Kept):
    """An engine that is told what an earlier process chose."""

    def __init__(self, choice: str) -> None:
        super().__init__(Auto(workers=2))
        self._told = choice

    def start(self, job: Any, store: Any) -> Any:
        engine = super().start(job, store)
        engine.choice = self._told
        return engine


@pytest.mark.parametrize("told", ["sequential", "vectorised"])
def test_a_run_that_goes_on_keeps_its_choice_and_measures_nothing(told: str) -> None:
    kept = _Resumed(told)
    run(kept, fa.FedAvg(), PROBLEMS["perceptron"](), rounds=1)
    assert kept.engine.choice == told
    assert kept.engine.seconds == {}


def test_a_choice_that_is_not_possible_any_more_is_named() -> None:
    with pytest.raises(fa.EngineError, match="began with engine 'ray'"):
        run(_Resumed("ray"), fa.FedAvg(), PROBLEMS["perceptron"](), rounds=1)
