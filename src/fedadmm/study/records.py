"""What the records of a run say, and what they come to: summary.json.

`fedadmm.run.record` defines what a record looks like, and `fedadmm.run.metrics` what is known of a
metric; nothing else of this room knows their keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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


def number(record: Record) -> int:
    """The round's number, from 1; 0 for an initial round with everybody."""
    return record["round"]


def rounds(records: Sequence[Record]) -> list[Record]:
    """The records without the one of an initial round, which leads to where rounds start."""
    return [record for record in records if number(record) > 0]


def metrics(record: Record) -> dict[str, Any]:
    """What the evaluation of a round measured."""
    return record["metrics"]


def further(record: Record) -> Iterator[str]:
    """The names of the numbers that callbacks and networks added."""
    for group in (record.get("callbacks", {}), record.get("network", {})):
        yield from (key for key, found in group.items() if as_number(found) is not None)


def reached(record: Record, target: Target) -> bool:
    """Whether a round meets a target; one without the metric does not, nor does an initial one."""
    return number(record) > 0 and target.reached(value(record, target.metric))


def bytes_up(records: Sequence[Record]) -> int:
    """Bytes that clients sent."""
    return sum(record["traffic"].get("bytes_up", 0) for record in records)


def bytes_down(records: Sequence[Record]) -> int:
    """Bytes that were sent to clients."""
    return sum(record["traffic"].get("bytes_down", 0) for record in records)


def privacy(record: Record, name: str) -> float | None:
    """What a record says about privacy: epsilon, delta or clip; None for runs without noise."""
    return as_number(record.get("privacy", {}).get(name))


def sent(records: Sequence[Record]) -> int:
    """Bytes up and down."""
    return bytes_up(records) + bytes_down(records)


def seconds(records: Sequence[Record]) -> float:
    """The time of training, without evaluation."""
    found = (as_number(record["clock"].get("seconds")) for record in records)
    return sum(one for one in found if one is not None and math.isfinite(one))


def work(records: Sequence[Record], name: str) -> float | None:
    """The `epochs`, or the `passes` over their data, of all participants over all rounds.

    None where a record does not say.
    """
    if any(name not in record["work"] for record in records):
        return None
    return sum(
        (as_number(record["work"].get(name)) or 0.0)
        * (as_number(record["cohort"].get("participants")) or 0.0)
        for record in records
    )


def clients(record: Record) -> list[int]:
    """Who took part."""
    return [i for i in _listed(record["cohort"].get("clients")) if isinstance(i, int) and i >= 0]


def by_client(record: Record) -> dict[str, list[float | None]]:
    """Each client's own value of the metrics that were measured so, by the metrics' names."""
    return {
        name.removesuffix("_by_client"): [as_number(one) for one in _listed(found)]
        for name, found in record.get("clients", {}).items()
    }


def virtual_time(record: Record) -> float | None:
    """When the round ended on a virtual clock; None on a real one."""
    return as_number(record["clock"].get("virtual_time"))


def penalty_quartiles(record: Record) -> list[float] | None:
    """Those of the participants' penalties."""
    return _triple(record["work"].get("penalty_quartiles"))


def staleness_quantiles(record: Record) -> list[float] | None:
    """The median, the 90 % quantile and the largest of all delays so far; None without delays."""
    return _triple(record["clock"].get("staleness_quantiles"))


def delays(record: Record) -> list[int]:
    """The delay of every reply that was folded, in server steps."""
    return [delay for delay in _listed(record["clock"].get("delays")) if isinstance(delay, int)]


def intervals(record: Record) -> list[list[float]]:
    """Pieces of work that ended: client, begin, end, and whether they were folded."""
    return [one for one in _listed(record["clock"].get("intervals")) if isinstance(one, list)]


def warnings(record: Record) -> list[str]:
    """What an instrument found worth a warning."""
    found = record.get("callbacks", {}).get("warnings")
    return [one for one in _listed(found) if isinstance(one, str)]


def _listed(found: object) -> Sequence[Any]:
    return found if isinstance(found, list | tuple) else ()


def _triple(found: object) -> list[float] | None:
    values = [one for one in map(as_number, _listed(found)) if one is not None]
    return values if len(values) == len(_listed(found)) == 3 else None


Summary = dict[str, Any]

RUNNING: Final = "running"
INTERRUPTED: Final = "interrupted"
FAILED: Final = "failed"
"""The codes of runs that are not at their end; the others are those of an `Ending`."""

MOST_CLIENTS = 200
"""This many clients are listed one by one in partition.json."""


def tally(records: Sequence[Record], target: Target | None) -> Summary:
    """What some records come to; the same for a run that ended and for one that goes on."""
    met = (i for i, record in enumerate(records) if target is not None and reached(record, target))
    hit = next(met, None)
    until = None if hit is None else records[: hit + 1]
    found: Summary = {
        "rounds": len(rounds(records)),
        "final": next(filter(None, map(metrics, reversed(records))), {}),
        "rounds_to_target": None if until is None else number(until[-1]),
        "bytes_to_target": None if until is None else sent(until),
        "uploads_to_target": None if until is None else bytes_up(until),
        "seconds_to_target": None if until is None else seconds(until),
        "passes_to_target": None if until is None else work(until, "passes"),
        "bytes_up": bytes_up(records),
        "bytes_down": bytes_down(records),
        "seconds": seconds(records),
        "warnings": [text for record in records for text in warnings(record)],
    }
    if not records:
        return found
    if (end := virtual_time(records[-1])) is not None:
        there = virtual_time(until[-1]) if until is not None else None
        found |= {"virtual_time": end, "virtual_time_to_target": there}
    spent = {name: privacy(records[-1], name) for name in ("epsilon", "delta")}
    if None not in spent.values():  # a run with noise, which hides clients or their rows
        found["privacy"] = {"hides": records[-1]["privacy"].get("hides", "clients"), **spent}
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
    """The content of summary.json; without an ending that of a run that goes on.

    `best` is what is told of the best model, `method` the algorithm as it ran.
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
