"""What the server makes of replies is a part, and says whether their sum is enough for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.core.aggregation import Sum
from fedadmm.core.messages import Upload
from fedadmm.flower.federation import Federation
from fedadmm.study.config import resolve
from support.rejections import naming
from support.strangers import Median

CENTRES = np.array([[50.0, 9.0], [2.0, -4.0], [100.0, 0.5], [3.0, 1.0], [-7.0, -2.0]])
WEIGHTS = [1.0, 4.0, 2.0, 2.0, 1.0]


def problem() -> fa.Problem:
    """f_i = ||x - centre_i||^2 / 2, so that client i's model is its centre."""
    eye = torch.eye(2, dtype=torch.float64)
    clients = [fa.Quadratic(eye, torch.from_numpy(centre)) for centre in CENTRES]
    return fa.Problem(clients, weights=WEIGHTS, initial=torch.zeros(2, dtype=torch.float64))


def run(aggregate: fa.Aggregator, method: fa.Algorithm | None = None, **options) -> fa.Result:
    chosen = {"solver": fa.GradientDescent(1.0), "stop": fa.Steps(1)} | options
    return fa.simulate(method or fa.FedAvg(), problem(), 2, aggregator=aggregate, **chosen)


@pytest.mark.parametrize(
    "engine", ["sequential", "vectorised", fa.engines.Workers(workers=1), "auto"]
)
def test_single_updates_reach_the_aggregator_on_every_local_engine(engine):
    """One gradient step of length 1 leads to a client's centre; a worker has memory for four."""
    result = run(Median(), engine=engine)
    np.testing.assert_allclose(result.params, np.median(CENTRES, axis=0), atol=1e-12)
    summed = run(Sum(), engine=engine)
    expected = np.average(CENTRES, axis=0, weights=WEIGHTS)
    np.testing.assert_allclose(summed.params, expected, atol=1e-12)


def test_a_sum_of_sums_is_the_sum():
    draws = torch.Generator().manual_seed(0)
    uploads = [Upload((torch.randn(3, generator=draws),)) for _ in range(5)]
    shares = [0.1, 0.2, 0.3, 0.15, 0.25]
    replies = list(zip(shares, uploads, strict=True))
    parts = [Sum().aggregate(iter(some)) for some in (replies[:2], replies[2:])]
    whole = Sum().aggregate((1.0, part) for part in parts)
    expected = sum(share * upload.message[0].numpy() for share, upload in replies)
    np.testing.assert_allclose(whole.message[0], expected, rtol=1e-6)
    assert Sum().aggregate(iter(())) is None
    assert all(trees.all_finite(upload) for upload in uploads)


REJECTED = {
    "client state": ({"method": fa.FedADMM(1.0)}, "algorithm FedADMM Median Sum"),
    "client state without increments": ({"method": fa.FedPD(1.0)}, "algorithm FedPD Median Sum"),
    "no rounds": (
        {"method": fa.FedAsync(), "engine": fa.engines.VirtualTime(mode="async")},
        "engine Median",
    ),
    "noise": ({"pipeline": [fa.Clip(1.0), fa.GaussianNoise(1.0)]}, "pipeline GaussianNoise Median"),
    "Ray": ({"engine": fa.engines.Ray()}, "aggregator Median Ray Sequential"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_an_aggregator_of_single_updates_is_rejected_where_only_sums_are_right(case):
    options, names = REJECTED[case]
    with pytest.raises(fa.errors.CompatibilityError, match=naming(names)):
        run(Median(), **options)


def test_a_deployment_aggregates_with_the_same_component():
    options = {"solver": fa.SGD(0.1), "initial": torch.zeros(2), "aggregator": Median()}
    assert Federation(fa.FedAvg(), 3, 2, **options).server_job().aggregator == Median()
    with pytest.raises(fa.errors.CompatibilityError, match=naming("algorithm FedADMM Median")):
        Federation(fa.FedADMM(1.0), 3, 2, **options).server_job()


def test_a_configuration_names_it():
    assert resolve({}).tree["aggregator"] == {"name": "sum"}
    external = {"aggregator": {"name": "support.strangers:Median"}}
    assert resolve(external).aggregator == Median()
    with pytest.raises(fa.errors.ConfigError, match=naming("aggregator.name 'mean'")):
        resolve({"aggregator": {"name": "mean"}})
