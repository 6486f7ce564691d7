"""Delays from a given law: FedDR without them, asyncFedDR with them, and its certificate."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core.local_work import LocalWork
from fedadmm.data import problems
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.theory import async_feddr_bound
from fedadmm.theory.certificates import certify
from support.certified import assert_holds, certified, curves
from support.federations import (
    ROUNDS,
    WEIGHTS,
    Array,
    Federation,
    assert_same,
    federation,
    run,
    snapshots,
    weighted_mean,
)
from support.given_delays import GivenDelays
from support.jobs import job_of
from support.records import untimed
from support.rejections import naming

ONE = fa.UniformSampling(1)


@pytest.mark.parametrize("init", ["start", "prox"])
@pytest.mark.parametrize("sampler", [ONE, fa.CyclicSampling(1), fa.WeightedSampling(WEIGHTS, 1)])
def test_without_delay_it_is_feddr_with_one_client(sampler, init):
    given = federation(81, weights=WEIGHTS, regularizer=fa.L1(0.2))
    options = {"sampler": sampler, "seed": 3}
    late = run(fa.AsyncFedDR(0.6, 0.9, init), given, engine=GivenDelays(0), **options)
    rounds = run(fa.FedDR(0.6, 0.9, init), given, **options)
    assert all(torch.equal(a, b) for a, b in zip(late.trajectory, rounds.trajectory, strict=True))
    assert [record["clock"]["delays"] for record in late.history if record["round"]] == [
        [0]
    ] * ROUNDS


def test_each_client_may_have_a_law_of_its_own():
    given = federation(82, weights=WEIGHTS)
    engine = GivenDelays([0, 0, 3, 6, 0])
    late = run(fa.AsyncFedDR(0.4), given, 400, engine=engine, sampler=ONE, seed=1)
    worst = [0] * 5
    for record in late.history:
        for client, delay in zip(
            record["cohort"]["clients"], record["clock"]["delays"], strict=True
        ):
            worst[client] = max(worst[client], delay)
    assert worst == [0, 0, 3, 6, 0]
    assert_same(late.trajectory, direct(given, late.history, 0.4, 1.0))
    assert engine.expected_delay(5) == 6


def test_a_law_for_other_clients_is_rejected():
    with pytest.raises(fa.errors.ParameterError, match=naming("GivenDelays max_delay 2 5")):
        run(fa.AsyncFedDR(0.4), federation(82), 1, engine=GivenDelays([0, 3]), sampler=ONE)


def direct(given: Federation, history: list[dict[str, Any]], eta: float, alpha: float) -> Array:
    """Algorithm 2: i_k and d_k from the record, the model of step k - d_k, the own state."""
    v = np.tile(given.start, (given.clients, 1))
    x = v.copy()
    models = [given.start.copy()]
    for step, record in enumerate(history):
        for client, delay in zip(
            record["cohort"]["clients"], record["clock"]["delays"], strict=True
        ):
            v[client] = v[client] + alpha * (models[step - delay] - x[client])
            x[client] = given.prox(client, v[client], eta)
        models.append(given.a @ (2 * x - v))
    return np.array(models[1:])


@pytest.mark.parametrize("sampler", [ONE, fa.UniformSampling(3), fa.BernoulliSampling(0.4)])
def test_each_client_works_from_the_model_that_the_law_gives(sampler):
    given = federation(82, weights=WEIGHTS)
    late = run(fa.AsyncFedDR(0.5, 0.9), given, 120, engine=GivenDelays(4), sampler=sampler, seed=7)
    assert max(record["clock"]["staleness_max"] for record in late.history) >= 2
    assert_same(late.trajectory, direct(given, late.history, 0.5, 0.9))


def test_the_server_holds_the_mean_after_every_step():
    given = federation(83, weights=WEIGHTS)
    engine = GivenDelays(5)
    for shot in snapshots(fa.AsyncFedDR(0.7, 1.2), given, 80, engine=engine, sampler=ONE, seed=6):
        mean = weighted_mean(given.a, [2 * client.x - client.v for client in shot.clients])
        np.testing.assert_allclose(shot.server.xtilde, mean, atol=1e-12, rtol=0)


def test_the_law_is_the_one_that_was_given():
    """Turns of 20 clients leave every delay up to 3 free: each of the four comes a quarter of the
    time; and nobody reads a model older than its own last reply."""
    given = federation(84, clients=20)
    engine, turns = GivenDelays(3), fa.CyclicSampling(1)
    history = run(fa.AsyncFedDR(0.3, 0.5), given, 2000, engine=engine, sampler=turns).history
    counts = Counter(record["clock"]["delays"][0] for record in history)
    assert sorted(counts) == [0, 1, 2, 3]
    assert all(abs(counts[d] / 2000 - 0.25) < 0.04 for d in range(4))
    assert history[-1]["clock"]["longest_absence"] == 19
    crowded = run(fa.AsyncFedDR(0.3, 0.5), given, 300, engine=GivenDelays(30), sampler=ONE).history
    last: dict[int, int] = {}
    for step, record in enumerate(crowded):
        (client,), (delay,) = record["cohort"]["clients"], record["clock"]["delays"]
        assert step - delay > last.get(client, -1)
        last[client] = step


@pytest.mark.parametrize("method", [fa.AsyncFedDR(0.6, 1.2), fa.AsyncFedDR(0.6, init="prox")])
def test_a_run_is_taken_up_with_the_models_it_may_still_need(method, tmp_path):
    given = federation(85, weights=WEIGHTS)
    settings = {"engine": GivenDelays(6), "sampler": ONE, "seed": 5}
    whole = run(method, given, 40, **settings)
    saved = Checkpoints(tmp_path, every=3)
    run(method, given, 17, checkpoints=saved, **settings)
    rest = run(method, given, 40, checkpoints=saved, resume=True, **settings)
    assert untimed(rest.history) == untimed(whole.history)[-23:]
    assert torch.equal(rest.params, whole.params)
    assert json.loads(json.dumps(whole.history)) == whole.history


LAWS = {
    "uniform": (ONE, 0, 1 / 12),
    "weighted": (fa.WeightedSampling([1.0] * 6 + [2.0] * 6, 1), 0, 1 / 18),
    "in turns": (fa.CyclicSampling(1), 11, 1.0),
    "by a trace": (
        fa.TraceSampling([[i] for i in (*range(12), *range(11, -1, -1))], True),
        22,
        1.0,
    ),
}


@pytest.mark.parametrize("tau", [0, 2])
@pytest.mark.parametrize("law", LAWS)
def test_the_certificate_uses_the_constants_that_are_set(law, tau):
    """tau, T and p_hat as given; the measured delays and absences play no part."""
    sampler, T, p_hat = LAWS[law]
    problem = problems.load("quadratics", clients=12, dimension=4)
    alpha, eta = 0.4, 0.2
    options = {"solver": fa.ExactSolver(), "engine": GivenDelays(tau), "sampler": sampler}
    runs = [
        certified(fa.AsyncFedDR(eta, alpha), problem, 40, seed=seed, **options) for seed in (0, 1)
    ]
    start = problem.start(0)
    gradients = [float(client.gradient(start).square().sum()) for client in problem.clients]
    gap = float(problem.value(start))
    expected = [
        async_feddr_bound(
            12, tau, T, p_hat, 1.0, alpha, eta, K, gap, start_gradient=sum(gradients) / 12
        )
        for K in range(1, 41)
    ]
    assert curves(runs[0])[1] == pytest.approx(expected, rel=1e-12)
    for result in runs:
        assert_holds(result)


@pytest.mark.parametrize(
    "sampler", [fa.UniformSampling(2), fa.BernoulliSampling(1 / 6), fa.CyclicSampling(2)]
)
def test_several_clients_in_a_step_are_not_certified(sampler):
    problem = problems.load("quadratics", clients=6, dimension=4)
    job = job_of(fa.AsyncFedDR(0.2, 0.4), problem, LocalWork(fa.ExactSolver()), 0, problem.start(0))
    with pytest.raises(fa.errors.CompatibilityError, match=naming("certificate")):
        certify("auto", job, sampler, GivenDelays(1))


def test_delays_beyond_the_theorem_are_rejected_before_the_first_step():
    problem = problems.load("quadratics", clients=6, dimension=4)
    with pytest.raises(fa.errors.ParameterError, match=naming("async_certificate alpha 0.9")):
        certified(
            fa.AsyncFedDR(0.1, 0.9),
            problem,
            5,
            engine=GivenDelays(9),
            sampler=ONE,
            solver=fa.ExactSolver(),
        )


def test_invalid_delays_and_synchronous_methods_are_rejected():
    with pytest.raises(fa.errors.ParameterError, match=naming("GivenDelays max_delay -1")):
        GivenDelays(-1)
    with pytest.raises(
        fa.errors.CompatibilityError,
        match=naming("sampler FedPD"),
    ):
        run(fa.FedPD(1.0), federation(86), 1, engine=GivenDelays())
