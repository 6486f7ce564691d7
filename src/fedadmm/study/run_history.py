"""Sums over the records of a run, and what is made of them: summary.json and partition.json.

`fedadmm.run.record` defines a record and checks it when it is read, `fedadmm.run.metrics` says
what is known of a metric.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

import fedadmm
from fedadmm.core import clock
from fedadmm.core.contracts import AnyAlgorithm
from fedadmm.core.problem import Problem
from fedadmm.core.validation import CLIENT_LIMIT, Natural
from fedadmm.run.evaluation import Target
from fedadmm.run.metrics import (
    Best,
    Metric as Metric,
    metric as metric,
    over_clients as over_clients,
    primary as primary,
    selection as selection,
)
from fedadmm.run.record import (
    GROUPS,
    OTHERS,
    Record,
    additional as additional,
    as_number,
    value as value,
)
from fedadmm.run.state import Ending

if TYPE_CHECKING:
    from fedadmm.run.experiment import Experiment


def rounds(records: Sequence[Record]) -> list[Record]:
    """The records without the one of an initial round, which leads to where rounds start."""
    return [record for record in records if record["round"] > 0]


def clients(record: Record) -> list[int]:
    """Who took part."""
    return record["cohort"].get("clients", [])


def sent(record: Record) -> int:
    """Bytes up and down."""
    return record["traffic"].get("bytes_up", 0) + record["traffic"].get("bytes_down", 0)


Summary = dict[str, Any]

RUNNING: Final = "running"
INTERRUPTED: Final = "interrupted"
FAILED: Final = "failed"
"""The codes of runs that are not at their end; the others are those of an `Ending`."""

SUMMARY_ENTRIES: Mapping[str, Any] = {
    **dict.fromkeys(("algorithm", "method", "label", "status", "code"), str),
    "seed": int | None,
    "final": Mapping[str, Any],
    **dict.fromkeys(("target", "best"), Mapping[str, Any] | None),
    **dict.fromkeys(("rounds", "bytes_up", "bytes_down"), Natural),
}
"""Entries of summary.json that are read, and their types; `BEST_ENTRIES` of its entry `best`."""
BEST_ENTRIES: Mapping[str, Any] = {"round": Natural, "metric": str}
PARTITION_ENTRIES: Mapping[str, Any] = {
    "clients": Annotated[int, Ge(0), Le(CLIENT_LIMIT)],
    "names": Sequence[str],
    "sizes": Sequence[Natural],
    "weights": str,
    "labels": Sequence[str | int],
    "counts": Sequence[Sequence[Natural]],
    "preparation": Mapping[str, Any] | None,
}
"""The same of partition.json."""

MOST_CLIENTS = 200
"""This many clients are listed one by one in partition.json."""


Numbers = NDArray[np.float64]
SHOWN_ROUNDS = 200
"""This many rounds fit into a picture of who took part when."""
AGREEMENT_ROUNDS = 20
"""The agreement of a client with the others is averaged over this many of its last updates."""
SHOWN_WORK, SHOWN_WORKERS = 240, 30
"""This many pieces of work, of this many clients, fit into a picture of who worked when."""


@dataclass
class Columns:
    """The records of a run, a column a number: all that tables and figures need of them.

    A record takes twenty times the memory, and a long run has many.  What fills no column is
    counted, or kept as far as a figure shows it.
    """

    records: InitVar[Iterable[Record]] = ()
    count: int = 0
    final: dict[str, Any] = field(default_factory=dict)
    """The metrics of the last round that was measured."""
    by_client: dict[str, list[float | None]] = field(default_factory=dict)
    """Each client's last value of a metric X as `X_by_client`."""
    clients: int = 0
    """How many there are, as far as the records know."""
    took_part: Counter[int] = field(default_factory=Counter)
    cohorts: dict[int, frozenset[int]] = field(default_factory=dict)
    """Who took part in the first rounds."""
    delays: Counter[int] = field(default_factory=Counter)
    pieces: list[list[float]] = field(default_factory=list)
    """The first pieces of work: client, begin, end, whether it was aggregated."""
    agreement: dict[int, deque[float]] = field(default_factory=dict)
    """Cosines of a client's last updates to the sums of the others, if a server measured them."""
    _warnings: list[str] = field(default_factory=list)
    _privacy: dict[str, Any] = field(default_factory=dict)
    _numbers: dict[tuple[str, str], array[float]] = field(default_factory=dict)

    def __post_init__(self, records: Iterable[Record]) -> None:
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Add a round."""
        groups, cohort = cast(Any, record), record["cohort"].get("clients", ())
        row = {("", "round"): float(record["round"])}
        for group in GROUPS:
            for name, found in groups.get(group, {}).items():
                if (number := as_number(found)) is not None:
                    row[group, name] = number
        for group, name in (("work", "penalty_quartiles"), ("clock", "staleness_quantiles")):
            quantiles = [one for one in groups[group].get(name, ()) if one is not None]
            if len(quantiles) == 3:
                row |= {(group, f"{name}.{place}"): one for place, one in enumerate(quantiles)}
        for key, number in row.items():
            column = self._numbers.setdefault(key, array("d"))
            if len(column) < self.count:
                column.extend([math.nan] * (self.count - len(column)))
            column.append(number)
        self.count += 1
        self.final = record["metrics"] or self.final
        self.by_client |= {name: own for name, own in groups.get("clients", {}).items() if own}
        self.clients = max(self.clients, 1 + max(cohort, default=-1))
        if record["round"] > 0:
            self.took_part.update(cohort)
            if len(self.cohorts) < SHOWN_ROUNDS:
                self.cohorts[record["round"]] = frozenset(cohort)
        self.delays.update(record["clock"].get("delays", ()))
        if len(self.pieces) < SHOWN_WORK:
            workers = {piece[0] for piece in self.pieces}
            for piece in record["clock"].get("intervals", ()):
                if piece[0] in workers or len(workers) < SHOWN_WORKERS:
                    workers.add(piece[0])
                    self.pieces.append(piece)
            del self.pieces[SHOWN_WORK:]
        for client, cosine in groups.get("network", {}).get("agreement", {}).items():
            last = self.agreement.setdefault(int(client), deque(maxlen=AGREEMENT_ROUNDS))
            last.append(cosine)
        self._warnings += groups.get("callbacks", {}).get("warnings", ())
        self._privacy = groups.get("privacy", {})

    def names(self, *groups: str) -> list[str]:
        """The numbers that some record has in one of these groups."""
        return [name for group, name in self._numbers if group in groups]

    def column(self, name: str, *groups: str) -> Numbers:
        """A number of each record, NaN where it has none, from the first group that has it.

        Without groups a metric comes before any other number of that name.
        """
        found = np.full(self.count, math.nan)
        for group in groups or ("metrics", *OTHERS):
            own = np.array(self._numbers.get((group, name), ()))
            np.copyto(found[: len(own)], own, where=np.isnan(found[: len(own)]))
        return found

    def measured(self, name: str) -> list[float]:
        """A number of those records that have it."""
        return [one for one in map(float, self.column(name)) if not math.isnan(one)]

    def total(self, group: str, *names: str, until: int | None = None) -> float:
        """The sum of some numbers, such as seconds, over the first records."""
        columns = (self.column(name, group)[:until] for name in names)
        return sum(sum(np.nan_to_num(own).tolist()) for own in columns)

    def work(self, name: str, until: int | None = None) -> float | None:
        """The `epochs`, or the `passes` over their data, of all participants; None if unknown."""
        done = self.column(name, "work") * np.nan_to_num(self.column("participants", "cohort"))
        return None if np.isnan(done[:until]).any() else sum(done[:until].tolist())

    def tally(self, target: Target | None) -> Summary:
        """Rounds, bytes, seconds and final metrics, of a run that ended or not."""
        rounds, clock = self.column("round", ""), self.column("virtual_time", *OTHERS)
        values = [] if target is None else self.column(target.metric).tolist()
        hit = next(
            (i for i, one in enumerate(values) if rounds[i] > 0 and target and target.reached(one)),
            None,
        )
        to: dict[str, Any] = dict.fromkeys(("rounds", "bytes", "uploads", "seconds", "passes"))
        if hit is not None:
            to["rounds"] = int(rounds[hit])
            to["bytes"] = int(self.total("traffic", "bytes_up", "bytes_down", until=hit + 1))
            to["uploads"] = int(self.total("traffic", "bytes_up", until=hit + 1))
            to["seconds"] = self.total("clock", "seconds", until=hit + 1)
            to["passes"] = self.work("passes", hit + 1)
        found: Summary = {
            "rounds": int((rounds > 0).sum()),
            "final": self.final,
            **{f"{what}_to_target": one for what, one in to.items()},
            "bytes_up": int(self.total("traffic", "bytes_up")),
            "bytes_down": int(self.total("traffic", "bytes_down")),
            "seconds": self.total("clock", "seconds"),
            "warnings": self._warnings,
        }
        if self.count and (end := as_number(clock[-1])) is not None and not math.isnan(end):
            there = None if hit is None else as_number(clock[hit])
            found |= {"virtual_time": end, "virtual_time_to_target": there}
        if {"epsilon", "delta"} <= self._privacy.keys():  # noise hides clients or their rows
            keys = {"hides": "clients"} | self._privacy
            found["privacy"] = {key: keys[key] for key in ("hides", "epsilon", "delta")}
        return found


def summarise(
    run: Experiment,
    records: Columns,
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
    ending = ending or Ending(RUNNING, RUNNING)
    return {
        "status": ending.sentence,
        "code": ending.code,
        "algorithm": run.name("algorithm"),
        "method": run.algorithm.title,
        "label": label or run.label,
        "seed": run.seed,
        "target": run.tree.get("target"),
        **records.tally(run.target),
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
    if data.samples.preparation is not None:
        shown["preparation"] = data.samples.preparation
    if data.samples.num_classes is None:
        return shown
    counts = data.label_counts()
    return shown | {
        "labels": list(data.samples.class_names or range(len(counts))),
        "counts": counts.T[:MOST_CLIENTS].tolist(),
        "total_counts": counts.sum(axis=1).tolist(),
    }
