"""What runs come to: one row a label, for terminal, Markdown and page.

One rule for every table: a seed that diverged did not reach the target, its final values are left
out of every mean, and its row says how many did.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from fedadmm.core.config_tree import flattened
from fedadmm.run.evaluation import Target
from fedadmm.run.record import as_number
from fedadmm.study import formatting, run_history
from fedadmm.study.formatting import Table
from fedadmm.study.run_dir import RecordedRun
from fedadmm.study.spec import shown_value
from fedadmm.study.statistics import Difference, Spread, difference, spread


@dataclass(frozen=True)
class MethodSummary:
    """One label."""

    label: str
    method: str
    """What to call it: the label, or the method's own name where the label is only its key."""
    algorithm: str
    baseline: bool
    seeds: int
    diverged: int
    rounds: Spread
    """Rounds to the target, over the seeds that reached it."""
    bytes: Spread
    seconds: Spread
    final: dict[str, Spread]
    """The last measurement of every metric, over the seeds that did not diverge."""
    reduction: float | None = None
    """How many rounds fewer than the best baseline's, as a share of those."""
    difference: Difference | None = None

    @property
    def reached(self) -> int:
        """How many seeds reached the target."""
        return self.rounds.count


class Lead(NamedTuple):
    """The best row, the next, and how far it is ahead on the same seeds."""

    best: MethodSummary
    second: MethodSummary
    gap: Difference
    by_rounds: bool
    """In rounds to the target; otherwise in the compared metric, as where fewer than two rows reach
    the target with every seed."""


class Results(NamedTuple):
    """All rows of a comparison, and what they are compared by."""

    target: Target | None
    metric: str | None
    """The metric to tell the labels apart by."""
    baseline: MethodSummary | None
    """The baseline that needs the fewest rounds, of those that every seed brings to the target;
    without any, the one whose metric is best."""
    rows: list[MethodSummary]
    lead: Lead | None = None

    @property
    def over_clients(self) -> list[str]:
        """The statistics over clients of the compared metric, or of another that has some."""
        found = run_history.over_clients([name for row in self.rows for name in row.final])
        return found.get(self.metric or "") or next(iter(found.values()), [])

    def fastest_first(self) -> list[MethodSummary]:
        """With a target the rows by rounds, after those that more of their seeds brought to it."""

        def rank(row: MethodSummary) -> tuple[float, float]:
            return 1 - row.reached / row.seeds, row.rounds.mean or math.inf

        return sorted(self.rows, key=rank) if self.target is not None else self.rows


def results(runs: Sequence[RecordedRun], target: Target | None) -> Results:
    """One row a label, in the order of the labels."""
    names = list(dict.fromkeys(name for run in runs for name in run.final))
    rows = [_row(label, own, names) for label, own in by_label(runs).items()]
    metric = run_history.primary(names, target)
    best = _best_baseline(rows, target, metric)
    if best is not None:
        finals = {run.seed: run.final.get(metric or "") for run in runs if run.label == best.label}
        groups, shared = by_label(runs), train_test_overlap(runs)
        rows = [_against(row, best, groups[row.label], finals, metric, shared) for row in rows]
        best = next(row for row in rows if row.label == best.label)
    return Results(target, metric, best, rows, _lead(rows, runs, target, metric))


def _lead(
    rows: Sequence[MethodSummary],
    runs: Sequence[RecordedRun],
    target: Target | None,
    metric: str | None,
) -> Lead | None:
    """How far the best row is ahead of the next; of equally quick ones the one that sent less."""
    there = [row for row in rows if target is not None and row.rounds.complete]
    by_rounds = len(there) > 1
    if by_rounds:
        ranked = sorted(there, key=lambda row: (row.rounds.mean or 0, row.bytes.mean or 0))
    else:
        ranked = _by_metric(rows, metric)
    if len(ranked) < 2:
        return None

    def value(run: RecordedRun) -> float | None:
        return run.to_target("rounds") if by_rounds else final_value(run, metric or "")

    own, other = ({run.seed: run for run in by_label(runs)[row.label]} for row in ranked[:2])
    pairs = [(value(own[seed]), value(other[seed])) for seed in own if seed in other]
    values = [a - b for a, b in pairs if a is not None and b is not None]
    gap = difference(values, train_test_overlap(runs))
    return None if gap is None else Lead(ranked[0], ranked[1], gap, by_rounds)


def _by_metric(rows: Sequence[MethodSummary], metric: str | None) -> list[MethodSummary]:
    """The rows without a diverged seed, the best final value first."""
    sign = -1 if metric is not None and run_history.metric(metric).up else 1
    measured = [row for row in rows if metric in row.final and not row.diverged]
    return sorted(measured, key=lambda row: sign * (row.final[metric or ""].mean or 0))


def train_test_overlap(runs: Sequence[RecordedRun]) -> float:
    """Held-out rows per training row, where each seed chooses its own from one table; else 0."""
    problem = runs[0].config.get("problem")
    if not isinstance(problem, Mapping) or problem.get("partition_seed") != "none":
        return 0.0
    held_out = float(problem["test_fraction"])
    return held_out / (1 - held_out)


def by_label(runs: Sequence[RecordedRun]) -> dict[str, list[RecordedRun]]:
    """The runs of each label, in the order of their first appearance."""
    groups: dict[str, list[RecordedRun]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return groups


def _row(label: str, runs: Sequence[RecordedRun], names: Sequence[str]) -> MethodSummary:
    finals = {name: spread([final_value(run, name) for run in runs]) for name in names}
    return MethodSummary(
        label=label,
        method=runs[0].method,
        algorithm=runs[0].algorithm,
        baseline=runs[0].baseline,
        seeds=len(runs),
        diverged=sum(run.diverged for run in runs),
        rounds=spread([run.to_target("rounds") for run in runs]),
        bytes=spread([run.to_target("bytes") for run in runs]),
        seconds=spread([run.to_target("seconds") for run in runs]),
        final={name: found for name, found in finals.items() if found.count},
    )


def final_value(run: RecordedRun, name: str) -> float | None:
    """A run's last measurement of a metric; none of a run that diverged."""
    return None if run.diverged else as_number(run.final.get(name))


def _best_baseline(
    rows: Sequence[MethodSummary], target: Target | None, metric: str | None
) -> MethodSummary | None:
    own = [row for row in rows if row.baseline]
    there = [row for row in own if target is not None and row.rounds.complete]
    if there:
        return min(there, key=lambda row: row.rounds.mean or math.inf)
    return next(iter(_by_metric(own, metric)), None)


def _against(
    row: MethodSummary,
    best: MethodSummary,
    runs: Sequence[RecordedRun],
    finals: Mapping[int | None, Any],
    metric: str | None,
    shared: float,
) -> MethodSummary:
    both = row.rounds.complete and best.rounds.complete
    if both and row.rounds.mean is not None and best.rounds.mean is not None:
        row = replace(row, reduction=1 - row.rounds.mean / best.rounds.mean)
    if metric is None or row.label == best.label:
        return row
    pairs = [
        (own, other)
        for run in runs
        if (own := final_value(run, metric)) is not None
        and (other := finals.get(run.seed)) is not None
    ]
    return replace(row, difference=difference([own - other for own, other in pairs], shared))


def row_documents(found: Results, chosen: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The rows as JSON; `chosen` is what a search chose for each label."""
    names = {"rounds": "rounds_to_target", "bytes": "bytes_to_target"}
    names |= {"seconds": "seconds_to_target", "final": "finals"}
    return [
        {names.get(key, key): value for key, value in asdict(row).items()}
        | {
            "chosen": (chosen or {}).get(row.label),
            "reached": row.reached if found.target is not None else None,
            "metric": found.metric,
            "final": asdict(spread_of(row, found.metric)),
            "best_baseline": found.baseline and found.baseline.label,
        }
        for row in found.rows
    ]


def table(found: Results, title: str, search: Mapping[str, Any] | None = None) -> Table:
    """The rows as everybody reads them; `search` is what was searched and chosen before."""
    chosen = search["chosen"] if search else None
    metrics = [found.metric] if found.metric is not None else []
    targeted, against = found.target is not None, metrics and found.baseline is not None
    headings = ["method", *(["chosen"] if chosen is not None else [])]
    headings += ["rounds to target", "sent"] if targeted else []
    headings += [run_history.metric(name).title.lower() for name in metrics]
    headings += ["difference"] if against else []
    headings += [run_history.metric(name).title.lower() for name in found.over_clients]
    lines = []
    for row in found.rows:
        failed = failures(row)
        cells = [row.method + (f" ({failed})" if failed else "")]
        if chosen is not None:
            values = chosen[row.label]["value"].items()
            cells.append(", ".join(f"{key.split('.')[-1]} {value}" for key, value in values))
        cells += [reached(found, row), formatting.size(row.bytes.mean)] if targeted else []
        cells += [final(row, name) for name in metrics]
        cells += [compared(found, row)] if against else []
        lines.append(cells + [final(row, name) for name in found.over_clients])
    values = {label: one["value"] for label, one in (chosen or {}).items()}
    data = [flattened(row) for row in row_documents(found, values)]
    return Table(title, headings, lines, "\n".join(_notes(found, search)), data=data)


def _notes(found: Results, search: Mapping[str, Any] | None) -> Iterator[str]:
    """What a reader of the table must know; the verdict comes last."""
    if search:
        yield (
            f"every method chose from {search['values']} on seed {search['seed']}, "
            f"{search['rounds']} rounds at most: {search['rule']}"
        )
        yield from dropped(search)
    until = "sent: up and down until the target; " if found.target is not None else ""
    yield f"{until}means over the seeds after the last round; {formatting.SPREAD}"
    if found.baseline is not None and found.metric is not None:
        title = run_history.metric(found.metric).title.lower()
        yield (
            f"difference: {title} minus that of {found.baseline.method}, the best baseline, on the "
            "same seeds, with its 95 % interval"
        )
    yield from verdict(found)


def dropped(search: Mapping[str, Any]) -> Iterator[str]:
    """What a search dropped before its last round, a line for each time."""
    for rounds in search.get("halve_after", ()):
        labels: dict[str, list[str]] = {}
        for row in search["tried"]:
            if row["dropped_after"] == rounds:
                values = " ".join(map(shown_value, row["value"].values()))
                labels.setdefault(row["place"], []).append(values)
        if labels:
            some = "; ".join(f"{label} {', '.join(values)}" for label, values in labels.items())
            yield f"the search dropped after {rounds} rounds: {some}"


def final(row: MethodSummary, name: str) -> str:
    """A row's final values of a metric in words."""
    return formatting.spread(spread_of(row, name), run_history.metric(name).share)


def spread_of(row: MethodSummary, metric: str | None) -> Spread:
    """A row's final values of a metric; none when it was not measured."""
    return row.final.get(metric or "", spread([None] * row.seeds))


def failures(row: MethodSummary) -> str:
    """What a row must say about its seeds that ended in nonsense."""
    return f"{row.diverged} of {row.seeds} diverged" if row.diverged else ""


def reached(found: Results, row: MethodSummary) -> str:
    """Rounds to the target in words: how many, or that some or all seeds missed it."""
    if found.target is None:
        return formatting.NOTHING
    if not row.reached:
        return f"not reached (0 of {row.seeds})"
    text = formatting.spread(row.rounds)
    return text if row.rounds.complete else f"{text} ({row.reached} of {row.seeds})"


def verdict(found: Results) -> list[str]:
    """Who differs from the best baseline; then what won, by how much, and if it is significant.

    The last sentence is for somebody who reads only one: the winner beside FedAvg.
    """
    return [*filter(None, [_significance(found), _won(found), _in_short(found)])]


def _won(found: Results) -> str | None:
    if found.lead is None:
        return None
    best, second, gap, by_rounds = found.lead
    if by_rounds:
        assert found.target is not None
        shown, unit = partial(_signed, share=False), " rounds"
        shown_rows = dict.fromkeys(row.label for row in (best, second, *_fedavg(found)))
        parts = [
            f"{row.method} after {formatting.number(row.rounds.mean or 0)} rounds and "
            f"{formatting.size(row.bytes.mean)}"
            for label in shown_rows
            for row in found.rows
            if row.label == label
        ]
        sentence = f"first at {formatting.describe(found.target)}: {'; '.join(parts)}"
    else:
        metric = run_history.metric(found.metric or "")
        shown, unit = partial(_signed, share=metric.share), " points" if metric.share else ""
        first, other = (f"{row.method} {final(row, metric.name)}" for row in (best, second))
        sentence = f"best {metric.title.lower()} at the end: {first}; {other}"
    if gap.low is None or gap.high is None:
        chance = "one seed cannot show whether that is significant; try --seeds 0,1,2,3,4"
    elif gap.constant:
        chance = "the same on all seeds, which says nothing about chance"
    else:
        chance = f"95 % interval {shown(gap.low)} to {shown(gap.high)} over {gap.seeds} seeds: "
        chance += "significant" if gap.beyond_chance else "not significant"
    return f"{sentence} (the first two differ by {shown(gap.mean)}{unit}; {chance})"


def _in_short(found: Results) -> str | None:
    if found.target is None or found.lead is None or not found.lead.by_rounds:
        return None
    best = found.lead.best
    usual = next((row for row in _fedavg(found) if row.label != best.label), None)
    if usual is None:
        return None
    means = (best.rounds.mean, usual.rounds.mean), (best.bytes.mean, usual.bytes.mean)
    shares = [round(100 * (1 - own / other)) for own, other in means if own and other]
    if len(shares) < 2:
        return None
    words = zip(shares, ("fewer", "less"), strict=True)
    rounds, sent = (f"{abs(share)} % {word if share >= 0 else 'more'}" for share, word in words)
    return (
        f"in short: {best.method} needs {rounds} rounds than {usual.method} to "
        f"{formatting.describe(found.target)}, and sends {sent}"
    )


def _fedavg(found: Results) -> list[MethodSummary]:
    return [row for row in found.rows if row.algorithm == "fedavg" and row.rounds.complete]


def _significance(found: Results) -> str | None:
    """Which rows differ significantly from the best baseline."""
    if found.baseline is None:
        return None
    against = found.baseline.method
    compared = [(row.method, row.difference) for row in found.rows if row.difference is not None]
    sides = {
        f"differ significantly from {against}": [n for n, d in compared if d.beyond_chance],
        f"no significant difference from {against}": [
            name
            for name, one in compared
            if one.low is not None and not one.beyond_chance and not one.constant
        ],
        f"cannot be compared with {against}, because all seeds gave the same difference": [
            name for name, one in compared if one.constant
        ],
    }
    parts = (f"{words}: {'; '.join(names)}" for words, names in sides.items() if names)
    return " · ".join(parts) or None  # labels may hold commas


def _signed(value: float, share: bool) -> str:
    return (f"{100 * value:+.1f}" if share else f"{value:+.3g}").replace("-", "−")


def compared(found: Results, row: MethodSummary) -> str:
    """The difference of the compared metric to the best baseline's, with its interval."""
    if row.difference is None or found.metric is None:
        return formatting.NOTHING
    share = run_history.metric(found.metric).share
    low, high = row.difference.low, row.difference.high
    text = f"{_signed(row.difference.mean, share)}{' points' if share else ''}"
    if row.difference.constant:
        return f"{text} (on all seeds)"
    if low is not None and high is not None:
        text += f" ({_signed(low, share)} to {_signed(high, share)})"
    return text
