"""With their defaults FedDR and FedADMM are the same method: both fit the penalty to local work."""

from __future__ import annotations

import pytest
import torch

import fedadmm as fa


def test_feddr_and_fedadmm_agree_by_default() -> None:
    problem = fa.problems.load("digits", clients=6, partition="shards", max_train=300)
    options = {"solver": fa.SGD(lr=0.1, batch_size=10), "stop": fa.Epochs(2), "start": "global"}
    runs = [fa.simulate(method, problem, 4, **options) for method in (fa.FedDR(), fa.FedADMM())]
    # FedADMM's penalty is 0.25 / (learning rate * local steps), FedDR's step size its inverse.
    assert runs[0].algorithm.eta == pytest.approx(1 / runs[1].algorithm.rho)
    torch.testing.assert_close(runs[0].params, runs[1].params, rtol=1e-4, atol=1e-5)
