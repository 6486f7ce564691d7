"""Statistics of comparisons: spreads, censored values, paired differences and their corrections.

Every comparison is paired: two methods are compared on the same seeds (the same initial model, the
same split and the same participants), so that only the difference of each pair counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CONFIDENCE = 0.95
"""Confidence level of every interval; 1 - CONFIDENCE is the level of every test."""
RESAMPLES = 9999
"""Bootstrap and permutation samples."""
RESAMPLING_SEED = 20_000_000
"""Fixed, because resampling is part of a result."""


@dataclass(frozen=True)
class Spread:
    """Summary of one value per seed.

    Attributes:
        mean: arithmetic mean, None without any value.
        std: sample standard deviation (divisor n - 1), 0 for a single value.
        min, max: range.
        count: seeds that have a value; for a censored quantity, seeds that reached the target.
        of: all seeds.
    """

    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    count: int
    of: int

    @property
    def complete(self) -> bool:
        """Whether every seed has a value, so that the mean leaves none out."""
        return 0 < self.count == self.of


def spread(values: Sequence[float | None]) -> Spread:
    """Summarise the values that exist; None is a seed without one.

    Example:
        >>> found = spread([1.0, 3.0, None])
        >>> found.mean, found.count, found.of
        (2.0, 2, 3)
    """
    known = [float(value) for value in values if value is not None]
    if not known:
        return Spread(None, None, None, None, 0, len(values))
    deviation = statistics.stdev(known) if len(known) > 1 else 0.0
    mean = statistics.fmean(known)
    return Spread(mean, deviation, min(known), max(known), len(known), len(values))


def restricted(values: Sequence[float | None], limit: float) -> list[float]:
    """Replace every value by min(value, limit); None (a target that was missed) becomes `limit`."""
    return [float(limit) if value is None else float(min(value, limit)) for value in values]


def restricted_mean(values: Sequence[float | None], limit: float) -> float:
    """Mean of min(T, limit) over censored times to a target.

    Royston and Parmar, "Restricted mean survival time", BMC Medical Research Methodology 13, 2013.
    All runs are censored at the same limit, so the estimate is the arithmetic mean.

    Example:
        >>> restricted_mean([10, None, 20], limit=60)
        30.0
    """
    return statistics.fmean(restricted(values, limit))


def restricted_spread(values: Sequence[float | None], limit: float) -> Spread:
    """Summary of min(T, limit); `count` is the number of seeds that reached the target."""
    reached = sum(value is not None and value <= limit for value in values)
    return replace(spread(restricted(values, limit)), count=reached)


def interval(values: Sequence[float], overlap: float = 0.0) -> float:
    """Half the width of Student's t interval of a mean.

    The half width is t(n - 1) s sqrt(1 / n + overlap).  With `overlap` = test size / training size
    it is the corrected resampled interval for random splits of one table, whose training sets
    overlap: Nadeau and Bengio, "Inference for the generalization error", Machine Learning 52, 2003.
    """
    from scipy.special import stdtrit  # scipy.stats takes half a second to import

    count = len(values)
    quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    return quantile * statistics.stdev(values) * math.sqrt(1 / count + overlap)


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences, one per seed.

    Attributes:
        mean: mean difference.
        low, high: its interval (see `interval`); None for a single seed.
        seeds: number of pairs.
        p_value: two-sided p value of the paired t test, or None if it cannot be computed.
        adjusted: the p value after Holm's correction for all comparisons of the table.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    p_value: float | None = None
    adjusted: float | None = None

    @property
    def constant(self) -> bool:
        """Whether all seeds gave the same difference, so that no test applies."""
        return self.low is not None and self.low == self.high

    @property
    def beyond_chance(self) -> bool:
        """Whether the (adjusted) p value is below 5 %; without one, whether zero is outside."""
        if self.low is None or self.high is None or self.constant:
            return False
        p_value = self.p_value if self.adjusted is None else self.adjusted
        return not self.low <= 0 <= self.high if p_value is None else p_value < 1 - CONFIDENCE


def difference(values: Sequence[float], overlap: float = 0.0) -> Difference | None:
    """Mean, t interval and p value of paired differences; `overlap` as in `interval`.

    Example:
        >>> found = difference([-2.0, -4.0, -3.0])
        >>> found.mean, found.beyond_chance
        (-3.0, True)
    """
    if not values:
        return None
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return Difference(mean, None, None, 1)
    half = interval(values, overlap)
    if half == 0:
        return Difference(mean, mean, mean, count)
    from scipy.special import stdtr

    error = statistics.stdev(values) * math.sqrt(1 / count + overlap)
    p_value = 2 * float(stdtr(count - 1, -abs(mean) / error))
    return Difference(mean, mean - half, mean + half, count, p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values of Holm's step-down procedure, in the order of the arguments.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
    Statistics 6, 1979.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


class Estimate(NamedTuple):
    """A statistic with its bootstrap interval; a single pair has none."""

    value: float
    low: float | None
    high: float | None


def median_ratio(own: Sequence[float], other: Sequence[float]) -> Estimate:
    """median(own) / median(other) with a percentile bootstrap interval over pairs."""
    import numpy as np

    return _bootstrap(own, other, lambda a, b, axis: np.median(a, axis) / np.median(b, axis))


def mean_difference(own: Sequence[float], other: Sequence[float]) -> Estimate:
    """Mean of own - other with a percentile bootstrap interval over pairs."""
    import numpy as np

    return _bootstrap(own, other, lambda a, b, axis: np.mean(a - b, axis))


def _bootstrap(
    own: Sequence[float], other: Sequence[float], statistic: Callable[..., Any]
) -> Estimate:
    """Percentile bootstrap of pairs.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3.
    """
    import numpy as np
    from scipy.stats import bootstrap

    pairs = np.asarray(own, np.float64), np.asarray(other, np.float64)
    value = float(statistic(*pairs, axis=-1))
    if len(own) < 2:
        return Estimate(value, None, None)
    found = bootstrap(
        pairs,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(RESAMPLING_SEED),
    ).confidence_interval
    return Estimate(value, float(found.low), float(found.high))


def sign_flip_p_value(own: Sequence[float], other: Sequence[float]) -> float | None:
    """Two-sided p value of the paired permutation test of the mean difference.

    Fisher, The Design of Experiments, 1935, section 21.  All signs are tried for at most 13 pairs,
    a random sample of them otherwise; None for a single pair.
    """
    import numpy as np
    from scipy.stats import permutation_test

    if len(own) < 2:
        return None
    found = permutation_test(
        (np.asarray(own, np.float64), np.asarray(other, np.float64)),
        lambda a, b, axis: np.mean(a - b, axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(RESAMPLING_SEED),
    )
    return float(found.pvalue)


def stratified_interval(
    groups: Sequence[Floats], generator: np.random.Generator, resamples: int = 2000
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over all groups, resampling within each group.

    Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 3.2.
    """
    import numpy as np

    sums = np.zeros(resamples)
    for group in groups:
        chosen = generator.integers(len(group), size=(resamples, len(group)))
        sums += group[chosen].sum(axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(sums / sum(map(len, groups)), [tail, 1 - tail])
    return float(low), float(high)
