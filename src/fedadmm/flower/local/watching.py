"""A deployment seen from outside: what runs, how far it is, and how to end it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedadmm.experiments import directory as files
from fedadmm.flower.local.processes import end_group, recorded
from fedadmm.flower.local.run import FOLDER


def look(folder: Path) -> dict[str, Any]:
    """The processes of a local deployment and the state of its run."""
    groups = recorded(folder / FOLDER)
    records = files.read_metrics(folder)
    summary = folder / files.SUMMARY
    under_way = any(alive for _, alive in groups)
    unfinished = "under way" if under_way else "interrupted; resume it"
    return {
        "processes": [{"name": one.name, "running": alive} for one, alive in groups],
        "rounds": len(records),
        "last": records[-1] if records else None,
        "status": files.read_json(summary)["status"] if summary.is_file() else unfinished,
    }


def take_down(folder: Path) -> list[str]:
    """End every process group of a local deployment that still runs; their names."""
    ended = []
    for one, alive in recorded(folder / FOLDER):
        if alive:
            end_group(one.group)
            ended.append(one.name)
    return ended
