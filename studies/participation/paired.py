"""Is a difference more than chance?  Ratios and differences of runs on the same seeds.

Values are rounds (or bytes, or passes) to a target, so less is better.  A run that missed its
target has no value; it is counted as the limit that it ran to, which flatters it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedadmm.study.results import CONFIDENCE

_RESAMPLES = 9999
_SEED = 20_000_000
"""Resampling is part of the result, so its dice are fixed."""

Floats = NDArray[np.float64]


class Estimate(NamedTuple):
    """A number with its interval of 95 %; a single pair has none."""

    value: float
    low: float | None
    high: float | None


def counted(values: Sequence[float | None], limit: float) -> Floats:
    """The values as numbers, a missing one as the limit."""
    return np.array([limit if value is None else value for value in values], dtype=np.float64)


def median_ratio(own: Floats, other: Floats) -> Estimate:
    """median(own) / median(other), with a bootstrap interval over the pairs."""
    return _estimate(own, other, lambda a, b, axis: np.median(a, axis) / np.median(b, axis))


def mean_difference(own: Floats, other: Floats) -> Estimate:
    """The mean of own - other, with a bootstrap interval over the pairs."""
    return _estimate(own, other, lambda a, b, axis: np.mean(a - b, axis))


def _estimate(own: Floats, other: Floats, statistic: Callable[..., Any]) -> Estimate:
    """A statistic of pairs: resampled pairs give the percentiles around it."""
    from scipy.stats import bootstrap

    value = float(statistic(own, other, axis=-1))
    if len(own) < 2:
        return Estimate(value, None, None)
    found = bootstrap(
        (own, other),
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return Estimate(value, float(found.low), float(found.high))


def chance(own: Floats, other: Floats) -> float | None:
    """How often flipping the signs of the paired differences gives a mean as far from zero.

    All signs are tried up to 13 pairs, a sample of them beyond; None for a single pair.
    """
    from scipy.stats import permutation_test

    if len(own) < 2:
        return None
    found = permutation_test(
        (own, other),
        lambda a, b, axis: np.mean(a - b, axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=_RESAMPLES,
        rng=np.random.default_rng(_SEED),
    )
    return float(found.pvalue)
