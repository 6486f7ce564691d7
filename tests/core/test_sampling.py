"""Every sampling scheme: who takes part how often, and always the same for the same seed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import fedadmm as fa

N = 8
ROUNDS = 3000
SAMPLERS = {
    "full": fa.FullParticipation(),
    "uniform": fa.UniformSampling(3),
    "uniform fraction": fa.UniformSampling(0.25),
    "bernoulli": fa.BernoulliSampling(0.3),
    "own coins": fa.BernoulliSampling([0.05, 0.1, 0.2, 0.4, 0.5, 0.7, 0.9, 1.0]),
    "weighted": fa.WeightedSampling([1, 2, 3, 4, 5, 6, 7, 8], 3),
    "weighted with a cap": fa.WeightedSampling([1, 1, 1, 1, 1, 1, 1, 50], 3),
    "blocks": fa.NonOverlappingSampling(3),
    "doubly uniform": fa.DoublyUniformSampling(),
    "cyclic": fa.CyclicSampling(3),
    "trace": fa.TraceSampling([[0, 1, 2], [3, 4], [5, 6, 7], [0]], repeat=True),
}
RANDOM = [name for name in SAMPLERS if name not in ("full", "cyclic", "trace")]


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_frequencies_are_the_probabilities(name):
    """Five standard deviations of a binomial frequency; exact where p is 0 or 1."""
    sampler = SAMPLERS[name]
    counts = np.zeros(N)
    for t in range(ROUNDS):
        counts[list(sampler.sample(1, t, N))] += 1
    p = sampler.probabilities(N)
    bound = 5 * np.sqrt(p * (1 - p) / ROUNDS) + 1e-12
    assert (np.abs(counts / ROUNDS - p) <= bound).all()
    assert (p > 0).all()


EXPECTED = {
    "full": np.ones(N),
    "uniform": np.full(N, 3 / 8),
    "uniform fraction": np.full(N, 2 / 8),
    "weighted": 3 * np.arange(1, 9) / 36,
    "weighted with a cap": np.array([2 / 7] * 7 + [1.0]),
    "blocks": np.full(N, 1 / 3),
    "doubly uniform": np.full(N, np.mean(np.arange(1, N + 1)) / N),
    "cyclic": np.full(N, 3 / 8),
    "trace": np.array([2, 1, 1, 1, 1, 1, 1, 1]) / 4,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_probabilities_are_those_of_the_scheme(name):
    np.testing.assert_allclose(SAMPLERS[name].probabilities(N), EXPECTED[name], rtol=1e-12)


@pytest.mark.parametrize("name", SAMPLERS)
def test_ids_are_sorted_plain_and_without_repetition(name):
    for t in range(30):
        ids = SAMPLERS[name].sample(2, t, N)
        assert list(ids) == sorted(set(ids))
        assert all(type(i) is int and 0 <= i < N for i in ids)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_cohort_depends_on_seed_and_round_only(name):
    sampler = SAMPLERS[name]
    forwards = [list(sampler.sample(3, t, N)) for t in range(20)]
    backwards = [list(sampler.sample(3, t, N)) for t in reversed(range(20))]
    assert forwards == backwards[::-1]


@pytest.mark.parametrize("name", RANDOM)
def test_other_seeds_and_rounds_give_other_cohorts(name):
    sampler = SAMPLERS[name]
    one = [tuple(sampler.sample(3, t, N)) for t in range(20)]
    two = [tuple(sampler.sample(4, t, N)) for t in range(20)]
    assert one != two
    assert len(set(one)) > 1


@pytest.mark.parametrize("name", ["uniform", "uniform fraction", "weighted", "weighted with a cap"])
def test_a_fixed_size_is_kept(name):
    size = 2 if name == "uniform fraction" else 3
    assert {len(SAMPLERS[name].sample(0, t, N)) for t in range(500)} == {size}


def test_uniform_sampling_gives_every_subset_equally_often():
    counts: dict[tuple[int, ...], int] = dict.fromkeys(itertools.combinations(range(4), 2), 0)
    for t in range(3000):
        counts[tuple(fa.UniformSampling(2).sample(0, t, 4))] += 1
    # binomial(3000, 1/6): five standard deviations are about 102
    assert max(abs(count - 500) for count in counts.values()) < 102


def test_weighted_sampling_lets_every_pair_meet():
    """Steps along a fixed order would never pick neighbours together; the order is drawn anew."""
    sampler = fa.WeightedSampling([1, 2, 2, 1, 2, 2], 2)
    met = {tuple(sampler.sample(0, t, 6)) for t in range(1000)}
    assert met == set(itertools.combinations(range(6), 2))


def test_blocks_are_a_partition_that_stays():
    sampler = fa.NonOverlappingSampling(3)
    blocks = {tuple(sampler.sample(5, t, N)) for t in range(200)}
    assert len(blocks) == 3
    assert sorted(i for block in blocks for i in block) == list(range(N))
    assert {len(block) for block in blocks} == {2, 3}
    assert blocks != {tuple(sampler.sample(6, t, N)) for t in range(200)}


def test_doubly_uniform_sizes_are_uniform():
    sizes = np.bincount(
        [len(fa.DoublyUniformSampling().sample(0, t, 4)) for t in range(2000)], minlength=5
    )
    assert sizes[0] == 0
    assert np.abs(sizes[1:] - 500).max() < 97


def test_cyclic_sampling_goes_round():
    sampler = fa.CyclicSampling(3)
    assert [list(sampler.sample(0, t, 7)) for t in range(4)] == [
        [0, 1, 2],
        [3, 4, 5],
        [0, 1, 6],
        [2, 3, 4],
    ]


def test_a_trace_is_followed_and_repeated():
    trace = [[2, 0], [1], [3]]
    assert list(fa.TraceSampling(trace).sample(9, 0, 4)) == [0, 2]
    repeated = fa.TraceSampling(trace, repeat=True)
    assert [list(repeated.sample(9, t, 4)) for t in range(4)] == [[0, 2], [1], [3], [0, 2]]
    repeated.check(4, 100)


def test_a_fraction_takes_at_least_one():
    assert len(fa.UniformSampling(0.01).sample(0, 0, 5)) == 1
    assert list(fa.UniformSampling(1.0).sample(0, 0, 5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_check_accepts_a_proper_scheme(name):
    SAMPLERS[name].check(N, 4)
