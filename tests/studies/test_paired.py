"""Intervals and chances of pairs against values that were worked out in another way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from studies.participation.paired import chance, counted, mean_difference, median_ratio


def _array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_a_run_that_missed_counts_as_its_limit() -> None:
    assert counted([3, None, 7], 50).tolist() == [3.0, 50.0, 7.0]


def test_the_ratio_is_one_of_medians() -> None:
    own, other = _array(10, 20, 60), _array(40, 50, 1000)
    found = median_ratio(own, other)
    assert found.value == pytest.approx(20 / 50)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high


def test_the_interval_is_the_percentiles_of_resampled_pairs() -> None:
    # all 4^4 samples of four pairs, each equally likely: the exact distribution that a bootstrap
    # approaches; pairs must stay together, for the differences are what they are of
    own, other = _array(10, 22, 31, 43), _array(11, 24, 34, 47)
    differences = own - other
    exact = [differences[list(sample)].mean() for sample in itertools.product(range(4), repeat=4)]
    low, high = np.percentile(exact, [2.5, 97.5])
    found = mean_difference(own, other)
    assert found.value == pytest.approx(differences.mean())
    assert found.low == pytest.approx(low, abs=0.26)  # one step of a mean over four
    assert found.high == pytest.approx(high, abs=0.26)


def test_equal_runs_have_no_spread() -> None:
    same = _array(5, 6, 7)
    assert mean_difference(same, same) == (0.0, 0.0, 0.0)
    assert median_ratio(_array(5, 5, 5), _array(10, 10, 10)) == (0.5, 0.5, 0.5)


def test_one_pair_has_no_interval() -> None:
    assert median_ratio(_array(5), _array(10)) == (0.5, None, None)
    assert mean_difference(_array(5), _array(10)) == (-5.0, None, None)
    assert chance(_array(5), _array(10)) is None


@pytest.mark.parametrize("pairs", [3, 8])
def test_the_chance_counts_all_flips_of_signs(pairs: int) -> None:
    generator = np.random.default_rng(pairs)
    own, other = generator.normal(0.7, 1, pairs), generator.normal(0, 1, pairs)
    differences = own - other
    flips = np.array(list(itertools.product((-1, 1), repeat=pairs)))
    means = (flips * differences).mean(axis=1)
    # two-sided as scipy does it: twice the smaller tail, at most one
    observed = differences.mean()
    tails = [(means >= observed - 1e-12).mean(), (means <= observed + 1e-12).mean()]
    assert chance(own, other) == pytest.approx(min(1.0, 2 * min(tails)))


def test_ten_seeds_that_all_agree_are_hardly_chance() -> None:
    ahead = np.arange(10.0)
    assert chance(ahead, ahead + 1 + ahead) == pytest.approx(2 / 2**10)
