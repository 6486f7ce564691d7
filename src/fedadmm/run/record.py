"""The record of a round: the one place that says what it looks like.

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
from fedadmm.run.client import Job


class CohortRecord(TypedDict):
    """Who took part."""

    participants: int
    clients: list[int]


class WorkRecord(TypedDict):
    """What the participants did, and how far they and the global model moved."""

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
    """The bytes that were sent."""

    bytes_up: int
    bytes_down: int


class Record(TypedDict):
    """One round, as JSON can hold it; an initial round with everybody has the number 0."""

    round: int
    cohort: CohortRecord
    work: WorkRecord
    traffic: TrafficRecord
    clock: dict[str, Any]
    """The seconds of training and of each of `PHASES`, and what the engine's clock says."""
    metrics: dict[str, Any]
    """What the evaluation measured."""
    callbacks: NotRequired[dict[str, Any]]
    """What callbacks found: certificates, diagnostics."""
    network: NotRequired[dict[str, Any]]
    """What happened on the network, and what the sites measured."""
    clients: NotRequired[dict[str, list[float | None]]]
    """Each client's own value of a metric X as `X_by_client`, where that is measured."""
    privacy: NotRequired[dict[str, Any]]
    """What a run with noise has spent of its privacy: epsilon, and the delta it holds for."""


class Stopwatch:
    """Where the time of a round goes: every moment counts for exactly one phase."""

    def __init__(self) -> None:
        self._phase, self._since = OTHER, time.perf_counter()
        self._seconds: dict[str, float] = {}

    def switch(self, phase: str) -> str:
        """Begin a phase; the one that was under way."""
        now, before = time.perf_counter(), self._phase
        self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        self._phase, self._since = phase, now
        return before

    @contextmanager
    def on(self, phase: str) -> Iterator[None]:
        """Count a block for a phase."""
        before = self.switch(phase)
        try:
            yield
        finally:
            self.switch(before)

    def around(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose calls count for a phase."""

        def timed(*given: Any) -> Any:
            before = self.switch(phase)
            try:
                return function(*given)
            finally:
                self.switch(before)

        return timed

    def taken(self) -> dict[str, float]:
        """The seconds of every phase since this was last asked, for a record's clock."""
        self.switch(self._phase)
        found, self._seconds = self._seconds, {}
        return {f"{phase}_seconds": seconds for phase, seconds in found.items()}


OTHER = "other"
PHASES = (
    *("sampling", "broadcast", "local", "state", "aggregation"),
    *("evaluation", "callbacks", "checkpoint", OTHER),
)
"""What a round's time is spent on.  State is reading and writing the clients' records; fold is the
sum of the replies and the server's step; callbacks and checkpoint are those of the round before."""


def profile(history: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The seconds of each phase over these rounds."""
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
"""The entries that are lists, and what they hold."""
_QUARTILES = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)


def cohort_record(infos: Sequence[ClientInfo]) -> CohortRecord:
    """Who took part."""
    return {"participants": len(infos), "clients": [info.client for info in infos]}


def work_record(infos: Sequence[ClientInfo], job: Job, weight: float, move: float) -> WorkRecord:
    """What participants of this total weight did, while the global model moved so far."""
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
    return besides(record, name)


def besides(record: Mapping[str, Any], name: str) -> float | None:
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
