"""Records of rounds: made by hand, and compared without what a real clock said."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedadmm.run.record import CohortRecord, TrafficRecord, WorkRecord

_GROUPS = {"cohort": CohortRecord, "work": WorkRecord, "traffic": TrafficRecord}


def made(number: int, **entries: Any) -> dict[str, Any]:
    """A record with these entries in their groups; what no group knows is a metric."""
    record: dict[str, Any] = {"round": number} | {group: {} for group in (*_GROUPS, "clock")}
    record["metrics"] = {}
    for name, value in entries.items():
        found = [group for group, kind in _GROUPS.items() if name in kind.__annotations__]
        group = "clock" if name == "seconds" else [*found, "metrics"][0]
        record[group][name] = value
    return record


def untimed(history: Iterable[Any]) -> list[dict[str, Any]]:
    """Records without what a real clock said."""
    return [
        {**record, "clock": {k: v for k, v in record["clock"].items() if "seconds" not in k}}
        for record in history
    ]
