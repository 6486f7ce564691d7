"""FedSplit = FedDR at alpha = 2 = Peaceman-Rachford splitting of the consensus problem."""

from __future__ import annotations

from hypothesis import given as hypothesis_given, strategies as st

import fedadmm as fa
from support import reference
from support.federations import ROUNDS, WEIGHTS, assert_same, federation, run


@hypothesis_given(seed=st.integers(0, 2**20), eta=st.floats(0.1, 3.0))
def test_fedsplit_is_peaceman_rachford(seed, eta):
    given = federation(seed, weights=WEIGHTS)
    result = run(fa.FedSplit(eta), given)
    assert_same(result.trajectory, reference.peaceman_rachford(given, eta, ROUNDS))


@hypothesis_given(seed=st.integers(0, 2**20), init=st.sampled_from(["start", "prox"]))
def test_fedsplit_is_feddr_at_the_end_of_its_range(seed, init):
    given = federation(seed)
    result = run(fa.FedSplit(0.7, init=init), given)
    everyone = [range(given.clients)] * ROUNDS
    rounds = result.trajectory[-ROUNDS:]  # an initial round with everybody comes before them
    assert_same(rounds, reference.feddr(given, everyone, 0.7, 2.0, init))


def test_feddr_goes_to_fedsplit_continuously():
    """alpha -> 2: the trajectories close up in proportion to 2 - alpha."""
    given = federation(52)
    split = run(fa.FedSplit(0.7), given, rounds=10).params
    gaps = [
        float((run(fa.FedDR(0.7, 2 - d), given, rounds=10).params - split).norm())
        for d in (1e-3, 1e-4)
    ]
    assert 5 < gaps[0] / gaps[1] < 20
