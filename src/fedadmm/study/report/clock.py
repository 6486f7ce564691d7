"""What the figures show of a virtual clock: delays, idle time, and who worked when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fedadmm.run.record import Record
from fedadmm.study import records
from fedadmm.study.report.figures import (
    Axis,
    Bars,
    Line,
    Lines,
    Panel,
    Strip,
    Value,
    besides,
    lines,
    short,
)
from fedadmm.study.results import Outcome
from fedadmm.study.rundir import RecordedRun

STRIP_BARS = 240
"""This many pieces of work fit into a strip that can still be read."""
STRIP_CLIENTS = 30
MOST_STRIPS = 4


def clock_panels(content: Outcome, rounds: list[Axis]) -> Iterator[Panel]:
    """Every figure of runs that have a virtual clock."""
    stale = _staleness(content, rounds)
    if stale:
        note = "Server steps between a broadcast and its reply: the median so far, the band up to "
        yield Lines("staleness", "Staleness", f"{note}the largest.", stale, zero=True)
    counts, delays = _delay_counts(content)
    if counts:
        note = "How many replies came with each delay, in server steps."
        yield Bars("delays", "Delays", note, "replies", counts, delays, "delay")
    notes = {
        "idle": ("Idle time", "The share of the clients' time so far without work."),
        "steps_per_second": ("Server steps", "Server steps a virtual second, so far."),
    }
    for name, (title, note) in notes.items():
        curves = [line for line in lines(content, rounds, besides(name)) if not line.ended]
        if curves:
            yield Lines(name, title, note, curves, share=name == "idle", zero=True)
    yield from _strips(content)


def _staleness(content: Outcome, rounds: list[Axis]) -> list[Line]:
    """The median delay so far, with a band up to the largest."""

    def quantile(index: int) -> Value:
        def value(record: Record) -> float | None:
            values = records.staleness_quantiles(record)
            return values[index] if values is not None else None

        return value

    middle, high = (lines(content, rounds, quantile(index)) for index in (0, 2))
    return [
        line._replace(low=line.y, high=above.y)
        for line, above in zip(middle, high, strict=True)
        if not line.ended
    ]


def _delay_counts(content: Outcome) -> tuple[list[float], list[str]]:
    """How many replies came with each delay, over all runs, and the delays."""
    counts = Counter(
        delay for run in content.runs for record in run.records for delay in records.delays(record)
    )
    if not counts:
        return [], []
    delays = range(max(counts) + 1)
    return [float(counts[delay]) for delay in delays], [str(delay) for delay in delays]


def _strips(content: Outcome) -> Iterator[Strip]:
    """The first pieces of work of each label's first run."""
    for label, runs in list(content.labels.items())[:MOST_STRIPS]:
        bars = _bars(runs[0])
        if not bars:
            continue
        clients = sorted({int(bar[0]) for bar in bars})
        note = "Who worked when, at the beginning; pale work was lost, late or too stale."
        name = "strip" if len(content.labels) == 1 else f"strip-{label}"
        own = f": {content.names[label]}" if len(content.labels) > 1 else ""
        title = f"Who worked when{own}"
        yield Strip(name, title, note, label, clients, bars)


def _bars(run: RecordedRun) -> list[list[float]]:
    chosen: set[float] = set()
    bars: list[list[float]] = []
    for record in run.records:
        for client, begin, end, folded in records.intervals(record):
            if client not in chosen and len(chosen) == STRIP_CLIENTS:
                continue
            chosen.add(client)
            bars.append([client, short(begin), short(end), folded])
            if len(bars) == STRIP_BARS:
                return bars
    return bars
