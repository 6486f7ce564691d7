"""Who is ahead, seed by seed: mean ranks, and how far apart they must be to mean something."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from fedadmm.study import records, results
from fedadmm.study.recorded import RecordedRun
from fedadmm.study.report.content import Content
from fedadmm.study.report.figures import Panel, Ranks
from fedadmm.study.statistics import ranking


def rank_panels(content: Content) -> Iterator[Panel]:
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


def _loss(content: Content, run: RecordedRun) -> float:
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
