"""What a run comes to: summary.json from its records, and the partition that it ran on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, cast

import fedadmm
from fedadmm.core import clock
from fedadmm.core.parts import is_external, name_of
from fedadmm.core.problem import Problem
from fedadmm.core.protocols import AnyAlgorithm
from fedadmm.run.best import Best
from fedadmm.run.evaluation import Target
from fedadmm.run.plan import Ending
from fedadmm.run.record import Record
from fedadmm.study import records as reading

if TYPE_CHECKING:
    from fedadmm.run.experiment import Experiment

Summary = dict[str, Any]

RUNNING: Final = "running"
INTERRUPTED: Final = "interrupted"
FAILED: Final = "failed"
"""The codes of runs that are not at their end; the others are those of an `Ending`."""

MOST_CLIENTS = 200
"""This many clients are listed one by one in partition.json."""


def tally(records: Sequence[Record], target: Target | None) -> Summary:
    """What some records come to; the same for a run that ended and for one that goes on."""
    hit = reading.first_reached(records, target)
    until = None if hit is None else records[: hit + 1]
    return {
        "rounds": len(reading.rounds(records)),
        "final": reading.last_metrics(records),
        "rounds_to_target": None if until is None else reading.number(until[-1]),
        "bytes_to_target": None if until is None else reading.sent(until),
        "uploads_to_target": None if until is None else reading.bytes_up(until),
        "seconds_to_target": None if until is None else reading.seconds(until),
        "passes_to_target": None if until is None else reading.work(until, "passes"),
        "bytes_up": reading.bytes_up(records),
        "bytes_down": reading.bytes_down(records),
        "seconds": reading.seconds(records),
        **_clock(records, until),
        **_privacy(records),
        "warnings": [text for record in records for text in reading.warnings(record)],
    }


def _privacy(records: Sequence[Record]) -> Summary:
    """What has been spent, for runs with noise."""
    if not records:
        return {}
    spent = {name: reading.privacy(records[-1], name) for name in ("epsilon", "delta")}
    if None in spent.values():
        return {}
    return {"privacy": {"hides": reading.hides(records[-1])} | spent}


def _clock(records: Sequence[Record], until: Sequence[Record] | None) -> Summary:
    """Virtual time, for runs that have any."""
    end = reading.virtual_time(records[-1]) if records else None
    if end is None:
        return {}
    reached = reading.virtual_time(until[-1]) if until is not None else None
    return {"virtual_time": end, "virtual_time_to_target": reached}


def summarise(
    run: Experiment,
    records: Sequence[Record],
    ending: Ending | None = None,
    params_sha256: str | None = None,
    label: str | None = None,
    threads: int | None = None,
    best: Mapping[str, Any] | None = None,
    method: AnyAlgorithm | None = None,
) -> Summary:
    """The content of summary.json; without an ending that of a run that goes on.

    `best` is what is told of the best model, `method` the algorithm as it ran.
    """
    ending = ending or Ending(RUNNING, RUNNING)
    return {
        "status": ending.sentence,
        "code": ending.code,
        "algorithm": run.name("algorithm"),
        "method": run.algorithm.title,
        "baseline": is_baseline(run.algorithm),
        "label": label or run.label,
        "seed": run.seed,
        "target": run.tree.get("target"),
        **tally(records, run.target),
        "best": best,
        "threads": threads,
        "fitted": _fitted(run.algorithm, method),
        "params_sha256": params_sha256,
        "fedadmm_version": fedadmm.__version__,
        "created": clock.timestamp(),
    }


def is_baseline(method: AnyAlgorithm) -> bool:
    """Whether others are measured against it; one's own method is a baseline only by its own word.

    A subclass of FedAvg would otherwise be measured against itself.
    """
    kind = type(method)
    return bool(
        kind.__dict__.get("baseline", False) if is_external(name_of(kind)) else kind.baseline
    )


def _fitted(asked: AnyAlgorithm, method: AnyAlgorithm | None) -> dict[str, float]:
    """The numbers that the run made of what depends on the clients' local work."""
    if method is None or method is asked:
        return {}
    names = (field.name for field in fields(cast(Any, method)))
    return {n: getattr(method, n) for n in names if getattr(method, n) != getattr(asked, n)}


def told(best: Best | None) -> dict[str, Any] | None:
    """Which round's model model.safetensors is, and why; None for the last, nothing measured."""
    if best is None:
        return None
    return {"round": best.round, "metric": best.metric, "value": best.value}


def partition_of(problem: Problem) -> Mapping[str, Any] | None:
    """The content of partition.json; None for problems that were not split from rows."""
    if problem.data is None:
        return None
    data = problem.data
    sizes = [int(size) for size in data.partition.sizes]
    shown: dict[str, Any] = {
        "clients": len(sizes),
        "names": data.client_names()[:MOST_CLIENTS],
        "sizes": sizes[:MOST_CLIENTS],
        "total_size": sum(sizes),
    }
    if data.rows.preparation is not None:
        shown["preparation"] = data.rows.preparation
    if data.rows.num_classes is None:
        return shown
    counts = data.label_counts()
    return shown | {
        "labels": list(data.rows.class_names or range(len(counts))),
        "counts": counts.T[:MOST_CLIENTS].tolist(),
        "total_counts": counts.sum(axis=1).tolist(),
    }
