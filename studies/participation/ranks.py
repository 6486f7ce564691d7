"""Mean ranks of methods over several problems (Demšar, JMLR 2006): tests and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from fedadmm.study.statistics import CONFIDENCE

STYLE = """
.rank-rows {
  display: grid; grid-template-columns: auto 1fr auto; align-items: center; gap: 0 1.2rem;
  margin: .8rem 0 .6rem; font-size: .88rem;
}
.rank-rows svg { width: 100%; height: 22px; overflow: visible; }
.rank-rows line {
  stroke: var(--accent); stroke-width: 3; opacity: .45; transform: translateY(11px);
}
.rank-rows circle { fill: var(--accent); }
.rank-rows text { fill: var(--soft); font-size: .75rem; text-anchor: middle; }
"""


def rank_picture(names: Sequence[str], ranks: Sequence[float], critical: float | None) -> str:
    """HTML: a dot at every mean rank, and a line over ranks that do not differ significantly.

    Two rows whose dots both lie over one line may be equally good.
    """
    high = max(*ranks, 2.0)

    def x(rank: float) -> str:
        return f"{100 * (min(rank, high) - 1.0) / (high - 1.0):.1f}%"

    ticks = [f'<text x="{x(tick)}" y="13">{tick}</text>' for tick in range(1, int(high) + 1)]
    rows = [f'<span></span><svg class="scale">{"".join(ticks)}</svg><span></span>']
    for name, rank in zip(names, ranks, strict=True):
        reach = "" if critical is None else f'<line x1="{x(rank)}" x2="{x(rank + critical)}"/>'
        dot = f'<circle cx="{x(rank)}" cy="11" r="5"/>'
        rows.append(f"<span>{escape(name)}</span><svg>{reach}{dot}</svg><span>{rank:.2f}</span>")
    listed = ", ".join(f"{name} {rank:.2f}" for name, rank in zip(names, ranks, strict=True))
    label = escape(f"Mean ranks: {listed}.")
    return f'<div class="rank-rows" role="img" aria-label="{label}">{"".join(rows)}</div>'


class Ranking(NamedTuple):
    """The ranks of several methods over several problems (Demšar, JMLR 2006)."""

    names: list[str]
    """The best mean rank first."""
    ranks: list[float]
    """Mean ranks from 1; equals share the mean of their places."""
    problems: int
    chance: float | None
    """How often the Friedman test would see such differences among equals; None for fewer than
    three methods or two problems."""
    critical: float | None
    """Nemenyi's critical difference at 5 %: mean ranks that are closer do not differ."""


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
