"""The record of a round: its structure, computation and validation.

    {"round": 3, "cohort": …, "work": …, "traffic": …, "clock": …, "metrics": {…}}

and, where there are any, "callbacks", "network", "clients" and "privacy".  A metric is what
is in "metrics", whatever it is called; elsewhere its name may mean something else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NotRequired, TypedDict

import torch

from fedadmm.core.messages import ClientInfo
from fedadmm.core.validation import CLIENT_LIMIT, violation
from fedadmm.run.client import Job


class CohortRecord(TypedDict):
    """The participants of a round."""

    participants: int
    clients: list[int]


class WorkRecord(TypedDict):
    """Local work of the participants, and the changes of their models and of the global model."""

    primal_residual: float
    dual_residual: float
    epochs: float
    passes: float
    steps: int
    penalty_mean: float
    penalty_min: float
    penalty_max: float
    penalty_quartiles: list[float]


class TrafficRecord(TypedDict):
    """Numbers of bytes sent."""

    bytes_up: int
    bytes_down: int


class Record(TypedDict):
    """Record of one round as JSON values; an initial round with all clients has the number 0."""

    round: int
    cohort: CohortRecord
    work: WorkRecord
    traffic: TrafficRecord
    clock: dict[str, Any]
    """Seconds of training and of each of `PHASES`, and the clock of the engine."""
    metrics: dict[str, Any]
    """Results of the evaluation."""
    callbacks: NotRequired[dict[str, Any]]
    """Entries of callbacks, such as certificates and diagnostics."""
    network: NotRequired[dict[str, Any]]
    """Events on the network, and measurements of the sites."""
    clients: NotRequired[dict[str, list[float | None]]]
    """The values of a metric X of all clients as `X_by_client`, if they are measured."""
    privacy: NotRequired[dict[str, Any]]
    """Consumed epsilon, and the delta it refers to."""


class Stopwatch:
    """Measures the time of the phases of a round; every moment belongs to exactly one phase."""

    def __init__(self) -> None:
        self._phase, self._since = OTHER, time.perf_counter()
        self._seconds: dict[str, float] = {}

    def switch(self, phase: str) -> str:
        """Begin a phase, and return the previous one."""
        now, before = time.perf_counter(), self._phase
        self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        self._phase, self._since = phase, now
        return before

    @contextmanager
    def on(self, phase: str) -> Iterator[None]:
        """Add the time of a block to a phase."""
        before = self.switch(phase)
        try:
            yield
        finally:
            self.switch(before)

    def around(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with the time of its calls added to a phase."""

        def timed(*given: Any) -> Any:
            before = self.switch(phase)
            try:
                return function(*given)
            finally:
                self.switch(before)

        return timed

    def taken(self) -> dict[str, float]:
        """Return the seconds of every phase since the last call, for a record's clock."""
        self.switch(self._phase)
        found, self._seconds = self._seconds, {}
        return {f"{phase}_seconds": seconds for phase, seconds in found.items()}


OTHER = "other"
PHASES = (
    *("sampling", "broadcast", "local", "state", "aggregation"),
    *("evaluation", "callbacks", "checkpoint", OTHER),
)
"""Phases of a round.  "state" is reading and writing the clients' records; "aggregation" is the sum
of the updates and the server step; "callbacks" and "checkpoint" are those of the round before."""


def profile(history: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the total seconds of each phase over these rounds."""
    rows = [record["clock"] for record in history]
    totals = {phase: sum(row.get(f"{phase}_seconds", 0.0) for row in rows) for phase in PHASES}
    return {phase: seconds for phase, seconds in totals.items() if seconds}


GROUPS = (
    *("cohort", "work", "traffic", "clock", "metrics"),
    *("callbacks", "network", "clients", "privacy"),
)
_ALWAYS = GROUPS[:5]
OTHERS = [group for group in GROUPS if group != "metrics"]
_LARGEST = 2**63 - 1
_LISTS: tuple[tuple[str, str, Any, str], ...] = (
    ("cohort", "clients", int, "whole numbers"),
    ("work", "penalty_quartiles", float | int | None, "numbers"),
    ("clock", "staleness_quantiles", float | int | None, "numbers"),
    ("clock", "delays", int, "whole numbers"),
    ("clock", "intervals", list, "lists"),
    ("callbacks", "warnings", str, "texts"),
)
"""Entries that are lists, and their items."""
_QUARTILES = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)


def cohort_record(infos: Sequence[ClientInfo]) -> CohortRecord:
    """Return the record of the participants."""
    return {"participants": len(infos), "clients": [info.client for info in infos]}


def work_record(infos: Sequence[ClientInfo], job: Job, weight: float, move: float) -> WorkRecord:
    """Return the record of the participants' work.

    Args:
        infos: statistics of the participants.
        job: the components that concern the clients.
        weight: sum of the participants' weights.
        move: change of the global model in this round.
    """
    penalties = torch.tensor([info.weight for info in infos] or [0.0], dtype=torch.float64)
    mean, low, high = float(penalties.mean()), float(penalties.min()), float(penalties.max())
    quartiles = [low] * 3 if low == high else penalties.quantile(_QUARTILES).tolist()
    shares = [job.problem.weight(info.client) for info in infos]
    drift = sum(a * info.drift**2 for a, info in zip(shares, infos, strict=True))
    return {
        "primal_residual": math.sqrt(drift / weight) if weight else 0.0,
        "dual_residual": mean * move,
        "epochs": sum(info.solve.epochs for info in infos) / max(len(infos), 1),
        "passes": sum(info.solve.passes for info in infos) / max(len(infos), 1),
        "steps": sum(info.solve.steps for info in infos),
        "penalty_mean": mean,
        "penalty_min": low,
        "penalty_max": high,
        "penalty_quartiles": quartiles,
    }


def read(found: Mapping[str, Any]) -> Record | str:
    """The record that a line holds, or what is wrong with it."""
    number = found.get("round")
    if not isinstance(number, int) or not 0 <= number <= _LARGEST:
        return "does not say which round it is about"
    strange = [key for key in found if key != "round" and key not in GROUPS]
    if strange or not all(isinstance(found[key], dict) for key in found if key != "round"):
        return (
            "is of another version of fedadmm, or damaged: a record has "
            f"{', '.join(GROUPS)}; read it with the version that wrote it, or run it again"
        )
    for name, sent in found.get("traffic", {}).items():
        if type(sent) is not int or not 0 <= sent <= _LARGEST:
            return f"says that traffic.{name} is {str(sent)[:40]}, but it must be 0 … {_LARGEST}"
    for group, name, kind, what in _LISTS:
        held = found.get(group, {}).get(name, [])
        if not isinstance(held, list) or not all(isinstance(one, kind) for one in held):
            return f"says that {group}.{name} is {str(held)[:40]}, but it must list {what}"
        if kind is int and not all(0 <= one < CLIENT_LIMIT for one in held):
            return f"{group}.{name}: got {str(held)[:40]}, expected numbers below {CLIENT_LIMIT}."
    agreement = found.get("network", {}).get("agreement", {})
    wrong = violation(agreement, Mapping[str, float])
    if wrong or not all(key.isdecimal() and len(key) < 8 for key in agreement):
        return f"network.agreement: got {str(agreement)[:40]}, expected a number per client."
    for group, name in (("clock", "seconds"), ("cohort", "participants")):
        given = found.get(group, {}).get(name)
        if given is not None and as_number(given) is None:
            return f"says that {group}.{name} is {str(given)[:40]}, but it must be a number"
    record: Any = {key: {} for key in ("round", *_ALWAYS)} | dict(found)
    whole: Record = record
    return whole


def as_number(found: Any) -> float | None:
    """A number as a float; None for anything else, and for what a float cannot hold."""
    if type(found) is float:
        return found
    if isinstance(found, bool) or not hasattr(found, "__float__"):
        return None
    try:
        return float(found)
    except (OverflowError, RuntimeError, TypeError, ValueError):  # a long integer, or an array
        return None


def value(record: Record, name: str) -> float | None:
    """One number by its name, a metric's before any other; None when it was not measured."""
    if name in record["metrics"]:
        return as_number(record["metrics"][name])
    return additional(record, name)


def additional(record: Mapping[str, Any], name: str) -> float | None:
    """One number by its name that is no metric; None when there is none."""
    found = (record.get(group, {}) for group in OTHERS)
    return next((as_number(entries[name]) for entries in found if name in entries), None)


def flat(record: Record, taken: Collection[str] = ()) -> dict[str, Any]:
    """A record as one row, by the names inside its groups.

    A metric whose name means something else in the row, or is taken, has `metrics.` in front.
    """
    row: dict[str, Any] = {"round": record["round"]}
    entries: Mapping[str, Any] = record
    for group in OTHERS:
        row |= entries.get(group, {})
    return row | {
        f"metrics.{name}" if name in row or name in taken else name: found
        for name, found in record["metrics"].items()
    }


def numbers(record: Record) -> dict[str, float]:
    """Every plain number of the row but the round's own."""
    row = {key: as_number(found) for key, found in flat(record).items() if key != "round"}
    return {key: one for key, one in row.items() if one is not None}
