"""Mean ranks of methods over several problems, and how far apart they must be to mean something.

Less is better; a method that missed its target on a problem has an infinite value there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95


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
