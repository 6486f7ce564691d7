"""A deployment seen from outside: what runs, how far it is, how each site does, how to end it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from fedadmm.flower.local.processes import end_group, recorded
from fedadmm.flower.local.run import FOLDER
from fedadmm.flower.server.rundir import read_events
from fedadmm.flower.server.state import read_known
from fedadmm.run.record import Record
from fedadmm.study.records import clients, rounds
from fedadmm.study.rundir import CHECKPOINT, RunDir


def look(folder: Path) -> dict[str, Any]:
    """The state of a run and its sites; for one on this machine also its processes."""
    elsewhere = (folder / CHECKPOINT).is_dir() and not (folder / FOLDER).is_dir()
    groups = [] if elsewhere else recorded(folder / FOLDER)
    read = RunDir(folder)
    records, finished = read.records(), read.finished()
    under_way = elsewhere or any(alive for _, alive in groups)
    unfinished = "under way" if under_way else "interrupted; resume it"
    return {
        "processes": [{"name": one.name, "running": alive} for one, alive in groups],
        "rounds": len(rounds(records)),
        "last": records[-1] if records else None,
        "status": finished["status"] if finished is not None else unfinished,
        "sites": _sites(folder, records),
    }


def _sites(folder: Path, records: list[Record]) -> list[dict[str, Any]]:
    """For each client: its node and version, when it last took part, what was refused."""
    known, events = read_known(folder / CHECKPOINT), read_events(folder)
    heard = {client: record for record in records for client in clients(record)}
    seen = heard.keys() | known.entries.keys() | known.nodes.keys()
    sites = []
    for client in sorted(seen | {event["client"] for event in events}):
        own = [event for event in events if event["client"] == client]
        entry, last = known.entries.get(client), heard.get(client)
        sites.append(
            {
                "client": client,
                "node": known.nodes.get(client),
                "version": entry.version if entry is not None else 0,
                "lost": entry is not None and entry.lost,
                "last_round": last["round"] if last is not None else None,
                "last_heard": last["clock"].get("at") if last is not None else None,
                "refused": dict(Counter(event["word"] for event in own)),
                "last_refusal": f"{own[-1]['word']}: {own[-1]['detail']}" if own else None,
            }
        )
    return sites


def take_down(folder: Path) -> list[str]:
    """End every process group of a local deployment that still runs; their names."""
    ended = []
    for one, alive in recorded(folder / FOLDER):
        if alive:
            end_group(one.group)
            ended.append(one.name)
    return ended
