"""Is a difference more than chance?  Paired ratios and differences, ranks and what they tell.

Values are rounds (or bytes, or passes) to a target, so less is better.  A run that missed its
target has no value; it is counted as the limit that it ran to, which flatters it, or as infinitely
many where only the order matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
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


class Ranking(NamedTuple):
    """How several methods stand over several problems (Demšar, JMLR 2006)."""

    names: list[str]
    """The best mean rank first."""
    ranks: list[float]
    """Mean ranks from 1; equals share the mean of their places."""
    problems: int
    chance: float | None
    """How often the Friedman test would see such differences among equals; None for fewer than
    three methods or two problems."""
    critical: float | None
    """Nemenyi's critical difference at 5 %: mean ranks that are closer are not told apart."""


def ranking(table: Mapping[str, Sequence[float]]) -> Ranking:
    """Rank methods on every problem; a column a method, infinite where it missed the target."""
    from scipy.stats import friedmanchisquare, rankdata

    names = list(table)
    values = np.array([table[name] for name in names], dtype=np.float64).T
    problems, methods = values.shape
    ranks = rankdata(values, axis=1)
    means = ranks.mean(axis=0)
    order = np.argsort(means, kind="stable")
    probability = None
    all_tied = bool((ranks == ranks[:, :1]).all())
    if methods >= 3 and problems >= 2 and not all_tied:
        probability = float(friedmanchisquare(*ranks.T).pvalue)
    return Ranking(
        names=[names[i] for i in order],
        ranks=[float(means[i]) for i in order],
        problems=problems,
        chance=probability,
        critical=critical_difference(methods, problems) if probability is not None else None,
    )


def critical_difference(methods: int, problems: int) -> float:
    """Nemenyi: q sqrt(k (k+1) / (6 N)), q the studentised range's quantile over sqrt(2)."""
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(CONFIDENCE, methods, math.inf)) / math.sqrt(2.0)
    return quantile * math.sqrt(methods * (methods + 1) / (6.0 * problems))
