"""What a round's record says: the only module of this room that knows its keys.

A metric is what an evaluation measured.  Everything else in a record belongs to a group, which
says what it is about.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedadmm.run.evaluation import Target
from fedadmm.run.loop import Record

_GROUPS = {
    "round": ("round",),
    "cohort": ("participants", "clients"),
    "network": ("refused", "missing", "sites", "events"),
    "work": (
        *("epochs", "passes", "steps", "primal_residual", "dual_residual"),
        *("penalty_mean", "penalty_min", "penalty_max", "penalty_quartiles"),
    ),
    "traffic": ("bytes_up", "bytes_down"),
    "clock": (
        *("at", "seconds", "evaluation_seconds", "diagnostics_seconds", "virtual_time", "idle"),
        *("steps_per_second", "in_flight", "dropped", "intervals", "delays", "staleness"),
        *("staleness_mean", "staleness_max", "staleness_quantiles", "longest_absence"),
    ),
    "instruments": (
        *("certificate_measured", "certificate_bound", "kkt_residual", "stationarity"),
        *("consensus", "dual_sum", "dual_norm", "dual_norm_max", "lagrangian", "mean_drift"),
        *("gong_v", "dual_value", "duality_gap", "warnings"),
    ),
}
_GROUP_OF = {key: group for group, keys in _GROUPS.items() for key in keys}


class Metric(NamedTuple):
    """What there is to know about a metric besides its values."""

    name: str
    title: str
    up: bool
    """Whether more is better."""
    share: bool = False
    """Whether it lies between 0 and 1 and reads better as a percentage."""
    sentence: str = ""
    known: bool = False


_SENTENCES = {
    "test_accuracy": "The share of held-out rows that the global model classifies rightly.",
    "objective": "F = f + g, the training loss with the regulariser.",
    "loss": "f, the weighted mean of the clients' training losses at the global model.",
    "train_accuracy": "The share of all clients' training rows that are classified rightly.",
    "test_loss": "The mean loss of the global model on held-out rows.",
    "gradient_mapping": "Its norm is zero exactly at a stationary point of F.",
    "sparsity": "The share of the global model's parameters that are exactly zero.",
}
"""The metrics that our own evaluations measure, the one to compare by first."""
_LOWER = re.compile(r"loss|objective|gradient|residual|error|bound|seconds|staleness")
"""Quantities whose names match are good when small; all others when large."""


def metric(name: str) -> Metric:
    """A metric by its name; what is not known is judged by the words in it."""
    title = name.replace("_", " ").strip()
    return Metric(
        name=name,
        title=title[:1].upper() + title[1:],
        up=not _LOWER.search(name),
        share="accuracy" in name or "sparsity" in name,
        sentence=_SENTENCES.get(name, ""),
        known=name in _SENTENCES or "accuracy" in name or "loss" in name,
    )


def primary(names: Sequence[str], target: Target | None) -> str | None:
    """The one metric to compare by: the target's, else the first of the usual ones, else any."""
    if target is not None:
        return target.metric
    return next((name for name in (*_SENTENCES, *names) if name in names), None)


def is_round(record: Mapping[str, Any]) -> bool:
    """Whether something that was read is about a round."""
    return isinstance(record.get("round"), int)


def number(record: Mapping[str, Any]) -> int:
    """The round's number, from 1; 0 for an initial round with everybody."""
    return int(record["round"])


def rounds(records: Sequence[Record]) -> list[Record]:
    """The records without the one of an initial round, which leads to where rounds start."""
    return [record for record in records if number(record) > 0]


def value(record: Mapping[str, Any], name: str) -> float | None:
    """One number of a record, whatever it is about; None when it was not measured."""
    found = record.get(name)
    return float(found) if _is_number(found) else None  # type: ignore[arg-type]


def _is_number(found: object) -> bool:
    """Whether something is a number that a float can hold."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        return False
    return isinstance(found, float) or abs(found) <= sys.float_info.max


def metrics(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the evaluation of a round measured."""
    return {key: found for key, found in record.items() if key not in _GROUP_OF}


def last_metrics(records: Sequence[Record]) -> dict[str, Any]:
    """The metrics of the last round that was measured."""
    return next((found for record in reversed(records) if (found := metrics(record))), {})


def further(record: Mapping[str, Any]) -> Iterator[str]:
    """The names of the numbers that instruments and networks added."""
    for key in record:
        if _GROUP_OF.get(key) in ("instruments", "network") and value(record, key) is not None:
            yield key


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Every plain number but the round's own, by name."""
    found = {key: value(record, key) for key in record if _GROUP_OF.get(key) != "round"}
    return {key: one for key, one in found.items() if one is not None}


def reached(record: Mapping[str, Any], target: Target) -> bool:
    """Whether a round meets a target; a round without the metric does not."""
    return target.reached({target.metric: value(record, target.metric)})


def first_reached(records: Sequence[Record], target: Target | None) -> int | None:
    """The position of the first round that meets a target."""
    if target is None:
        return None
    found = (i for i, record in enumerate(records) if number(record) and reached(record, target))
    return next(found, None)


def sent(record: Mapping[str, Any]) -> int:
    """Bytes of a round, up and down."""
    return int(total([record], "bytes_up", "bytes_down"))


def total(records: Sequence[Mapping[str, Any]], *names: str) -> Any:
    """The sum of some quantities over the rounds."""
    found = (record.get(name) for record in records for name in names)
    return sum(one for one in found if _is_number(one))


def work(records: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The epochs, or the passes over their data, of all participants over all rounds.

    None for runs that did not count passes yet.
    """
    if any(name not in record for record in records):
        return None
    return sum((value(r, name) or 0.0) * (value(r, "participants") or 0.0) for r in records)


def clients(record: Mapping[str, Any]) -> list[int]:
    """Who took part."""
    found = record.get("clients")
    return [i for i in found if isinstance(i, int) and i >= 0] if isinstance(found, list) else []


def virtual_time(record: Mapping[str, Any]) -> float | None:
    """When the round ended on a virtual clock; None on a real one."""
    return value(record, "virtual_time")


def triple(record: Mapping[str, Any], name: str) -> list[float] | None:
    """Three quantiles, `penalty_quartiles` or `staleness_quantiles`."""
    found = record.get(name)
    whole = isinstance(found, list) and len(found) == 3 and all(map(_is_number, found))
    return [float(one) for one in found] if whole else None  # type: ignore[union-attr]


def delays(record: Mapping[str, Any]) -> list[int]:
    """The delay of every reply that was folded, in server steps."""
    return [delay for delay in _listed(record, "delays") if isinstance(delay, int)]


def intervals(record: Mapping[str, Any]) -> list[list[float]]:
    """Pieces of work that ended: client, begin, end, and whether they were folded."""
    return [one for one in _listed(record, "intervals") if isinstance(one, list)]


def warnings(record: Mapping[str, Any]) -> list[str]:
    """What an instrument found worth a warning."""
    return [one for one in _listed(record, "warnings") if isinstance(one, str)]


def _listed(record: Mapping[str, Any], name: str) -> Sequence[Any]:
    found = record.get(name)
    return found if isinstance(found, list | tuple) else ()
