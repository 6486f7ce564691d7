"""Who is ahead, seed by seed: mean ranks, and how far apart they must be to mean something."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from fedadmm.study import records, results
from fedadmm.study.report.figures import Panel, Ranks
from fedadmm.study.results import Outcome
from fedadmm.study.rundir import RecordedRun


def rank_panels(content: Outcome) -> Iterator[Panel]:
    """The ranks of a comparison; two methods, or a single seed, have none worth a figure."""
    seeds = [{run.seed for run in runs} for runs in content.labels.values()]
    shared = sorted(seed for seed in set.intersection(*seeds) if seed is not None)
    if len(seeds) < 3 or len(shared) < 2:
        return
    table = {
        label: [_loss(content, run) for seed in shared for run in runs if run.seed == seed]
        for label, runs in content.labels.items()
    }
    found = ranking(table)
    if found.critical is None or found.chance is None:
        return
    what = "rounds to the target"
    if content.target is None:
        what = f"final {records.metric(content.results.metric or '').title.lower()}"
    note = (
        f"Mean ranks over {len(shared)} seeds by {what}; 1 is the best. A line reaches as far as "
        f"Nemenyi's critical difference of {found.critical:.2f} (5 %): methods whose dots lie over "
        f"one line are not told apart. Among equals such ranks come up with probability "
        f"{found.chance:.2g} (Friedman). Seeds of one problem tell nothing about others."
    )
    yield Ranks("ranks", "Mean ranks", note, found.names, found.ranks, found.critical)


def _loss(content: Outcome, run: RecordedRun) -> float:
    """What a run is ranked by: less is better, and a run that got nowhere is last."""
    if content.target is not None:
        found = run.to_target("rounds")
    else:
        metric = content.results.metric or ""
        found = results.final_value(run, metric)
        found = -found if found is not None and records.metric(metric).up else found
    return math.inf if found is None else found


def rank_picture(
    names: Sequence[str], ranks: Sequence[float], critical: float | None, looks: Sequence[str] = ()
) -> str:
    """HTML: a dot at every mean rank, and a line over the ranks that it is not told apart from.

    Two rows whose dots both lie over one line may be equally good.  `looks` are the rows' styles.
    """
    high = max(*ranks, 2.0)

    def x(rank: float) -> str:
        return f"{100 * (min(rank, high) - 1.0) / (high - 1.0):.1f}%"

    ticks = [f'<text x="{x(tick)}" y="13">{tick}</text>' for tick in range(1, int(high) + 1)]
    rows = [f'<span></span><svg class="scale">{"".join(ticks)}</svg><span></span>']
    for place, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        reach = "" if critical is None else f'<line x1="{x(rank)}" x2="{x(rank + critical)}"/>'
        dot = f'<circle cx="{x(rank)}" cy="11" r="5"/>'
        style = f' style="{escape(looks[place])}"' if looks else ""
        rows.append(
            f"<span>{escape(name)}</span><svg{style}>{reach}{dot}</svg><span>{rank:.2f}</span>"
        )
    told = ", ".join(f"{name} {rank:.2f}" for name, rank in zip(names, ranks, strict=True))
    label = escape(f"Mean ranks: {told}.")
    return f'<div class="rank-rows" role="img" aria-label="{label}">{"".join(rows)}</div>'


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
