"""The kinds of figures: data series that the page and `drawing` draw alike; curves; colours.

One colour, one dash pattern and one marker per method, the same in every figure of a report.  The
first hues are those of Okabe and Ito and of Tol, which stay apart for colour-blind readers; methods
that come near each other under a colour vision deficiency differ in their dashes too, and no two
methods of a report share a marker.  Each colour has a shade for a light page and one for a dark
page, both with a contrast of at least 3:1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedadmm.run.record import OTHERS
from fedadmm.study.run_dir import RecordedRun
from fedadmm.study.run_history import Columns, Numbers
from fedadmm.study.study_result import StudyResult

PANEL_POINTS = 2600
"""The points that the curves of a panel share: longer ones are thinned, so that a page stays small
however much is compared.  A curve's extremes are drawn besides."""
MOST_POINTS = 400
"""The longest curve, which a panel with few curves allows; more than a screen resolves."""

Value = Callable[[Columns], Numbers]
"""What is drawn: a number for every record, NaN where there is none."""


class Axis(NamedTuple):
    """What a curve can be drawn against."""

    name: str
    title: str
    divisor: float = 1.0


class Line(NamedTuple):
    """A curve; `low` and `high` are empty when there is no spread."""

    label: str
    x: dict[str, list[float]]
    y: list[float]
    low: list[float]
    high: list[float]
    ended: bool = False
    """A seed that diverged: it is drawn alone, outside the mean."""
    part: str = ""
    """What the curve is, when a panel shows several quantities."""
    behind: bool = False
    """Whether it is drawn pale behind the others, to compare them with."""


def axes(runs: Sequence[RecordedRun]) -> list[Axis]:
    """Rounds, bytes, time, and the simulated time of asynchronous runs."""
    most_bytes = max((run.tally["bytes_up"] + run.tally["bytes_down"] for run in runs), default=0)
    found = [Axis("rounds", "rounds")]
    if most_bytes:
        unit, divisor = _unit(most_bytes, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)))
        found.append(Axis("bytes", f"communication, up and down ({unit})", divisor))
    seconds = max((run.tally["seconds"] for run in runs), default=0.0)
    if seconds:
        unit, divisor = _unit(seconds, (("h", 3600.0), ("min", 60.0), ("s", 1.0)))
        found.append(Axis("time", f"training time without evaluation ({unit})", divisor))
    if any("virtual_time" in run.tally for run in runs):
        found.append(Axis("virtual", "simulated time"))
    return found


def _unit(largest: float, units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    return next((unit for unit in units if largest >= 2 * unit[1]), units[-1])


def lines(content: StudyResult, known: list[Axis], value: Value, part: str = "") -> list[Line]:
    """The curves of a quantity: each label's mean over healthy seeds, and each diverged seed."""
    result: list[Line] = []
    points = max(10, min(MOST_POINTS, PANEL_POINTS // len(content.labels)))
    for label, runs in content.labels.items():
        healthy = [run for run in runs if not run.diverged]
        groups = [(healthy, False), *(([run], True) for run in runs if run.diverged)]
        for group, ended in groups:
            line = _mean(label, known, group, value, points)
            if line is not None:
                result.append(line._replace(ended=ended, part=part))
    return result


def besides(name: str) -> Value:
    """The value of a number that is no metric."""
    return lambda columns: columns.column(name, *OTHERS)


def _mean(
    label: str, known: list[Axis], runs: Sequence[RecordedRun], value: Value, most: int
) -> Line | None:
    """Mean, lowest and highest over the runs that measured a round; None if none did."""
    tracks = []
    for run in runs:
        rows = [value(run.columns), *(run.spent[axis.name] / axis.divisor for axis in known)]
        kept = np.isfinite(rows[0]) & (run.spent["rounds"] > 0)
        if kept.any():
            tracks.append((run.spent["rounds"][kept], np.array(rows)[:, kept]))
    if not tracks:
        return None
    rounds = np.unique(np.concatenate([own for own, _ in tracks]))
    found = np.full((len(tracks), 1 + len(known), len(rounds)), np.nan)
    for place, (own, table) in enumerate(tracks):
        found[place][:, np.searchsorted(rounds, own)] = table
    y, *x = np.nanmean(found, axis=0)
    low, high = np.nanmin(found[:, 0], axis=0), np.nanmax(found[:, 0], axis=0)
    shown = np.arange(len(rounds))
    if len(rounds) > most:  # evenly, with the first and the last, and the extremes
        shown = np.rint(np.arange(most) * (len(rounds) - 1) / (most - 1)).astype(int)
        ends = [place(one) for one in (y, low, high) for place in (np.argmin, np.argmax)]
        shown = np.union1d(shown, ends)

    def drawn(values: Numbers) -> list[float]:
        return [short(one) for one in values[shown]]

    return Line(
        label=label,
        x={axis.name: drawn(values) for axis, values in zip(known, x, strict=True)},
        y=drawn(y),
        low=drawn(low) if len(tracks) > 1 else [],
        high=drawn(high) if len(tracks) > 1 else [],
    )


def short(value: float) -> float:
    """Five significant digits: more than a screen shows, and half the bytes."""
    return float(f"{value:.5g}")


class Lines(NamedTuple):
    """Curves over rounds, or over another axis."""

    name: str
    title: str
    note: str
    lines: list[Line]
    log: bool = False
    share: bool = False
    """Values between 0 and 1 that read better as percentages."""
    zero: bool = False
    """Whether the axis begins at zero."""
    span: list[float] | None = None
    """The ends of an axis that several small figures share."""
    kind: str = "lines"


class Bars(NamedTuple):
    """One bar a client."""

    name: str
    title: str
    note: str
    unit: str
    values: list[float]
    names: list[str]
    """What the clients are called; numbers when it is empty."""
    column: str = "client"
    """What a bar means."""
    kind: str = "bars"


class Heat(NamedTuple):
    """One cell for each row (a label, a method, a client) and column (a client, a round)."""

    name: str
    title: str
    note: str
    row_title: str
    unit: str
    """Of the values; empty where they only say whether."""
    rows: list[str]
    values: Sequence[Sequence[float | None]]
    names: list[str]
    """What the columns are called; numbers when it is empty."""
    column: str = "client"
    """What a column means."""
    kind: str = "heat"


class Strip(NamedTuple):
    """One row a client, one bar a piece of work: [client, begin, end, folded]."""

    name: str
    title: str
    note: str
    label: str
    clients: list[int]
    bars: list[list[float]]
    kind: str = "strip"


Panel = Lines | Bars | Heat | Strip


class Section(NamedTuple):
    """Some panels under one heading; `axes` are those the reader may choose from."""

    name: str
    title: str
    note: str
    axes: list[Axis]
    panels: list[Panel]
    constants: list[str]
    """What never changed, in sentences instead of flat lines."""
    columns: int = 0
    """How many small figures are side by side; 0 for figures of the usual size."""


class Style(NamedTuple):
    """How a method is drawn."""

    light: str
    dark: str
    dash: str
    marker: str = "circle"
    """Another one for every label of a report; open when it ends in "-open"."""
    name: str = ""
    """What the label is called in legends."""


SOLID, DASH, DOT, DASHDOT, LONG = "solid", "dash", "dot", "dashdot", "longdash"

STYLES = {
    "fedsgd": Style("#7a7f87", "#9aa0a8", DOT),
    "fedavg": Style("#2b2f36", "#e9ecf1", SOLID),
    "fedprox": Style("#857a1f", "#d8cc6a", DASH),
    "scaffold": Style("#b04a85", "#e39ac4", SOLID),
    "feddyn": Style("#882255", "#d4719f", DASHDOT),
    "fedpd": Style("#6a4fb3", "#b3a0ee", DASH),
    "fedadmm": Style("#0072b2", "#4db1ec", SOLID),
    "aligned-admm": Style("#907833", "#c6ac60", SOLID),
    "fedadmm-in": Style("#2a8fc4", "#8ccbf2", DOT),
    "fedadmm-insa": Style("#00856a", "#35c9a3", SOLID),
    "feddr": Style("#d55e00", "#ff8a3d", SOLID),
    "feddr-ii": Style("#b37a00", "#f2b632", DASHDOT),
    "fedsplit": Style("#b5485a", "#f08c9c", LONG),
    "async-feddr": Style("#8c510a", "#d9a066", DOT),
    "fedavgm": Style("#149f16", "#64eb66", DOT),
    "fedadagrad": Style("#cc07cd", "#f73bf8", DASH),
    "fedadam": Style("#2b4d21", "#c2e1b8", DASH),
    "fedyogi": Style("#072d70", "#6196f5", DOT),
    "adabest": Style("#3a0b73", "#9449ed", SOLID),
    "fedcm": Style("#431940", "#ca72c3", DASH),
    "fedexp": Style("#a8323e", "#ff9d8a", DASH),
    "fedgloss": Style("#006d77", "#83e3e0", DASH),
    "pfedme": Style("#218e8b", "#bbeeed", DASHDOT),
    "fednova": Style("#4e4588", "#b6b0d7", DASHDOT),
    "scaffnew": Style("#08652b", "#a4f8c4", SOLID),
    "fedmid": Style("#5b3a33", "#ba8e85", DOT),
    "feddualavg": Style("#7b0ba5", "#e2a5f9", LONG),
    "fedasync": Style("#4f5915", "#dce89b", DASHDOT),
    "fedbuff": Style("#c0105a", "#f0488f", DASH),
}
"""The methods that come with the package."""

SPARE = (
    Style("#521ebd", "#9870e8", DASHDOT),
    Style("#56080c", "#ee5c63", LONG),
    Style("#2f7f86", "#74c7cf", LONG),
    Style("#8e1f8b", "#da5ad6", LONG),
    Style("#866a45", "#c7b093", DASHDOT),
    Style("#4f7a28", "#a3d06f", LONG),
    Style("#3d511e", "#bcda90", DOT),
)
"""Methods that this file does not know take these in turn, and so does the second label of a
method that it knows; the first ones are far from the usual baselines."""

DASHES = (SOLID, DASH, DOT, DASHDOT, LONG)
SHAPES = (
    *("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "star"),
    *("triangle-left", "triangle-right", "pentagon"),
)
MARKERS = (*SHAPES, *(f"{shape}-open" for shape in SHAPES))


def styles(algorithms: dict[str, str]) -> dict[str, Style]:
    """The style of each label, from {label: algorithm}.

    The first label of a method that comes with the package has the method's own colour.  Every
    other one has a spare colour of its own, and once these are used up other dashes.  Markers go by
    the order of the labels.
    """
    result: dict[str, Style] = {}
    seen: set[str] = set()
    turn = 0
    for place, (label, algorithm) in enumerate(algorithms.items()):
        own = STYLES.get(algorithm) if algorithm not in seen else None
        seen.add(algorithm)
        if own is None:
            own, again = SPARE[turn % len(SPARE)], turn // len(SPARE)
            own = own._replace(dash=DASHES[(DASHES.index(own.dash) + again) % len(DASHES)])
            turn += 1
        result[label] = own._replace(marker=MARKERS[place % len(MARKERS)])
    return result


def styles_of(content: StudyResult) -> dict[str, Style]:
    """The style of each label of a report, with what the label is called."""
    chosen = styles({label: runs[0].algorithm for label, runs in content.labels.items()})
    return {label: style._replace(name=content.names[label]) for label, style in chosen.items()}
