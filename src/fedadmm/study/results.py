"""Aggregate runs over seeds, one row per method, for terminal, Markdown, LaTeX and report.

Rules of every table: a seed that diverged did not reach the target, and its final values enter no
mean.  Rounds to a target are censored: a seed that missed it counts as the number of rounds that
it was given (restricted mean), and the table says how many seeds reached it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from fedadmm.core.config_tree import flattened
from fedadmm.core.errors import ConfigError
from fedadmm.run.evaluation import Target
from fedadmm.run.record import as_number
from fedadmm.study import formatting, run_history
from fedadmm.study.formatting import Table
from fedadmm.study.run_dir import RecordedRun
from fedadmm.study.spec import shown_value
from fedadmm.study.statistics import (
    Difference,
    Spread,
    difference,
    holm,
    restricted,
    restricted_spread,
    spread,
)


@dataclass(frozen=True)
class MethodSummary:
    """One method of a comparison, over its seeds.

    Attributes:
        label: key of the row.
        method: name for readers; the method's own name where the label is only its key.
        algorithm: registered name of the method.
        seeds, diverged: number of runs, and of those that diverged.
        limit: number of rounds that a missed target counts as: all that the runs were given.
        rounds: rounds to the target, restricted to the limit; `count` seeds reached it.
        bytes, seconds: traffic and time to the target; `count` seeds reached it.
        final: last measurement of every metric, over the seeds that did not diverge.
        compared_with: label of the method that it is compared with.
        difference: paired difference of the compared quantity to that method.
        ratio: its rounds divided by those of that method (restricted means).
    """

    label: str
    method: str
    algorithm: str
    seeds: int
    diverged: int
    limit: int
    rounds: Spread
    bytes: Spread
    seconds: Spread
    final: dict[str, Spread]
    compared_with: str | None = None
    difference: Difference | None = None
    ratio: float | None = None

    @property
    def reached(self) -> int:
        """How many seeds reached the target."""
        return self.rounds.count


class Comparison(NamedTuple):
    """Two methods on the same seeds."""

    own: MethodSummary
    other: MethodSummary
    difference: Difference


class Results(NamedTuple):
    """All rows of a comparison.

    Attributes:
        target: the target that rounds are counted to.
        metric: the compared metric.
        rows: one per method.
        by_rounds: whether methods are compared by rounds to the target; otherwise by the final
            value of the metric, as without a target or if no run reached it.
        lead: the best method and the next best one.
        over_fedavg: the best method and FedAvg, where that is another one.
    """

    target: Target | None
    metric: str | None
    rows: list[MethodSummary]
    by_rounds: bool = False
    lead: Comparison | None = None
    over_fedavg: Comparison | None = None

    @property
    def over_clients(self) -> list[str]:
        """The statistics over clients of the compared metric, or of another that has some."""
        found = run_history.over_clients([name for row in self.rows for name in row.final])
        return found.get(self.metric or "") or next(iter(found.values()), [])

    @property
    def compares(self) -> bool:
        """Whether some row is compared with another one."""
        return any(row.difference is not None for row in self.rows)

    def named(self, label: str | None) -> str:
        """Return the name for readers of a label."""
        return next((row.method for row in self.rows if row.label == label), str(label))

    def best_first(self) -> list[MethodSummary]:
        """Return the rows in order of the compared quantity, the best first."""
        if self.by_rounds:
            return sorted(self.rows, key=_by_rounds)
        ranked = _by_metric(self.rows, self.metric)
        labels = [row.label for row in ranked]
        return ranked + [row for row in self.rows if row.label not in labels]


def results(
    runs: Sequence[RecordedRun],
    target: Target | None,
    reference: str | None = None,
    compare: bool = True,
) -> Results:
    """Summarise the runs of each label and compare every method with another one.

    Args:
        runs: runs with the same seeds for every label.
        target: the target that rounds are counted to.
        reference: label, algorithm or name of the method that all others are compared with.
            Without it every method is compared with the best other one.
        compare: whether to compare at all; the settings of a sweep are only listed.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.final))
    metric = run_history.primary(names, target)
    groups = by_label(runs)
    rows = [_row(label, own, names) for label, own in groups.items()]
    by_rounds = target is not None and any(row.reached for row in rows)
    found = Results(target, metric, rows, by_rounds)
    if not compare or len(rows) < 2:
        return found
    overlap = train_test_overlap(runs)

    def values(label: str) -> dict[int | None, float | None]:
        if by_rounds:
            own = groups[label]
            rounds = restricted([run.to_target("rounds") for run in own], _limit(own))
            return {run.seed: one for run, one in zip(own, rounds, strict=True)}
        return {run.seed: final_value(run, metric or "") for run in groups[label]}

    def paired(label: str, other: str) -> Difference | None:
        own, theirs = values(label), values(other)
        pairs = [(own[seed], theirs[seed]) for seed in own if seed in theirs]
        return difference([a - b for a, b in pairs if a is not None and b is not None], overlap)

    ranked = found.best_first()
    fixed = None if reference is None else find_row(rows, reference)
    pairs = {}
    for row in rows:
        other = fixed or next(one for one in ranked if one.label != row.label)
        if other.label != row.label:
            pairs[row.label] = (other, paired(row.label, other.label))
    adjusted = _adjusted({label: (o.label, d) for label, (o, d) in pairs.items()})
    rows = [
        _compared(row, *pairs[row.label], adjusted) if row.label in pairs else row for row in rows
    ]
    found = found._replace(rows=rows)
    return found._replace(
        lead=_comparison(found.best_first()[:2], paired, adjusted),
        over_fedavg=_over_fedavg(found, paired),
    )


def _adjusted(pairs: Mapping[str, tuple[str, Difference | None]]) -> dict[frozenset[str], float]:
    """Holm's adjusted p values; two rows that are compared with each other are one comparison."""
    p_values = {
        frozenset((label, other)): one.p_value
        for label, (other, one) in pairs.items()
        if one is not None and one.p_value is not None
    }
    return dict(zip(p_values, holm([p or 0.0 for p in p_values.values()]), strict=True))


def _compared(
    row: MethodSummary,
    other: MethodSummary,
    gap: Difference | None,
    adjusted: Mapping[frozenset[str], float],
) -> MethodSummary:
    if gap is not None:
        gap = replace(gap, adjusted=adjusted.get(frozenset((row.label, other.label))))
    ratio = None
    if row.rounds.mean and other.rounds.mean and row.reached and other.reached:
        ratio = row.rounds.mean / other.rounds.mean
    return replace(row, compared_with=other.label, difference=gap, ratio=ratio)


def _comparison(
    rows: Sequence[MethodSummary],
    paired: Callable[[str, str], Difference | None],
    adjusted: Mapping[frozenset[str], float],
) -> Comparison | None:
    own, other = rows
    gap = paired(own.label, other.label)
    if gap is None:
        return None
    known = adjusted.get(frozenset((own.label, other.label)))
    return Comparison(own, other, replace(gap, adjusted=known))


def _over_fedavg(
    found: Results, paired: Callable[[str, str], Difference | None]
) -> Comparison | None:
    best = found.best_first()[0]
    usual = next((row for row in found.rows if row.algorithm == "fedavg"), None)
    if usual is None or usual.label == best.label:
        return None
    gap = paired(best.label, usual.label)
    return None if gap is None else Comparison(best, usual, gap)


def find_row(rows: Sequence[MethodSummary], name: str) -> MethodSummary:
    """Return the row with this label, algorithm or name."""
    for key in ("label", "algorithm", "method"):
        for row in rows:
            if getattr(row, key) == name:
                return row
    known = ", ".join(row.label for row in rows)
    raise ConfigError(f"reference: got {name!r}, expected one of the methods {known}.")


def _limit(runs: Sequence[RecordedRun]) -> int:
    """The number of rounds that the runs of a method were given."""
    given = [run.config.get("rounds") for run in runs]
    known = [one for one in given if isinstance(one, int)]
    return max([*known, *(run.tally["rounds"] for run in runs)], default=0)


def _by_rounds(row: MethodSummary) -> tuple[float, int, float]:
    sent = math.inf if row.bytes.mean is None else row.bytes.mean
    return (math.inf if row.rounds.mean is None else row.rounds.mean, -row.reached, sent)


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
    held_out = float(problem.get("test_fraction", 0.0))
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
        seeds=len(runs),
        diverged=sum(run.diverged for run in runs),
        limit=_limit(runs),
        rounds=restricted_spread([run.to_target("rounds") for run in runs], _limit(runs)),
        bytes=spread([run.to_target("bytes") for run in runs]),
        seconds=spread([run.to_target("seconds") for run in runs]),
        final={name: found for name, found in finals.items() if found.count},
    )


def final_value(run: RecordedRun, name: str) -> float | None:
    """A run's last measurement of a metric; none of a run that diverged."""
    return None if run.diverged else as_number(run.final.get(name))


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
        }
        for row in found.rows
    ]


def table(found: Results, title: str, search: Mapping[str, Any] | None = None) -> Table:
    """The rows for readers; `search` describes the search that preceded the runs.

    The best value of the compared column is bold, and † marks significant differences.
    """
    chosen = search["chosen"] if search else None
    metrics = [found.metric] if found.metric is not None else []
    targeted, against = found.target is not None, found.compares
    headings = ["method", *(["chosen"] if chosen is not None else [])]
    headings += ["rounds to target", "sent"] if targeted else []
    headings += [run_history.metric(name).title.lower() for name in metrics]
    headings += ["difference"] if against else []
    headings += [run_history.metric(name).title.lower() for name in found.over_clients]
    best = found.best_first()[0].label if len(found.rows) > 1 else None
    lines = []
    for row in found.rows:
        failed = failures(row)
        cells = [row.method + (f" ({failed})" if failed else "")]
        if chosen is not None:
            values = chosen.get(row.label, {}).get("value", {}).items()
            cells.append(", ".join(f"{key.split('.')[-1]} {value}" for key, value in values))
        shown = [reached(found, row)] if targeted else []
        shown += [formatting.size(row.bytes.mean if row.bytes.complete else None)] * targeted
        shown += [final(row, name) for name in metrics]
        column = 0 if found.by_rounds else len(shown) - 1
        if row.label == best and shown:
            shown[column] = f"**{shown[column]}**"
        cells += shown
        cells += [compared(found, row)] if against else []
        lines.append(cells + [final(row, name) for name in found.over_clients])
    values = {label: one["value"] for label, one in (chosen or {}).items()}
    data = [flattened(row) for row in row_documents(found, values)]
    return Table(title, headings, lines, "\n".join(_notes(found, search)), data=data)


def _notes(found: Results, search: Mapping[str, Any] | None) -> Iterator[str]:
    """What a reader of the table must know; the verdict comes last."""
    if search:
        yield from search_notes(search)
    if found.target is not None:
        yield (
            "rounds to target: a seed that missed it counts as all rounds that it was given "
            "(restricted mean); sent: up and down until the target, if all seeds reached it"
        )
    yield f"means over the seeds after the last round; {formatting.SPREAD}"
    if found.compares:
        yield difference_note(found)
    yield from verdict(found)


def search_notes(search: Mapping[str, Any]) -> Iterator[str]:
    """Describe a search: its seeds, its samples, its rule and its grids."""
    seeds = ", ".join(map(str, search["seeds"]))
    where = {
        "validation": "validation samples",
        "test": "test samples; hold out validation samples with --set problem.validation=0.1",
    }.get(search["samples"], "the training objective")
    yield f"search on the seeds {seeds}, by {where}: {search.get('rule', 'best mean score')}"
    grids: dict[str, list[str]] = {}
    for label, grid in search["grid"].items():
        text = "; ".join(
            f"{key.split('.')[-1]} {', '.join(map(shown_value, values))}"
            for key, values in grid.items()
        )
        grids.setdefault(text, []).append(label)
    for text, labels in grids.items():
        whose = f" for {'; '.join(labels)}" if len(grids) > 1 else ""
        yield f"searched {text}{whose}"
    edges = [
        f"{label} ({key.split('.')[-1]})"
        for label, one in search["interior"].items()
        for key, inside in one.items()
        if not inside
    ]
    if edges:
        yield f"chosen at an edge of the grid: {'; '.join(edges)}"


def difference_note(found: Results) -> str:
    """Explain the column of differences."""
    title = "rounds" if found.by_rounds else run_history.metric(found.metric or "").title.lower()
    others = {row.compared_with for row in found.rows if row.difference is not None}
    other = "the best other method"
    if len(others) == 1:
        other = found.named(others.pop())
    return (
        f"difference: {title} minus that of {other} on the same seeds, with its 95 % interval; "
        "† significant at 5 % after Holm's correction"
    )


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
    """Rounds to the target: the restricted mean, and how many seeds reached it if not all."""
    if found.target is None:
        return formatting.NOTHING
    if not row.reached:
        return f"not reached (0 of {row.seeds})"
    text = formatting.spread(replace(row.rounds, count=row.seeds), rounds=True)
    return text if row.rounds.complete else f"≥ {text} (reached by {row.reached} of {row.seeds})"


def verdict(found: Results) -> list[str]:
    """Which differences are significant; then the best method, and the best one against FedAvg.

    The last sentence is for a reader of only one.
    """
    return [*filter(None, [_significance(found), _best(found), _in_short(found)])]


def chance(found: Results, gap: Difference) -> str:
    """Describe the uncertainty of a difference."""
    if gap.low is None or gap.high is None:
        return "one seed cannot show whether that is significant; try --seeds 0,1,2,3,4"
    if gap.constant:
        return "the same on all seeds, so that no test applies"
    word = "significant" if gap.beyond_chance else "not significant"
    low, high = (signed(found, value) for value in (gap.low, gap.high))
    return f"95 % interval {low} to {high} over {gap.seeds} seeds: {word}"


def _best(found: Results) -> str | None:
    if found.lead is None:
        return None
    best, second, gap = found.lead
    if found.by_rounds:
        assert found.target is not None
        unit = " rounds"
        parts = [f"{row.method} after {reached(found, row)} rounds" for row in (best, second)]
        sentence = f"first at {formatting.describe(found.target)}: {'; '.join(parts)}"
    else:
        metric = run_history.metric(found.metric or "")
        unit = " points" if metric.share else ""
        parts = [f"{row.method} {final(row, metric.name)}" for row in (best, second)]
        sentence = f"best {metric.title.lower()} at the end: {'; '.join(parts)}"
    return f"{sentence} (difference {signed(found, gap.mean)}{unit}; {chance(found, gap)})"


def _in_short(found: Results) -> str | None:
    if found.over_fedavg is None:
        return None
    best, usual, gap = found.over_fedavg
    if not found.by_rounds or found.target is None:
        return None
    target = formatting.describe(found.target)
    if gap.low is not None and not gap.beyond_chance:
        return f"in short: no significant difference in rounds to {target} from {usual.method}"
    assert best.rounds.mean is not None
    assert usual.rounds.mean is not None
    share = round(100 * (1 - best.rounds.mean / usual.rounds.mean))
    words = f"{share} % fewer rounds" if share else "as many rounds"
    at_least = "at least " if share and not usual.rounds.complete else ""
    sent = ""
    if best.bytes.complete and usual.bytes.complete and best.bytes.mean and usual.bytes.mean:
        less = round(100 * (1 - best.bytes.mean / usual.bytes.mean))
        sent = f", and sends {abs(less)} % {'less' if less >= 0 else 'more'}"
    tied = [row.method for row in found.rows if row.rounds.mean == best.rounds.mean]
    subject = f"{best.method} needs" if len(tied) == 1 else f"{' and '.join(tied)} need"
    sent = sent if len(tied) == 1 else ""
    return (
        f"in short: {subject} {at_least}{words} {'than' if share else 'as'} "
        f"{usual.method} to {target}{sent} ({signed(found, gap.mean)} rounds; "
        f"{chance(found, gap)})"
    )


def _significance(found: Results) -> str | None:
    """Which rows differ significantly from the method that they are compared with.

    Where the best two are compared with each other, the second's row says it for both.
    """
    groups: dict[str, list[MethodSummary]] = {}
    best, second = (one.label for one in found.lead[:2]) if found.lead else ("", "")
    compared_with = {row.label: row.compared_with for row in found.rows}
    mutual = compared_with.get(second) == best
    for row in found.rows:
        if row.label == best and row.compared_with == second and mutual:
            continue
        if row.difference is not None and row.difference.low is not None:
            groups.setdefault(found.named(row.compared_with), []).append(row)
    parts = []
    for other, rows in groups.items():
        sides = {
            f"significantly different from {other}": [
                row.method for row in rows if row.difference and row.difference.beyond_chance
            ],
            f"no significant difference from {other}": [
                row.method
                for row in rows
                if row.difference
                and not row.difference.beyond_chance
                and not row.difference.constant
            ],
            f"the same difference from {other} on all seeds": [
                row.method for row in rows if row.difference and row.difference.constant
            ],
        }
        parts += [f"{words}: {'; '.join(names)}" for words, names in sides.items() if names]
    return " · ".join(parts) or None  # labels may contain commas


def signed(found: Results, value: float) -> str:
    """A difference of the compared quantity, with its sign."""
    share = not found.by_rounds and run_history.metric(found.metric or "").share
    decimals = found.by_rounds or share
    text = f"{100 * value if share else value:+.1f}" if decimals else f"{value:+.3g}"
    return text.replace("-", "−")


def compared(found: Results, row: MethodSummary) -> str:
    """The difference to the method that a row is compared with, and its interval."""
    gap = row.difference
    if gap is None:
        return formatting.NOTHING
    share = not found.by_rounds and run_history.metric(found.metric or "").share
    text = f"{signed(found, gap.mean)}{' points' if share else ''}"
    if gap.constant:
        return f"{text} (on all seeds)"
    if gap.low is not None and gap.high is not None:
        text += f" ({signed(found, gap.low)} to {signed(found, gap.high)})"
    return text + ("†" if gap.beyond_chance else "")
