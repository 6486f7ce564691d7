"""What a study came to: results.json, and the rows that terminal, Markdown and page show, too.

One rule for every table: a seed that diverged did not reach the target, its final values are left
out of every mean, and its row says how many did.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.core.errors import DataError
from fedadmm.core.tables import flattened, to_table
from fedadmm.run.evaluation import Target
from fedadmm.run.record import as_number
from fedadmm.study import formatting, records
from fedadmm.study.rundir import RecordedRun, RunDir, plain, read_json, read_run, write_json
from fedadmm.study.study import RESULTS, Cell, Study, setting_of, short_keys
from fedadmm.study.tables import Table, number_cell

CONFIDENCE = 0.95
"""Of the interval around a difference."""
SHOWN = 8
"""This many of the best trials of a search have a curve."""


@dataclass(frozen=True)
class Spread:
    """Some seeds' values: mean, standard deviation (n - 1), range, and how many of how many."""

    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    count: int
    of: int

    @property
    def complete(self) -> bool:
        """Whether every seed has a value, so that no mean hides a failure."""
        return 0 < self.count == self.of


@dataclass(frozen=True)
class Difference:
    """The compared metric minus the best baseline's on the same seed, with its interval."""

    mean: float
    low: float | None
    high: float | None
    """A paired t interval of 95 %; none for a single seed."""
    seeds: int

    @property
    def constant(self) -> bool:
        """Whether all seeds gave the same difference, so that they say nothing about chance."""
        return self.low is not None and self.low == self.high

    @property
    def beyond_chance(self) -> bool:
        """Whether the interval leaves zero out."""
        if self.low is None or self.high is None or self.constant:
            return False
        return not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Row:
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


class Results(NamedTuple):
    """All rows of a comparison, and what they are compared by."""

    target: Target | None
    metric: str | None
    """The metric to tell the labels apart by."""
    baseline: Row | None
    """The baseline that needs the fewest rounds, of those that every seed brings to the target;
    without a target the one whose metric is best."""
    rows: list[Row]

    @property
    def over_clients(self) -> list[str]:
        """The statistics over clients of the compared metric, or of another that has some."""
        found = records.over_clients([name for row in self.rows for name in row.final])
        return found.get(self.metric or "") or next(iter(found.values()), [])

    def fastest_first(self) -> list[Row]:
        """With a target the rows by rounds, after those that more of their seeds brought to it."""

        def rank(row: Row) -> tuple[float, float]:
            return 1 - row.reached / row.seeds, row.rounds.mean or math.inf

        return sorted(self.rows, key=rank) if self.target is not None else self.rows


def spread(values: Sequence[float | None]) -> Spread:
    """The spread of the values that are there; None means a seed without one."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return Spread(None, None, None, None, 0, len(values))
    deviation = statistics.stdev(known) if len(known) > 1 else 0.0
    mean = statistics.fmean(known)
    return Spread(mean, deviation, min(known), max(known), len(known), len(values))


def results(runs: Sequence[RecordedRun], target: Target | None) -> Results:
    """One row a label, in the order of the labels."""
    names = list(dict.fromkeys(name for run in runs for name in run.final))
    rows = [_row(label, own, names) for label, own in by_label(runs).items()]
    metric = records.primary(names, target)
    best = _best_baseline(rows, target, metric)
    if best is not None:
        finals = {run.seed: run.final.get(metric or "") for run in runs if run.label == best.label}
        rows = [_against(row, best, by_label(runs)[row.label], finals, metric) for row in rows]
        best = next(row for row in rows if row.label == best.label)
    return Results(target, metric, best, rows)


def by_label(runs: Sequence[RecordedRun]) -> dict[str, list[RecordedRun]]:
    """The runs of each label, in the order of their first appearance."""
    groups: dict[str, list[RecordedRun]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return groups


def _row(label: str, runs: Sequence[RecordedRun], names: Sequence[str]) -> Row:
    finals = {name: spread([final_value(run, name) for run in runs]) for name in names}
    return Row(
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


def _best_baseline(rows: Sequence[Row], target: Target | None, metric: str | None) -> Row | None:
    if target is not None:
        there = [row for row in rows if row.baseline and row.rounds.complete]
        return min(there, key=lambda row: row.rounds.mean or math.inf, default=None)
    sign = 1 if metric is not None and records.metric(metric).up else -1
    measured = [row for row in rows if row.baseline and metric in row.final and not row.diverged]
    return max(measured, key=lambda row: sign * (row.final[metric or ""].mean or 0), default=None)


def _against(
    row: Row,
    best: Row,
    runs: Sequence[RecordedRun],
    finals: Mapping[int | None, Any],
    metric: str | None,
) -> Row:
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
    return replace(row, difference=difference([own - other for own, other in pairs]))


def difference(values: Sequence[float]) -> Difference | None:
    """The mean of paired differences, with its t interval."""
    if not values:
        return None
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return Difference(mean, None, None, 1)
    from scipy.stats import t

    quantile = float(t.ppf((1 + CONFIDENCE) / 2, count - 1))
    half = quantile * statistics.stdev(values) / math.sqrt(count)
    return Difference(mean, mean - half, mean + half, count)


@dataclass(frozen=True)
class Partition:
    """How many rows of each label each client holds; of many clients only the first are listed."""

    clients: int
    sizes: list[int]
    names: list[str] = field(default_factory=list)
    """What the clients are called, when they have names."""
    labels: list[str] = field(default_factory=list)
    counts: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """A study's folder, what its results.json says, and its runs in the order of that document.

    A single run is a study of kind "run", which has no such file.
    """

    directory: Path
    document: dict[str, Any]
    runs: list[RecordedRun]

    def of(self, key: str, value: Any) -> Outcome:
        """The part of it whose runs have this value of a key."""
        pairs = zip(self.document["runs"], self.runs, strict=True)
        some = [(row, run) for row, run in pairs if row[key] == value]
        document = self.document | {"runs": [row for row, _ in some]}
        return Outcome(self.directory, document, [run for _, run in some])

    @property
    def comparison(self) -> bool:
        """Whether there is more than one run to show."""
        return bool(self.document["kind"] != "run")

    @property
    def search(self) -> Any:
        """What a search for learning rates found, as it was written."""
        return self.document.get("search")

    @property
    def target(self) -> Target | None:
        return target_of(self.document["target"])

    @cached_property
    def problem(self) -> str:
        named = self.document.get("problem") or self.runs[0].config.get("problem")
        if isinstance(named, Mapping):
            named = named.get("name")
        return str(named or "a problem without a name")

    @cached_property
    def settings(self) -> dict[str, dict[str, str]]:
        """What each label of a sweep sets; empty when this is none."""
        rows = self.document["runs"] if self.document["kind"] == "sweep" else []
        found = {row["label"]: setting_of(row["set"]) for row in rows}
        return {label: one for label, one in found.items() if one}

    @cached_property
    def labels(self) -> dict[str, list[RecordedRun]]:
        """The runs of each label, in the order of their first appearance."""
        return by_label(self.runs)

    @cached_property
    def names(self) -> dict[str, str]:
        """What each label is called."""
        return {label: runs[0].method for label, runs in self.labels.items()}

    @cached_property
    def results(self) -> Results:
        """The rows that every table shows."""
        return results(self.runs, self.target)

    @cached_property
    def partition(self) -> Partition | None:
        """That of the first run which has one."""
        folders = [self.directory, *(run.directory for run in self.runs)]
        value = next(filter(None, (RunDir(folder).partition() for folder in folders)), None)
        if value is None:
            return None
        counts = value.get("counts") or []
        sizes = value.get("sizes") or [sum(row) for row in counts]
        names = [str(name) for name in value.get("names") or []]
        return Partition(
            clients=int(value.get("clients", len(sizes))),
            sizes=sizes,
            names=[] if all(name.isdecimal() for name in names) else names,
            labels=[str(label) for label in value.get("labels") or []],
            counts=counts,
        )


def outcome(
    study: Study,
    found: Sequence[tuple[Cell, RecordedRun]],
    out: Path,
    tried: Sequence[Mapping[str, Any]] = (),
    chosen: Mapping[str, Mapping[str, Any]] | None = None,
) -> Outcome:
    """What a study came to: its runs, what a search tried, and what that chose for each cell."""
    chosen = chosen or {}
    table = []
    for setting in dict.fromkeys(cell.setting for cell, _ in found):
        some = [(cell, run) for cell, run in found if cell.setting == setting]
        distinct = {(run.label, run.directory): run for _, run in some}  # a trial drawn twice
        own = results(list(distinct.values()), some[0][0].run.target)
        values = {c.label: chosen[c.tuned]["value"] for c, _ in some if c.tuned in chosen}
        table += [{"setting": setting} | row for row in row_documents(own, values)]
    runs = [cell.run for cell in study.cells]
    search = study.search and {
        "seed": study.search.seed,
        **study.search.about,
        "tried": tried,
        "chosen": chosen,
    }
    document = {
        "kind": study.kind,
        "problem": _shared([run.name("problem") for run in runs]),
        "target": _shared([run.tree.get("target") for run in runs]),
        "seeds": list(study.seeds or dict.fromkeys(run.seed for run in runs)),
        "rounds": _shared([run.rounds for run in runs]),
        **study.about,
        "search": search,
        "table": table,
        "runs": [_run_document(cell, run, out) for cell, run in found],
    }
    return Outcome(out, plain(document), [run for _, run in found])


def _shared(values: Sequence[Any]) -> Any:
    """The value that all have; None where they differ, or where there is none."""
    return values[0] if values and all(value == values[0] for value in values) else None


def _run_document(cell: Cell, run: RecordedRun, out: Path) -> dict[str, Any]:
    tallied = ("rounds", "rounds_to_target", "bytes_to_target", "bytes_up", "bytes_down")
    return {
        "label": run.label,
        "setting": cell.setting,
        "set": dict(cell.values),
        "method": run.method,
        "algorithm": run.algorithm,
        "baseline": run.baseline,
        "seed": run.seed,
        "status": run.status,
        "code": run.code,
        "target": None if cell.target is None else to_table(cell.target),
        **{key: run.tally[key] for key in (*tallied, "seconds", "final")},
        "params_sha256": run.summary.get("params_sha256"),
        "directory": os.path.relpath(run.directory, out),
    }


def write_results(found: Outcome) -> None:
    """Write results.json."""
    write_json(found.directory / RESULTS, found.document)


def _understood(path: Path) -> dict[str, Any]:
    """What results.json says, with the rows of its runs as they must be."""
    document = read_json(path)
    rows = document.get("runs")
    kinds = {"directory": str, "label": str, "target": dict | None, "baseline": bool | None}
    for number, row in enumerate(rows if isinstance(rows, list) else [None]):
        for key, kind in kinds.items():
            if not isinstance(row, dict) or not isinstance(row.get(key, path), kind):
                raise DataError(f"{path}: is damaged: runs[{number}] has no proper {key}")
    if not isinstance(document.get("kind"), str):
        raise DataError(f"{path}: is damaged: it does not say which kind of study it is of")
    return document


def read_outcome(directory: Path) -> Outcome:
    """A run, or a study with every run of it that can be read, while it may still go on."""
    if not directory.is_dir():
        raise DataError(f"{directory}: no such directory")
    if (directory / RESULTS).is_file():
        document = _understood(directory / RESULTS)
        known = [r for r in document["runs"] if RunDir(directory / r["directory"]).can_be_drawn]
        runs = [
            read_run(directory / row["directory"]).judged(
                row["label"], target_of(row["target"]), row["baseline"]
            )
            for row in known
        ]
        return Outcome(directory, document | {"runs": known}, runs)
    comparison = (directory / "runs").is_dir()
    if not comparison and not RunDir(directory).can_be_drawn:
        raise DataError(
            f"{directory}: neither a run (metrics.jsonl) nor a study ({RESULTS}, or runs/ while a "
            "comparison goes on)"
        )
    folders = _runs_below(directory) if comparison else [directory]
    if not folders:
        raise DataError(f"{directory}: the comparison holds no run yet")
    given = next(filter(None, (RunDir(folder).summary().get("target") for folder in folders)), None)
    kind = "comparison" if comparison else "run"
    runs = [read_run(folder, target_of(given)) for folder in folders]
    return Outcome(directory, {"kind": kind, "target": given, "runs": []}, runs)


def _runs_below(directory: Path) -> list[Path]:
    return [one for one in sorted((directory / "runs").glob("*")) if RunDir(one).can_be_drawn]


def drawn(found: Outcome) -> Outcome:
    """What a page shows of it: of a search the best trials, of a comparison also its new runs."""
    document, runs = found.document, list(found.runs)
    if document["kind"] == "tuning":
        pairs = zip(document["runs"], runs, strict=True)
        ranked = sorted((p for p in pairs if p[0]["score"] is not None), key=_score)[:SHOWN]
        runs = list({row["directory"]: run for row, run in ranked}.values())
    elif document["kind"] == "comparison":  # it may go on, with runs that are not named yet
        known = {run.directory.resolve() for run in runs}
        new = [one for one in _runs_below(found.directory) if one.resolve() not in known]
        runs += [read_run(folder, found.target) for folder in new]
    if not runs:
        raise DataError(f"{found.directory}: the study holds no run yet")
    return Outcome(found.directory, document, runs)


def _score(pair: tuple[Mapping[str, Any], RecordedRun]) -> float:
    return float(pair[0]["score"])


def target_of(found: Mapping[str, Any] | None) -> Target | None:
    """The target that a document tells of."""
    if not isinstance(found, Mapping) or not {"metric", "value"} <= found.keys():
        return None
    metric = str(found["metric"])
    at_least = found.get("at_least", records.metric(metric).up)
    return Target(metric, float(found["value"]), bool(at_least))


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


def table(found: Results, title: str, chosen: Mapping[str, Any] | None = None) -> Table:
    """The rows as everybody reads them; `chosen` is what a search chose for each label."""
    metrics = [found.metric] if found.metric is not None else []
    targeted, against = found.target is not None, metrics and found.baseline is not None
    headings = ["method", *(["chosen"] if chosen is not None else [])]
    headings += ["rounds to target", "sent"] if targeted else []
    headings += [records.metric(name).title.lower() for name in metrics]
    headings += ["difference"] if against else []
    headings += [records.metric(name).title.lower() for name in found.over_clients]
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
    return Table(title, headings, lines, "\n".join(_notes(found)), data=data)


def _notes(found: Results) -> Iterator[str]:
    """What a reader of the table must know."""
    until = "sent: up and down until the target; " if found.target is not None else ""
    yield f"{until}means over the seeds after the last round; {formatting.SPREAD}"
    if found.baseline is not None and found.metric is not None:
        title = records.metric(found.metric).title.lower()
        yield (
            f"difference: {title} minus that of {found.baseline.method}, the best baseline, on the "
            "same seeds, with its 95 % interval"
        )
        yield from filter(None, [verdict(found)])


def final(row: Row, name: str) -> str:
    """A row's final values of a metric in words."""
    return formatting.spread(spread_of(row, name), records.metric(name).share)


def spread_of(row: Row, metric: str | None) -> Spread:
    """A row's final values of a metric; none when nobody measured it."""
    return row.final.get(metric or "", spread([None] * row.seeds))


def failures(row: Row) -> str:
    """What a row must say about its seeds that ended in nonsense."""
    return f"{row.diverged} of {row.seeds} diverged" if row.diverged else ""


def reached(found: Results, row: Row) -> str:
    """Rounds to the target in words: how many, or that some or all seeds missed it."""
    if found.target is None:
        return formatting.NOTHING
    if not row.reached:
        return f"not reached (0 of {row.seeds})"
    text = formatting.spread(row.rounds)
    return text if row.rounds.complete else f"{text} ({row.reached} of {row.seeds})"


def verdict(found: Results) -> str | None:
    """Which rows differ from the best baseline by more than chance, in a sentence."""
    if found.baseline is None:
        return None
    against = found.baseline.method
    compared = [(row.method, row.difference) for row in found.rows if row.difference is not None]
    if not compared:
        return None
    if all(one.low is None for _, one in compared):
        return f"one seed cannot tell a difference to {against} from chance; try --seeds 0,1,2,3,4"
    sides = {
        f"differ from {against} by more than chance": [n for n, d in compared if d.beyond_chance],
        f"not told apart from {against}": [
            name for name, one in compared if not one.beyond_chance and not one.constant
        ],
        f"cannot be told apart from {against}, because all seeds gave the same difference": [
            name for name, one in compared if one.constant
        ],
    }
    parts = (f"{words}: {'; '.join(names)}" for words, names in sides.items() if names)
    return " · ".join(parts)  # labels may hold commas


def compared(found: Results, row: Row) -> str:
    """The difference of the compared metric to the best baseline's, with its interval."""
    if row.difference is None or found.metric is None:
        return formatting.NOTHING
    share = records.metric(found.metric).share
    low, high = row.difference.low, row.difference.high

    def signed(value: float) -> str:
        unit = 100 * value if share else value
        return f"{unit:+.1f}" if share else f"{unit:+.3g}"

    ending = " points" if share else ""
    text = f"{signed(row.difference.mean)}{ending}"
    if row.difference.constant:
        text += " (on all seeds)"
    elif low is not None and high is not None:
        text += f" ({signed(low)} to {signed(high)})"
    return text.replace("-", "−")


def runs_table(document: Mapping[str, Any]) -> Table:
    """One line a run of a sweep or a search: what was set, and what came out."""
    rows, tuning = document["runs"], document["kind"] == "tuning"
    best = document["best"]["trial"] if tuning and document["best"] else None
    targeted = not tuning and any(row["target"] is not None for row in rows)
    metrics = list(dict.fromkeys(name for row in rows for name in row["final"]))
    if tuning:
        metrics = [name for name in metrics if records.metric(name).known][:2]
    lines = []
    for row in rows:
        done = row["rounds"]
        if row["code"] == "diverged" and not tuning:
            done = f"{done} (diverged)"
        values = [*row["set"].values(), done]
        values += [row["rounds_to_target"]] if targeted else [row["state"]] if tuning else []
        values += [row["final"].get(name) for name in metrics]
        if tuning:
            values.insert(0, f"**{row['trial']}**" if row["trial"] == best else row["trial"])
        lines.append([number_cell(value) for value in values])
    keys = short_keys(list(rows[0]["set"])) if rows else []
    headings = ["trial", *keys, "rounds", "state"] if tuning else [*keys, "rounds done"]
    headings += [*(["rounds to target"] if targeted else []), *metrics]
    note = f"Trial {best} is the best." if best is not None else ""
    data = [flattened(row) for row in rows]
    return Table("Trials" if tuning else "Sweep", headings, lines, note, data=data)
