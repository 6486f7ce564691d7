"""What the records of a run say.

`fedadmm.run.record` defines what a record looks like, and `fedadmm.run.metrics` what is known of a
metric; nothing else of this room knows their keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from fedadmm.run.evaluation import Target
from fedadmm.run.metrics import Metric as Metric
from fedadmm.run.metrics import metric as metric
from fedadmm.run.metrics import over_clients as over_clients
from fedadmm.run.metrics import primary as primary
from fedadmm.run.record import Record, as_number
from fedadmm.run.record import ambiguous as ambiguous
from fedadmm.run.record import besides as besides
from fedadmm.run.record import value as value


def number(record: Record) -> int:
    """The round's number, from 1; 0 for an initial round with everybody."""
    return record["round"]


def rounds(records: Sequence[Record]) -> list[Record]:
    """The records without the one of an initial round, which leads to where rounds start."""
    return [record for record in records if number(record) > 0]


def metrics(record: Record) -> dict[str, Any]:
    """What the evaluation of a round measured."""
    return record["metrics"]


def last_metrics(records: Sequence[Record]) -> dict[str, Any]:
    """The metrics of the last round that was measured."""
    return next((found for record in reversed(records) if (found := metrics(record))), {})


def further(record: Record) -> Iterator[str]:
    """The names of the numbers that instruments and networks added."""
    for group in (record.get("instruments", {}), record.get("network", {})):
        yield from (key for key, found in group.items() if as_number(found) is not None)


def reached(record: Record, target: Target) -> bool:
    """Whether a round meets a target; one without the metric does not, nor does an initial one."""
    return number(record) > 0 and target.reached(value(record, target.metric))


def first_reached(records: Sequence[Record], target: Target | None) -> int | None:
    """The position of the first round that meets a target."""
    if target is None:
        return None
    return next((i for i, record in enumerate(records) if reached(record, target)), None)


def bytes_up(records: Sequence[Record]) -> int:
    """Bytes that clients sent."""
    return sum(record["traffic"].get("bytes_up", 0) for record in records)


def bytes_down(records: Sequence[Record]) -> int:
    """Bytes that were sent to clients."""
    return sum(record["traffic"].get("bytes_down", 0) for record in records)


def hides(record: Record) -> str:
    """Whom a run's noise hides: clients, or records (rows) of clients."""
    return str(record.get("privacy", {}).get("hides", "clients"))


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
    found = record.get("instruments", {}).get("warnings")
    return [one for one in _listed(found) if isinstance(one, str)]


def _listed(found: object) -> Sequence[Any]:
    return found if isinstance(found, list | tuple) else ()


def _triple(found: object) -> list[float] | None:
    values = [one for one in map(as_number, _listed(found)) if one is not None]
    return values if len(values) == len(_listed(found)) == 3 else None
