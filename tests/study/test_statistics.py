"""Intervals, chances and ranks against values that were worked out in another way."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedadmm.study.statistics import (
    chance,
    counted,
    critical_difference,
    mean_difference,
    median_ratio,
    ranking,
)


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


# Demšar, JMLR 2006, table 5: q at 5 % for Nemenyi's test, by the number of methods
QUANTILES = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102}


@pytest.mark.parametrize("methods", QUANTILES)
def test_the_critical_difference_is_nemenyis(methods: int) -> None:
    expected = QUANTILES[methods] * math.sqrt(methods * (methods + 1) / (6 * 14))
    assert critical_difference(methods, 14) == pytest.approx(expected, rel=5e-4)


def test_ranks_share_places_and_misses_come_last() -> None:
    found = ranking(
        {
            "slow": [40, math.inf, 30, 50],
            "fast": [10, 12, 11, 13],
            "tied": [10, 20, math.inf, 50],
            "lost": [math.inf, math.inf, math.inf, math.inf],
        }
    )
    # by hand: fast 1.5 1 1 1, tied 1.5 2 3.5 2.5, slow 3 3.5 2 2.5, lost 4 3.5 3.5 4
    assert found.names == ["fast", "tied", "slow", "lost"]
    assert found.ranks == pytest.approx([4.5 / 4, 9.5 / 4, 11 / 4, 15 / 4])
    assert found.problems == 4
    # Friedman with ties: 12/(N k (k+1)) sum R_j^2 - 3 N (k+1), over 1 - sum (t^3 - t)/(N (k^3 - k))
    sums = np.array([4.5, 9.5, 11, 15])
    statistic = (12 / (4 * 4 * 5) * (sums**2).sum() - 3 * 4 * 5) / (1 - 4 * 6 / (4 * (64 - 4)))
    # chi squared with 3 degrees of freedom, in closed form
    tail = math.erfc(math.sqrt(statistic / 2)) + math.sqrt(2 * statistic / math.pi) * math.exp(
        -statistic / 2
    )
    assert found.chance == pytest.approx(tail)
    assert found.critical == pytest.approx(2.569 * math.sqrt(20 / 24), rel=5e-4)


def test_two_rows_or_equals_are_ranked_but_not_tested() -> None:
    two = ranking({"a": [1, 2], "b": [2, 3]})
    assert (two.names, two.ranks, two.chance, two.critical) == (["a", "b"], [1.0, 2.0], None, None)
    same = ranking({"a": [1, 2], "b": [1, 2], "c": [1, 2]})
    assert (same.ranks, same.chance) == ([2.0, 2.0, 2.0], None)
