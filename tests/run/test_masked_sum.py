"""Masked sums in a simulation: the plain run to the step of the fixed point."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.core.aggregation import MaskedSum, Sum
from fedadmm.core.messages import Upload
from support.given_delays import GivenDelays
from support.rejections import naming

METHODS = {
    "fedavg": fa.FedAvg(),
    "fedadmm": fa.FedADMM(1.0),
    "members": fa.FedADMM(1.0, members="seen"),
    "schedule": fa.FedADMM(fa.schedules.Piecewise({0: 1.0, 4: 0.5})),
    "feddr": fa.FedDR(1.0),
    "insa": fa.FedADMMInSa(),
    "scaffold": fa.Scaffold(),
    "aligned": fa.AlignedADMM(1.0),
    "feddyn": fa.FedDyn(1.0),
    "fednova": fa.FedNova(),
    "fedexp": fa.FedExP(),
}


def problem(clients: int = 25, weights=None) -> fa.Problem:
    draws = torch.Generator().manual_seed(3)
    eye = torch.eye(4, dtype=torch.float64)
    sites = [
        fa.Quadratic((1 + i % 5) * eye, torch.randn(4, generator=draws, dtype=torch.float64))
        for i in range(clients)
    ]
    return fa.Problem(sites, weights=weights, initial=torch.zeros(4, dtype=torch.float64))


def run(method=None, aggregator=None, rounds=8, **options) -> fa.Result:
    settings = {"solver": fa.GradientDescent(0.1), "stop": fa.Steps(3)} | options
    clients = settings.pop("problem", None) or problem()
    if aggregator is not None:
        settings["aggregator"] = aggregator
    return fa.simulate(method or fa.FedAvg(), clients, rounds, **settings)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_is_the_plain_one_to_the_step(name):
    """A round's sum is off by at most 7 half steps; the mean of 7 of 25 by 25/7 times that.

    Errors of earlier rounds do not grow on these problems by more than a few times.
    """
    method = METHODS[name]
    sampler = (
        fa.FullParticipation() if method.requirements.full_participation else fa.UniformSampling(7)
    )
    plain = run(method, sampler=sampler)
    aggregate = MaskedSum(bound=50.0)
    masked = run(method, aggregate, sampler=sampler)
    off = float((plain.params - masked.params).abs().max())
    step = aggregate.fixed_point.step
    assert 0 < off < 8 * 10 * 25 * step / 2
    finer = run(method, MaskedSum(bound=50.0, step=step * 2.0**-16), sampler=sampler)
    assert float((plain.params - finer.params).abs().max()) < off / 2**8


@pytest.mark.parametrize("engine", ["sequential", "vectorised", fa.engines.Workers(workers=1)])
@pytest.mark.parametrize("cohort", [3, 25])
def test_every_engine_with_single_updates_gives_the_same_run(engine, cohort):
    settings = {"sampler": fa.UniformSampling(cohort), "pipeline": [fa.Clip(0.5)]}
    first = run(fa.FedADMM(1.0), MaskedSum(), engine="sequential", **settings)
    other = run(fa.FedADMM(1.0), MaskedSum(), engine=engine, **settings)
    np.testing.assert_allclose(other.params, first.params, atol=1e-8)
    assert first.history[-1]["traffic"]["bytes_up"] == cohort * 4 * 4


def test_the_sum_of_many_is_made_in_groups_and_is_the_sum(monkeypatch):
    from fedadmm.core import pairwise_masks

    sizes = []
    whole = pairwise_masks.rehearsed
    monkeypatch.setattr(
        pairwise_masks, "rehearsed", lambda some: sizes.append(len(some)) or whole(some)
    )
    draws = torch.Generator().manual_seed(0)
    uploads = [Upload((torch.rand(3, generator=draws),)) for _ in range(34)]
    replies = [(1 / 34, upload) for upload in uploads]
    found = MaskedSum(bound=1.0).aggregate(iter(replies))
    plain = Sum().aggregate(iter(replies))
    np.testing.assert_allclose(found.message[0], plain.message[0], atol=1e-6)
    assert sizes == [10, 10, 14]
    assert MaskedSum(bound=1.0).aggregate(iter(replies[:2])) is None
    assert MaskedSum(bound=1.0).aggregate(iter(())) is None
    assert all(trees.all_finite(upload) for upload in uploads)


def test_a_round_with_too_few_updates_fails_with_the_reason():
    sampler = fa.BernoulliSampling(0.2)
    with pytest.raises(fa.errors.EngineError, match=naming("MaskedSum.minimum participants")):
        run(fa.FedADMM(1.0), MaskedSum(bound=50.0), rounds=60, sampler=sampler)


def test_an_entry_above_the_bound_is_named():
    with pytest.raises(fa.errors.ParameterError, match=naming("bound 0.001")):
        run(aggregator=MaskedSum(bound=0.001))


REFUSED = {
    "no bound": ({}, "MaskedSum.bound None Clip"),
    "adaptive": ({"pipeline": [fa.AdaptiveClip()]}, "MaskedSum.bound None"),
    "few": (
        {"sampler": fa.UniformSampling(2), "pipeline": [fa.Clip(1.0)]},
        "sampler UniformSampling 2 MaskedSum.minimum 3",
    ),
    "clients": (
        {"problem": problem(2), "pipeline": [fa.Clip(1.0)]},
        "sampler FullParticipation 2 MaskedSum.minimum 3",
    ),
    "compressed": ({"pipeline": [fa.Clip(1.0), fa.TopK(2)]}, "pipeline MaskedSum TopK"),
    "asynchronous": (
        {
            "method": fa.FedDR(1.0),
            "pipeline": [fa.Clip(1.0)],
            "engine": GivenDelays(0),
        },
        "engine MaskedSum",
    ),
    "as it is": (
        {"method": fa.AlignedADMM(1.0, members="seen"), "pipeline": [fa.Clip(1.0)]},
        "MaskedSum.bound AlignedADMM joined",
    ),
    "ray": (
        {"pipeline": [fa.Clip(1.0)], "engine": fa.engines.Ray()},
        "aggregator MaskedSum Ray Sequential",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_masked_sums_exclude_is_rejected_before_round_0(name):
    options, names = REFUSED[name]
    with pytest.raises(fa.errors.CompatibilityError, match=naming(names)):
        run(aggregator=MaskedSum(), **options)


def test_a_step_without_headroom_is_rejected_before_round_0():
    with pytest.raises(fa.errors.ParameterError, match=naming("step 64")):
        run(aggregator=MaskedSum(bound=50.0, step=1e-19))
    with pytest.raises(fa.errors.ParameterError, match=naming("group 4 minimum 5")):
        MaskedSum(minimum=5, group=4)
    with pytest.raises(fa.errors.ParameterError, match=naming("MaskedSum minimum 2")):
        MaskedSum(minimum=2)


def test_noise_shares_cover_the_accounted_noise_without_amplification():
    """m clients add z C a / sqrt(minimum - 1) each; FedAvg divides the sum by what is expected."""
    pytest.importorskip("dp_accounting")
    still = fa.Problem(
        [fa.Quadratic(torch.zeros(1500, 1500), torch.zeros(1500)) for _ in range(1)] * 8,
        initial=torch.zeros(1500),
    )
    noise = fa.GaussianNoise(2.0, 1e-3)
    result = run(
        aggregator=MaskedSum(minimum=5),
        rounds=1,
        problem=still,
        solver=fa.GradientDescent(0.1),
        stop=fa.Steps(1),
        pipeline=[fa.Clip(0.5), noise],
        evaluate=fa.Evaluation(objective=False),
    )
    expected = 2.0 * 0.5 * math.sqrt(8 / 4)  # the mean over all eight divides by a weight of one
    assert abs(float(result.params.std()) / (expected / 8) - 1) < 0.09
    coins = {"sampler": fa.BernoulliSampling(0.5), "pipeline": [fa.Clip(0.5), noise]}
    spent = [
        run(aggregator=one, rounds=1, **coins).history[-1]["privacy"]["epsilon"]
        for one in (Sum(), MaskedSum())
    ]
    assert spent[0] < 0.7 * spent[1]
