"""From runs to rows: who reached the target when, and which searched value was best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedadmm.study.rundir import read_metrics
from fedadmm.study.summary import Summary

Row = dict[str, Any]

USUAL_METRICS = (
    ("test_accuracy", True),
    ("objective", False),
    ("loss", False),
    ("test_loss", False),
)
"""What is compared when no target names a metric: the first that was measured, up is better?"""


def spread(values: Sequence[float | None]) -> Row:
    """Mean, standard deviation over seeds (n - 1), range, and how many there are."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return {"mean": None, "std": None, "min": None, "max": None, "of": len(values), "count": 0}
    return {
        "mean": statistics.fmean(known),
        "std": statistics.stdev(known) if len(known) > 1 else 0.0,
        "min": min(known),
        "max": max(known),
        "of": len(values),
        "count": len(known),
    }


def compared_metric(finals: Sequence[Mapping[str, Any]], metric: str | None) -> tuple[str, bool]:
    """The metric of the last column, and whether more of it is better."""
    better = dict(USUAL_METRICS)
    if metric is not None:
        return metric, better.get(metric, "loss" not in metric)
    for name, up in USUAL_METRICS:
        if any(name in final for final in finals):
            return name, up
    return "loss", False


def table(
    runs: Sequence[Mapping[str, Any]], metric: str | None, search: Mapping[str, Any] | None
) -> list[Row]:
    """One row a method, in the order of the methods."""
    name, _ = compared_metric([run["final"] for run in runs], metric)
    rows: list[Row] = []
    for label in dict.fromkeys(run["label"] for run in runs):
        own = [run for run in runs if run["label"] == label]
        rows.append(
            {
                "label": label,
                "algorithm": own[0]["algorithm"],
                "chosen": search["chosen"][label] if search is not None else None,
                "rounds_to_target": spread([run["rounds_to_target"] for run in own]),
                "bytes_to_target": spread([run["bytes_to_target"] for run in own]),
                "metric": name,
                "final": spread([run["final"].get(name) for run in own]),
                "diverged": sum(run["code"] == "diverged" for run in own),
                "seconds": sum(run["seconds"] for run in own),
            }
        )
    return rows


def ranking(target: Mapping[str, Any] | None) -> str:
    """How a search chooses, in words."""
    if target is None:
        return "best last measurement of the compared metric; a diverged run comes last"
    return (
        f"fewest rounds to {target['metric']} {target['value']}, then best {target['metric']} of "
        "any round; a diverged run comes last"
    )


def standing(directory: Path, summary: Summary, target: Mapping[str, Any] | None) -> Row:
    """What a search needs to know about one of its runs."""
    metric, up = compared_metric([summary["final"]], target["metric"] if target else None)
    if target is not None:
        up = target.get("at_least", True)
    values = [
        value for record in read_metrics(directory) if (value := record.get(metric)) is not None
    ]
    if target is None:
        values = values[-1:]
    best = (max(values) if up else min(values)) if values else None
    return {
        "rounds_to_target": summary["rounds_to_target"],
        "metric": metric,
        "best": best,
        "more_is_better": up,
        "code": summary["code"],
    }


def choose(tried: Sequence[Row]) -> dict[str, Row]:
    """The best value for each label; of equals, the one that was tried first."""
    chosen: dict[str, Row] = {}
    for label in dict.fromkeys(row["label"] for row in tried):
        best = min((row for row in tried if row["label"] == label), key=_rank)
        chosen[label] = {key: best[key] for key in ("key", "value", "rounds_to_target", "best")}
    return chosen


def _rank(row: Row) -> tuple[bool, float, float]:
    rounds = row["rounds_to_target"]
    best = row["best"]
    worth = -math.inf if best is None else best if row["more_is_better"] else -best
    return row["code"] == "diverged", math.inf if rounds is None else rounds, -worth
