"""Statistics of comparisons against values that were derived in another way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedadmm.study.statistics import (
    difference as paired_difference,
    holm,
    interval,
    mean_difference,
    median_ratio,
    restricted,
    restricted_mean,
    restricted_spread,
    sign_flip_p_value,
    stratified_interval,
)


def _array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_a_run_that_missed_counts_as_its_limit() -> None:
    assert restricted([3, None, 7, 60], 50) == [3.0, 50.0, 7.0, 50.0]


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
    assert sign_flip_p_value(_array(5), _array(10)) is None


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
    assert sign_flip_p_value(own, other) == pytest.approx(min(1.0, 2 * min(tails)))


def test_ten_seeds_that_all_agree_are_hardly_chance() -> None:
    ahead = np.arange(10.0)
    assert sign_flip_p_value(ahead, ahead + 1 + ahead) == pytest.approx(2 / 2**10)


def test_restricted_mean_counts_a_miss_as_the_limit() -> None:
    assert restricted_mean([10, None, 20], 50) == pytest.approx(80 / 3)
    assert restricted_mean([60, None], 50) == 50
    found = restricted_spread([10, None, 60], 50)
    assert (found.mean, found.count, found.of) == (pytest.approx(110 / 3), 1, 3)


def test_interval_is_that_of_students_t() -> None:
    # The table value of t at 97.5 % with two degrees of freedom is 4.303; s = 1, n = 3.
    assert interval([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    # Nadeau and Bengio: 1/3 becomes 1/3 + 1/4 for a fifth of the samples held out.
    assert interval([1.0, 2.0, 3.0], 0.25) == pytest.approx(4.303 * (7 / 12) ** 0.5, rel=1e-3)


def test_p_value_is_that_of_the_paired_t_test() -> None:
    values = [0.3, -0.1, 0.8, 0.5, 0.2]
    found = paired_difference(values)
    assert found is not None
    from scipy.stats import ttest_1samp

    assert found.p_value == pytest.approx(ttest_1samp(values, 0.0).pvalue)
    # Interval and test agree: one excludes zero exactly when the other rejects.
    assert found.beyond_chance is not (found.low <= 0 <= found.high)


def test_holm_against_a_worked_example() -> None:
    # By hand: 4 * 0.005, 3 * 0.01, then max(0.03, 2 * 0.03), then max(0.06, 0.04).
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_stratified_bootstrap_keeps_the_size_of_every_group() -> None:
    # Constant groups of different sizes have the same mean in every resample.
    groups = [np.full(3, 1.0), np.full(9, 5.0)]
    low, high = stratified_interval(groups, np.random.default_rng(0))
    assert (low, high) == (pytest.approx(4.0), pytest.approx(4.0))
