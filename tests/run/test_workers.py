"""Worker processes: the same run, and what happens when a client or a process fails."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedadmm as fa
from fedadmm.core.problem import EvaluatorInParts
from fedadmm.core.rng import derive, uniform
from fedadmm.run.engines import Workers
from support.engines import ALGORITHMS, PROBLEMS, assert_same_run, model_federation, run
from support.rejections import naming
from support.thinning import thinned

TWO = Workers(workers=2, timeout=60.0)


@pytest.fixture(autouse=True)
def _no_process_stays() -> object:
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("name", thinned(3, ALGORITHMS))
def test_every_method(name: str) -> None:
    problem = PROBLEMS["perceptron"]
    expected = run("sequential", ALGORITHMS[name], problem())
    assert_same_run(run(TWO, ALGORITHMS[name], problem()), expected, tolerance=0.0)


@pytest.mark.parametrize("solver", [fa.LBFGS(), fa.SGD(0.05, batch_size=4, momentum=0.8)])
def test_every_solver_and_more_clients_than_slots(solver: object) -> None:
    def problem() -> fa.Problem:
        sizes = tuple(3 + 5 * (i % 7) for i in range(30))
        return model_federation(lambda: nn.Sequential(nn.Linear(4, 3)), sizes=sizes)

    options = {"solver": solver, "sampler": fa.UniformSampling(25), "rounds": 2}
    expected = run("sequential", fa.FedADMM(rho=0.5), problem(), **options)
    assert_same_run(run(TWO, fa.FedADMM(rho=0.5), problem(), **options), expected, tolerance=0.0)


class Where(EvaluatorInParts):
    """Five parts that say in which process they were measured, and how long the model is."""

    num_parts = 5

    def part(self, params: Tensor, index: int) -> tuple[float, ...]:
        return float(os.getpid()), float(torch.linalg.vector_norm(params)) * index

    def joined(self, parts: Any) -> dict[str, float]:
        pids, norms = zip(*parts, strict=True)
        return {"here": float(os.getpid() in pids), "sum": sum(norms)}


EVALUATIONS = [
    fa.Evaluation(objective=True, train=True, clients=True),
    fa.Evaluation(objective=False, train=True, every=2),
    fa.Evaluation(objective=True, target="local", clients=True),
    fa.Evaluation(objective=False, test=True),
]


@pytest.mark.parametrize("evaluation", EVALUATIONS, ids=repr)
def test_workers_evaluate_what_the_parent_would(evaluation: fa.Evaluation) -> None:
    """To the last bit; and they do it: no part of the test is measured in this process."""

    def problem() -> fa.Problem:
        given = PROBLEMS["perceptron"]()
        own = [partial(_squared, scale) for scale in range(given.num_clients)]
        return replace(given, test=Where(), client_tests=own)

    method = fa.FedADMM(rho=0.5)
    expected = run("sequential", method, problem(), evaluate=evaluation)
    found = run(TWO, method, problem(), evaluate=evaluation)
    for one, other in zip(found.history, expected.history, strict=True):
        here = [record["metrics"].pop("here", None) for record in (one, other)]
        assert here in ([0.0, 1.0], [None, None])
        assert one["metrics"] == other["metrics"]
        assert one.get("clients") == other.get("clients")
        assert (here[0] is None) == (evaluation.target == "local" or not one["metrics"])


def _squared(scale: int, params: Tensor) -> dict[str, float]:
    return {"squared": scale * float(params @ params)}


def test_an_evaluation_that_raises_is_named() -> None:
    given = PROBLEMS["perceptron"]()

    def broken(params: Tensor) -> dict[str, float]:
        raise ValueError("no such metric")

    # One alone, because either worker may be the first to answer.
    tests = [broken if client == 1 else partial(_squared, 1) for client in range(given.num_clients)]
    problem = replace(given, client_tests=tests)
    with pytest.raises(fa.errors.EngineError, match=naming("client 1 ValueError")):
        run(TWO, fa.FedADMM(rho=0.5), problem, evaluate=fa.Evaluation(clients=True))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("policy", ["average", "keep-local"])
def test_buffers_and_dropout(policy: str, momentum: float | None) -> None:
    def problem() -> fa.Problem:
        def make() -> nn.Module:
            norm = nn.BatchNorm1d(5, momentum=momentum)
            return nn.Sequential(nn.Linear(4, 5), norm, nn.Dropout(0.3), nn.Linear(5, 3))

        return model_federation(make, sizes=(10, 15, 20, 15), buffers=policy)

    measured = {"evaluate": fa.Evaluation(target="local")}
    expected = run("sequential", fa.FedADMM(rho=0.5), problem(), **measured)
    found = run(TWO, fa.FedADMM(rho=0.5), problem(), **measured)
    assert_same_run(found, expected, tolerance=0.0)


class _Fragile(fa.Objective):
    """A least-squares client that does something terrible in its first gradients."""

    def __init__(self, inner: fa.LeastSquares, disaster: object) -> None:
        self._inner = inner
        self._disaster = disaster

    @property
    def num_parameters(self) -> int:
        return self._inner.num_parameters

    @property
    def num_samples(self) -> int:
        return self._inner.num_samples

    def value(self, params: Tensor) -> Tensor:
        return self._inner.value(params)

    def gradient(self, params: Tensor, rows: Tensor | None = None) -> Tensor:
        self._disaster()
        return self._inner.gradient(params, rows)

    def to(self, dtype: torch.dtype, device: object = "cpu") -> _Fragile:
        return self


def _with(disaster: object, client: int = 2) -> fa.Problem:
    problem = PROBLEMS["least squares"]()
    clients = list(problem.clients)
    clients[client] = _Fragile(clients[client], disaster)
    return fa.Problem(clients, initial=problem.initial)


def _run_all(problem: fa.Problem, engine: Workers = TWO) -> fa.Result:
    return run(engine, fa.FedAvg(), problem, rounds=2, sampler=fa.FullParticipation())


def test_a_client_that_raises_is_named_with_its_traceback() -> None:
    def disaster() -> None:
        raise ZeroDivisionError("the client's own mistake")

    with pytest.raises(fa.errors.EngineError) as caught:
        _run_all(_with(disaster))
    message = str(caught.value)
    assert re.match(naming("client 2 round 0 ZeroDivisionError"), message)
    assert "in disaster" in message


def test_a_mistake_in_the_set_up_is_raised_as_it_is() -> None:
    def disaster() -> None:
        raise fa.errors.CompatibilityError("these two do not fit")

    with pytest.raises(fa.errors.CompatibilityError, match=r"^these two do not fit$"):
        _run_all(_with(disaster))


def _die_once(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_replaced_and_its_client_run_again(tmp_path: Path) -> None:
    expected = run(
        "sequential",
        fa.FedAvg(),
        PROBLEMS["least squares"](),
        rounds=2,
        sampler=fa.FullParticipation(),
    )
    found = _run_all(_with(lambda: _die_once(tmp_path / "died")))
    assert (tmp_path / "died").exists()
    assert_same_run(found, expected, tolerance=0.0)


def test_a_client_that_kills_every_worker_is_named() -> None:
    with pytest.raises(fa.errors.EngineError, match=naming("client 2 round 0 signal 9")):
        _run_all(_with(lambda: os.kill(os.getpid(), signal.SIGKILL)))


def test_a_worker_killed_between_rounds_is_replaced() -> None:
    def kill_one(report: object) -> None:
        child = multiprocessing.active_children()[0]
        os.kill(child.pid, signal.SIGKILL)
        child.join(60)

    problem = PROBLEMS["perceptron"]
    expected = run("sequential", fa.FedADMM(rho=0.5), problem())
    found = run(TWO, fa.FedADMM(rho=0.5), problem(), callbacks=[kill_one])
    assert_same_run(found, expected, tolerance=0.0)


def test_a_stuck_client_is_named_after_the_timeout() -> None:
    def disaster() -> None:
        signal.pause()

    with pytest.raises(fa.errors.EngineError, match=naming("client 2 3 seconds")):
        _run_all(_with(disaster), Workers(workers=2, timeout=3.0))


def test_leaving_in_the_middle_of_a_round_ends_the_processes() -> None:
    def interrupt(report: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(TWO, fa.FedAvg(), PROBLEMS["perceptron"](), callbacks=[interrupt])
    diverging = {"solver": fa.GradientDescent(1e200), "stop": fa.Epochs(4)}
    found = run(TWO, fa.FedAvg(), PROBLEMS["least squares"](), **diverging)
    assert found.code == "diverged"


def test_messages_that_grow_get_more_memory() -> None:
    """A silent round of FedPD sends nothing; the next one needs room for a vector."""
    method, problem = fa.FedPD(eta=0.7, skip_probability=0.5), PROBLEMS["perceptron"]
    coins = [[uniform(derive(seed, "broadcast", t)) < 0.5 for t in (0, 1)] for seed in range(30)]
    options = {"rounds": 2, "seed": coins.index([True, False])}
    expected = run("sequential", method, problem(), **options)
    assert [record["traffic"]["bytes_up"] > 0 for record in expected.history] == [False, True]
    assert_same_run(run(TWO, method, problem(), **options), expected, tolerance=0.0)


def test_options_are_checked() -> None:
    with pytest.raises(fa.errors.ParameterError, match=naming("workers 0")):
        Workers(workers=0)
    with pytest.raises(fa.errors.ParameterError, match=naming("timeout -1")):
        Workers(timeout=-1)


ENDLESS = """
import time, torch
import fedadmm as fa

class Slow(fa.LeastSquares):
    def gradient(self, params, rows=None):
        print("working", flush=True)
        time.sleep(0.2)
        return super().gradient(params, rows)

    def to(self, dtype, device="cpu"):
        return self

clients = [Slow(torch.ones(2, 2), torch.ones(2)) for _ in range(4)]
problem = fa.Problem(clients, initial=torch.ones(2))
engine = fa.engines.Workers(2)
fa.simulate(fa.FedAvg(), problem, 10**6, solver=fa.SGD(0.1), engine=engine, evaluate=False)
"""


def _gone(group: int, patience: float) -> bool:
    """Whether all processes of a group end in time."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    os.killpg(group, signal.SIGKILL)
    return False


@pytest.mark.parametrize("how", ["ctrl-c", "parent killed"])
def test_no_process_survives_its_parent(how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline().startswith(b"working")
        if how == "ctrl-c":
            os.killpg(parent.pid, signal.SIGINT)
        else:
            parent.kill()
        parent.wait(120)
        assert _gone(parent.pid, patience=120)
