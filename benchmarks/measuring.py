"""Side by side with peers on one machine: ratios, not seconds.

Every contender runs in a process of its own.  Contenders take turns, repeat after repeat, so that
a busy moment of the machine meets all of them; a warm-up round is never counted.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from benchmarks import contenders
from benchmarks.contenders import Outcome
from benchmarks.workloads import GROWTH, PEERS, WORKLOADS, Workload, find, write_rows
from fedadmm.core.errors import EngineError
from fedadmm.core.validation import Count, check
from fedadmm.study.formatting import OnProgress, ignore_progress

__all__ = ["PEERS", "REPEATS", "WORKLOADS", "run", "table"]

REPEATS = 3


def run(
    workload: str,
    peers: bool | Sequence[str] = True,
    repeats: int = REPEATS,
    on_progress: OnProgress = ignore_progress,
) -> dict[str, Any]:
    """Time a workload, beside its peers if wanted, and return one plain document.

    Args:
        workload: a name from `WORKLOADS`.
        peers: all peers of the workload (True), none (False), or those named.
        repeats: how often every contender runs.
        on_progress: called with a sentence about what is going on, and how far it is.
    """
    chosen = find(workload)
    check("benchmarks", "repeats", repeats, Count)
    wanted = _wanted(chosen, peers)
    with tempfile.TemporaryDirectory(prefix="fedadmm-bench-") as name:
        folder = Path(name)
        source = write_rows(chosen, folder)
        if chosen.name == "growth":
            return _growth(chosen, folder, repeats, on_progress)
        outcomes, skipped = _compare(chosen, folder, wanted, repeats, on_progress)
    return _document(chosen, outcomes, skipped, source)


def _wanted(workload: Workload, peers: bool | Sequence[str]) -> list[str]:
    if isinstance(peers, bool):
        return list(workload.peers) if peers else []
    for peer in peers:
        check("benchmarks", "peers", peer, Literal[PEERS])
    return [peer for peer in workload.peers if peer in peers]


def _compare(
    workload: Workload, folder: Path, peers: list[str], repeats: int, on_progress: OnProgress
) -> tuple[dict[str, list[Outcome]], dict[str, str]]:
    """Every contender's repeats, in turns; and why some peers are missing."""
    skipped = {}
    for peer in peers:
        reason = contenders.absence(peer)
        if reason is not None:
            skipped[peer] = reason
            on_progress(f"{peer} is skipped: {reason}", 0, 1)
    names = ["fedadmm", *(peer for peer in peers if peer not in skipped)]
    outcomes: dict[str, list[Outcome]] = {name: [] for name in names}
    for repeat in range(repeats):
        going = [name for name in names if name not in skipped]
        for place, name in enumerate(going):
            what = f"{workload.name}: repeat {repeat + 1} of {repeats}, {name}"
            on_progress(what, repeat * len(going) + place, repeats * len(going))
            try:
                outcomes[name].append(_run_twice(name, workload, folder))
            except EngineError as error:
                if name == "fedadmm":
                    raise
                lines = str(error).splitlines()
                skipped[name] = "\n".join(line for line in lines if "/" not in line)  # no paths
                outcomes.pop(name)
                on_progress(f"{name} is skipped: {error}", repeat, repeats)
    return outcomes, skipped


def _run_twice(name: str, workload: Workload, folder: Path) -> Outcome:
    """A repeat; a peer that crashes is tried once more."""
    try:
        return contenders.run(name, workload, folder)
    except EngineError:
        if name == "fedadmm":
            raise
        return contenders.run(name, workload, folder)


def _middle(repeats: list[Outcome]) -> float:
    """The median over repeats of the median round."""
    return statistics.median(statistics.median(repeat.seconds) for repeat in repeats)


def _spread(repeats: list[Outcome]) -> list[float]:
    medians = [statistics.median(repeat.seconds) for repeat in repeats]
    return [min(medians), max(medians)]


def _document(
    workload: Workload, outcomes: dict[str, list[Outcome]], skipped: dict[str, str], source: str
) -> dict[str, Any]:
    seconds = {name: _middle(repeats) for name, repeats in outcomes.items()}
    own = [outcome.report for outcome in outcomes["fedadmm"]]
    return {
        "workload": workload.name,
        "seconds_per_round": seconds,
        "ratios": {
            name: value / seconds["fedadmm"] for name, value in seconds.items() if name != "fedadmm"
        },
        "peak_rss_mb": max(report["peak_rss_mb"] for report in own),
        "spread": {name: _spread(repeats) for name, repeats in outcomes.items()},
        "startup_seconds": statistics.median(report["startup_seconds"] for report in own),
        "engine": own[-1]["engine"],
        "clients_touched": own[-1]["clients_touched"],
        "rows": source,
        "repeats": len(own),
        "skipped": skipped,
    }


def _growth(
    workload: Workload, folder: Path, repeats: int, on_progress: OnProgress
) -> dict[str, Any]:
    """The same cohort out of more and more clients; the ratio is the largest over the smallest."""
    outcomes: dict[str, list[Outcome]] = {str(count): [] for count in GROWTH}
    for repeat in range(repeats):
        for place, count in enumerate(GROWTH):
            what = f"growth: repeat {repeat + 1} of {repeats}, {count} clients"
            on_progress(what, repeat * len(GROWTH) + place, repeats * len(GROWTH))
            sized = replace(workload, clients=count)
            outcomes[str(count)].append(contenders.run("fedadmm", sized, folder))
    seconds = {name: _middle(repeats_) for name, repeats_ in outcomes.items()}
    small, large = (str(count) for count in (GROWTH[0], GROWTH[-1]))
    memory = {
        name: max(outcome.report["peak_rss_mb"] for outcome in repeats_)
        for name, repeats_ in outcomes.items()
    }
    return {
        "workload": workload.name,
        "seconds_per_round": {"fedadmm": seconds[large]},
        "ratios": {large: seconds[large] / seconds[small]},
        "peak_rss_mb": memory[large],
        "by_clients": {
            name: {"seconds_per_round": seconds[name], "peak_rss_mb": memory[name]}
            for name in outcomes
        },
        "spread": {name: _spread(repeats_) for name, repeats_ in outcomes.items()},
        "repeats": repeats,
        "skipped": {},
    }


def table(documents: Sequence[dict[str, Any]]) -> str:
    """The documents as one Markdown table: seconds a round, and how many times ours.

    Growth's ratio compares the numbers of clients.
    """
    lines = [
        "| workload | contender | seconds a round (spread) | ratio |",
        "|---|---|---|---|",
    ]
    for document in documents:
        for name, value in _rows(document).items():
            low, high = document["spread"][name]
            ratio = document["ratios"].get(name)
            shown = "" if ratio is None else f"{ratio:.2f}"
            row = f"{value:.3g} ({low:.3g}–{high:.3g}) | {shown}"
            lines.append(f"| {document['workload']} | {name} | {row} |")
        for name, reason in document["skipped"].items():
            lines.append(f"| {document['workload']} | {name} | skipped: {_line(reason)} | |")
    return "\n".join(lines)


def _rows(document: dict[str, Any]) -> dict[str, float]:
    """Seconds a round by contender, or by the number of clients."""
    if "by_clients" in document:
        return {name: row["seconds_per_round"] for name, row in document["by_clients"].items()}
    seconds: dict[str, float] = document["seconds_per_round"]
    return seconds


def _line(text: str) -> str:
    return text.strip().splitlines()[0]
