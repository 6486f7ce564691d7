"""The report's numbers: results by label, the runs, the head's key figures, the configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fedadmm.study.report.panels import metric_names, pretty, primary_metric
from fedadmm.study.report.reading import LOWER_IS_BETTER, Content, Run, Target

BASELINES = ("fedsgd", "fedavg", "fedprox", "scaffold")
"""What the reduction is measured against, as in Gong et al.: the methods without duals."""


class Result(NamedTuple):
    """One label's row; None where there is nothing to say."""

    label: str
    algorithm: str
    seeds: int
    diverged: int
    reached: int
    rounds: float | None
    """Mean rounds to the target, when every seed reached it."""
    rounds_range: tuple[int, int] | None
    reduction: float | None
    """How many rounds fewer than the best baseline's, as a share of those."""
    bytes_to_target: float | None
    seconds_to_target: float | None
    final: dict[str, tuple[float, float, float]]
    """Metric -> mean, lowest and highest last measurement over the seeds that did not diverge."""


class Configuration(NamedTuple):
    """The resolved configuration: what all runs share, and what differs between labels."""

    shared: list[tuple[str, str]]
    columns: list[str]
    different: list[tuple[str, list[str]]]


class Search(NamedTuple):
    """A search for learning rates: how it chose, the values, and each label's scores."""

    rule: str
    values: list[str]
    rows: list[tuple[str, list[str]]]


def results(content: Content) -> list[Result]:
    """One row a label; with a target the fastest first."""
    rows = [_result(label, runs, content) for label, runs in content.labels.items()]
    best = best_baseline(rows)
    if best is not None and best.rounds is not None:
        rounds = best.rounds
        rows = [
            row._replace(reduction=1 - row.rounds / rounds) if row.rounds is not None else row
            for row in rows
        ]
    if content.target is not None:
        rows.sort(key=lambda row: (row.rounds is None, row.rounds or 0.0, -row.reached))
    return rows


def best_baseline(rows: Iterable[Result]) -> Result | None:
    """The baseline that needs the fewest rounds, of those that all seeds bring to the target."""
    candidates = [row for row in rows if row.algorithm in BASELINES and row.rounds is not None]
    return min(candidates, key=lambda row: row.rounds or math.inf, default=None)


def final_metrics(content: Content) -> list[str]:
    """The metrics worth a column: the primary one, one accuracy and the losses."""
    names = metric_names(content)
    accuracy = [name for name in names if "accuracy" in name][:1]
    wanted = [primary_metric(content), *accuracy, "test_loss", "loss", "objective", "sparsity"]
    return [name for name in dict.fromkeys(wanted) if name in names]


def _result(label: str, runs: list[Run], content: Content) -> Result:
    hits = [(run, run.first_at(content.target)) for run in runs] if content.target else []
    there = [(run, hit) for run, hit in hits if hit is not None]
    all_there = bool(there) and len(there) == len(runs)
    rounds = [int(run.records[hit].get("round", hit + 1)) for run, hit in there]
    finals = {name: _final(runs, name) for name in final_metrics(content)}
    return Result(
        label=label,
        algorithm=runs[0].algorithm,
        seeds=len(runs),
        diverged=sum(run.diverged for run in runs),
        reached=len(there),
        rounds=_mean(rounds) if all_there else None,
        rounds_range=(min(rounds), max(rounds)) if all_there else None,
        reduction=None,
        bytes_to_target=_spent(there, "bytes_up", "bytes_down") if all_there else None,
        seconds_to_target=_spent(there, "seconds") if all_there else None,
        final={name: value for name, value in finals.items() if value is not None},
    )


def _final(runs: list[Run], name: str) -> tuple[float, float, float] | None:
    healthy = [run for run in runs if not run.diverged] or runs
    values = [value for run in healthy if (value := run.last(name)) is not None]
    return (_mean(values), min(values), max(values)) if values else None


def _spent(there: list[tuple[Run, int]], *names: str) -> float:
    """The mean sum of some quantities up to and including the round that met the target."""
    return _mean(
        [
            sum(record.get(name) or 0 for record in run.records[: hit + 1] for name in names)
            for run, hit in there
        ]
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def key_figures(content: Content, rows: list[Result]) -> list[tuple[str, str, str]]:
    """(What, value, small print) for the head of the page."""
    traffic = sum(run.total("bytes_up", "bytes_down") for run in content.runs)
    seconds = sum(run.total("seconds") for run in content.runs)
    rounds = sum(len(run.records) for run in content.runs)
    figures = [*_target_figure(content, rows), *_best_figure(content, rows)]
    if content.comparison:
        states = [run.code for run in content.runs]
        parts = [f"{states.count(code)} {code}" for code in dict.fromkeys(states)]
        figures.append(("Runs", str(len(states)), ", ".join(parts)))
    figures.append(("Rounds", f"{rounds:,}", "in all runs" if content.comparison else ""))
    figures.append(("Communication", size(traffic), "up and down"))
    figures.append(("Training time", duration(seconds), "without evaluation"))
    return figures


def _target_figure(content: Content, rows: list[Result]) -> list[tuple[str, str, str]]:
    if content.target is None:
        return []
    what = "Fewest rounds to the target" if content.comparison else "Rounds to the target"
    first = rows[0]
    if first.rounds is None:
        part = f"{first.reached} of {first.seeds} runs of {first.label}"
        return [(what, "not reached", part if content.comparison else describe(content.target))]
    saved = ""
    if first.reduction is not None and first.algorithm not in BASELINES:
        saved = f", {number(first.reduction, share=True)} fewer than the best baseline"
    return [(what, f"{first.rounds:.4g}", f"{first.label}{saved}" if content.comparison else "")]


def _best_figure(content: Content, rows: list[Result]) -> list[tuple[str, str, str]]:
    name = primary_metric(content)
    scored = [row for row in rows if name in row.final]
    if name is None or not scored:
        return []
    sign = -1 if LOWER_IS_BETTER.search(name) else 1
    best = max(scored, key=lambda row: sign * row.final[name][0])
    what = f"{'Best final' if content.comparison else 'Final'} {pretty(name).lower()}"
    return [(what, metric(name, best.final[name][0]), best.label if content.comparison else "")]


def search_table(search: Any) -> Search | None:
    """What every label scored with every value that it tried, and which value it chose."""
    tried = search.get("tried") if isinstance(search, dict) else None
    if not tried:
        return None
    values = list(dict.fromkeys(row.get("value") for row in tried))
    chosen = search.get("chosen") or {}
    rows: dict[str, dict[Any, str]] = {}
    for row in tried:
        score = row.get("best")
        name = str(row.get("metric", ""))
        shown = "–" if score is None else metric(name, score)
        label = str(row.get("label"))
        mark = " ✓" if (chosen.get(label) or {}).get("value") == row.get("value") else ""
        rows.setdefault(label, {})[row.get("value")] = shown + mark
    return Search(
        str(search.get("rule", "")),
        [str(value) for value in values],
        [(label, [cells.get(value, "–") for value in values]) for label, cells in rows.items()],
    )


def configuration(content: Content) -> Configuration:
    """Dotted keys; the seed of a comparison's runs goes without saying."""
    firsts = {label: _flat(runs[0].config) for label, runs in content.labels.items()}
    if content.comparison:
        for flat in firsts.values():
            flat.pop("seed", None)
    keys = list(dict.fromkeys(key for flat in firsts.values() for key in flat))
    shared: list[tuple[str, str]] = []
    different: list[tuple[str, list[str]]] = []
    for key in keys:
        values = [flat.get(key, "–") for flat in firsts.values()]
        if len(set(values)) == 1:
            shared.append((key, values[0]))
        else:
            different.append((key, values))
    return Configuration(shared, list(firsts), different)


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    result: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            result |= _flat(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = json.dumps(value, ensure_ascii=False, default=str)
    return result


def describe(target: Target) -> str:
    """A target in words."""
    sign = "≥" if target.at_least else "≤"
    value = metric(target.metric, target.value).replace(".0 %", " %")
    return f"{pretty(target.metric).lower()} {sign} {value}".replace(
        f"{sign} ", f"{sign}\N{NO-BREAK SPACE}"
    )


def metric(name: str, value: float) -> str:
    """A metric's value; accuracies and sparsities are percentages."""
    return number(value, share="accuracy" in name or "sparsity" in name)


def number(value: float, share: bool = False) -> str:
    """Four significant digits, or a percentage with one decimal."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "not a number" if math.isnan(value) else "−∞"
    text = f"{100 * value:.1f} %" if share else f"{value:.4g}"
    return text.replace("-", "−")


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
