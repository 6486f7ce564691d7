"""Sums over the records of a run, and what is made of them: summary.json and partition.json.

`fedadmm.run.record` defines a record and checks it when it is read, `fedadmm.run.metrics` says
what is known of a metric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, cast

import fedadmm
from fedadmm.core import clock
from fedadmm.core.parts import is_external, name_of
from fedadmm.core.problem import Problem
from fedadmm.core.protocols import AnyAlgorithm
from fedadmm.run.evaluation import Target
from fedadmm.run.metrics import Best
from fedadmm.run.metrics import Metric as Metric
from fedadmm.run.metrics import metric as metric
from fedadmm.run.metrics import over_clients as over_clients
from fedadmm.run.metrics import primary as primary
from fedadmm.run.plan import Ending
from fedadmm.run.record import Record, as_number
from fedadmm.run.record import ambiguous as ambiguous
from fedadmm.run.record import besides as besides
from fedadmm.run.record import value as value

if TYPE_CHECKING:
    from fedadmm.run.experiment import Experiment


def rounds(records: Sequence[Record]) -> list[Record]:
    """The records without the one of an initial round, which leads to where rounds start."""
    return [record for record in records if record["round"] > 0]


def clients(record: Record) -> list[int]:
    """Who took part."""
    return record["cohort"].get("clients", [])


def total(records: Sequence[Record], group: str, *names: str) -> Any:
    """The sum of some numbers of a group over rounds: bytes, seconds; null counts nothing."""
    groups = [cast(Any, record)[group] for record in records]
    return sum(own.get(name) or 0 for own in groups for name in names)


def sent(records: Sequence[Record]) -> int:
    """Bytes up and down."""
    return int(total(records, "traffic", "bytes_up", "bytes_down"))


def work(records: Sequence[Record], name: str) -> float | None:
    """The `epochs`, or the `passes` over their data, of all participants over all rounds.

    None where a record does not say.
    """
    if any(name not in record["work"] for record in records):
        return None
    return sum(
        (as_number(record["work"].get(name)) or 0.0) * record["cohort"].get("participants", 0)
        for record in records
    )


def privacy(record: Record, name: str) -> float | None:
    """What a record says about privacy: epsilon, delta or clip; None for runs without noise."""
    return as_number(record.get("privacy", {}).get(name))


Summary = dict[str, Any]

RUNNING: Final = "running"
INTERRUPTED: Final = "interrupted"
FAILED: Final = "failed"
"""The codes of runs that are not at their end; the others are those of an `Ending`."""

MOST_CLIENTS = 200
"""This many clients are listed one by one in partition.json."""


def tally(records: Sequence[Record], target: Target | None) -> Summary:
    """Rounds, bytes, seconds and final metrics of some records, of a run that ended or not."""
    met = (
        place
        for place, one in enumerate(records)
        if target is not None and one["round"] > 0 and target.reached(value(one, target.metric))
    )
    hit = next(met, None)
    until = None if hit is None else records[: hit + 1]
    found: Summary = {
        "rounds": len(rounds(records)),
        "final": next(filter(None, (one["metrics"] for one in reversed(records))), {}),
        "rounds_to_target": None if until is None else until[-1]["round"],
        "bytes_to_target": None if until is None else sent(until),
        "uploads_to_target": None if until is None else total(until, "traffic", "bytes_up"),
        "seconds_to_target": None if until is None else total(until, "clock", "seconds"),
        "passes_to_target": None if until is None else work(until, "passes"),
        "bytes_up": total(records, "traffic", "bytes_up"),
        "bytes_down": total(records, "traffic", "bytes_down"),
        "seconds": total(records, "clock", "seconds"),
        "warnings": [w for one in records for w in one.get("callbacks", {}).get("warnings", [])],
    }
    if not records:
        return found
    if (end := besides(records[-1], "virtual_time")) is not None:
        there = besides(until[-1], "virtual_time") if until is not None else None
        found |= {"virtual_time": end, "virtual_time_to_target": there}
    spent = records[-1].get("privacy", {})
    if {"epsilon", "delta"} <= spent.keys():  # a run with noise, which hides clients or their rows
        keys = {"hides": "clients"} | spent
        found["privacy"] = {key: keys[key] for key in ("hides", "epsilon", "delta")}
    return found


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
    """The content of summary.json; without an ending that of a run in progress.

    `best` describes the best model, `method` is the algorithm as it ran.
    """
    ending, kind = ending or Ending(RUNNING, RUNNING), type(run.algorithm)
    return {
        "status": ending.sentence,
        "code": ending.code,
        "algorithm": run.name("algorithm"),
        "method": run.algorithm.title,
        # One's own subclass of FedAvg would otherwise be measured against itself.
        "baseline": bool(
            vars(kind).get("baseline") if is_external(name_of(kind)) else kind.baseline
        ),
        "label": label or run.label,
        "seed": run.seed,
        "target": run.tree.get("target"),
        **tally(records, run.target),
        "best": best,
        "threads": threads,
        "fitted": fitted(run.algorithm, method),
        "params_sha256": params_sha256,
        "fedadmm_version": fedadmm.__version__,
        "created": clock.timestamp(),
    }


def fitted(asked: AnyAlgorithm, method: AnyAlgorithm | None) -> dict[str, float]:
    """The numbers that the run made of what depends on the clients' local work."""
    if method is None or method is asked:
        return {}
    names = (field.name for field in fields(cast(Any, method)))
    return {n: getattr(method, n) for n in names if getattr(method, n) != getattr(asked, n)}


def best_model(best: Best | None) -> dict[str, Any] | None:
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
        "weights": "equal" if problem.weights is None else "rows",
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
