"""Mean ranks over problems, against values that were computed by hand or printed elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest

from studies.participation.ranks import (
    critical_difference,
    ranking,
)


def _array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


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
