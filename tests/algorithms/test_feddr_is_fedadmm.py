"""FedDR(alpha=1, eta) = FedADMM(rho=1/eta, tracking) = FedDR-II (Wang et al., Theorem 1)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as hypothesis_given, strategies as st

import fedadmm as fa
from support import reference
from support.federations import (
    PARTIAL_SAMPLERS,
    ROUNDS,
    SAMPLERS,
    WEIGHTS,
    assert_same,
    federation,
    run,
    snapshots,
    stacked,
)

REGULARIZERS = {
    "none": fa.regularizers.Zero(),
    "l1": fa.L1(0.3),
    "box": fa.regularizers.Box(-0.2, 0.4),
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_the_three_methods_broadcast_the_same_vectors(sampler, regularizer):
    given = federation(11, weights=WEIGHTS, regularizer=REGULARIZERS[regularizer])
    eta = 0.7
    methods = [fa.FedDR(eta), fa.FedDRII(eta), fa.FedADMM(1 / eta)]
    runs = [run(method, given, sampler=SAMPLERS[sampler], seed=3) for method in methods]
    assert len(runs[0].trajectory) == ROUNDS
    assert_same(runs[0].trajectory, runs[2].trajectory)
    assert_same(runs[1].trajectory, runs[2].trajectory)


@hypothesis_given(
    seed=st.integers(0, 2**20),
    eta=st.floats(0.05, 5.0),
    clients=st.integers(1, 6),
    dimension=st.integers(1, 6),
    lam=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_they_agree_on_any_quadratics(seed, eta, clients, dimension, lam):
    given = federation(seed, clients, dimension, regularizer=fa.L1(lam))
    sampler = fa.UniformSampling(0.5)
    dr = run(fa.FedDR(eta), given, sampler=sampler, seed=seed)
    ii = run(fa.FedDRII(eta), given, sampler=sampler, seed=seed)
    admm = run(fa.FedADMM(1 / eta), given, sampler=sampler, seed=seed)
    assert_same(dr.trajectory, admm.trajectory)
    assert_same(ii.trajectory, admm.trajectory)


@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_the_states_map_onto_each_other_in_every_round(regularizer):
    """v = w - y/rho, x = w, xhat = w + y/rho; and FedDR-II's w is y/rho."""
    given = federation(12, weights=WEIGHTS, regularizer=REGULARIZERS[regularizer])
    eta, rho = 0.4, 2.5
    sampler = PARTIAL_SAMPLERS["bernoulli"]
    feddr = snapshots(fa.FedDR(eta), given, sampler=sampler, seed=5)
    second = snapshots(fa.FedDRII(eta), given, sampler=sampler, seed=5)
    admm = snapshots(fa.FedADMM(rho), given, sampler=sampler, seed=5)
    for one, two, three in zip(feddr, second, admm, strict=True):
        w = stacked([client.w for client in three.clients])
        dual = stacked([client.y for client in three.clients]) / rho
        assert_same([client.v for client in one.clients], w - dual)
        assert_same([client.x for client in one.clients], w)
        assert_same([2 * c.x - c.v for c in one.clients], w + dual)
        assert_same([client.x for client in two.clients], w)
        assert_same([client.w for client in two.clients], dual)
        assert_same([one.server.xtilde, two.server.xtilde], stacked([three.server.mean] * 2))


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.95])
@pytest.mark.parametrize("init", ["start", "prox"])
def test_relaxed_feddr_against_a_direct_program(alpha, init):
    lam = 0.3
    given = federation(13, weights=WEIGHTS, regularizer=fa.L1(lam))
    sampler = fa.UniformSampling(2)
    cohorts = [sampler.sample(4, t, given.clients) for t in range(ROUNDS)]
    result = run(fa.FedDR(0.6, alpha, init), given, sampler=sampler, seed=4)
    expected = reference.feddr(
        given, cohorts, 0.6, alpha, init, lambda v, t: reference.soft_threshold(v, t * lam)
    )
    rounds = result.trajectory[-ROUNDS:]  # an initial round with everybody comes before them
    assert_same(rounds, expected)


def test_relaxation_matters():
    """alpha = 1 and alpha = 1.5 are different methods, so the tests above compare something."""
    given = federation(14)
    first = run(fa.FedDR(0.6, 1.0), given, rounds=3)
    second = run(fa.FedDR(0.6, 1.5), given, rounds=3)
    assert np.abs(stacked(first.trajectory) - stacked(second.trajectory)).max() > 1e-2
