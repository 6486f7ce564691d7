"""Data types of figures, shared by the HTML page and `drawing`; curves over seeds; line styles.

Each method has one colour, dash pattern and marker in all figures of a report.  The first hues are
those of Okabe and Ito and of Tol, which colour-blind readers can distinguish; methods with similar
colours under a colour vision deficiency also differ in their dashes, and no two methods of a report
share a marker.  Each colour has a shade for a light and one for a dark page, both with a contrast
of at least 3:1.
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
"""Largest total number of points of all curves in a panel.  Longer curves are subsampled, which
limits the size of the page; the extremes of each curve are always kept."""
MOST_POINTS = 400
"""Largest number of points of one curve, above the resolution of a screen."""

Value = Callable[[Columns], Numbers]
"""Function from a run's columns to the drawn quantity: one number per record, NaN if missing."""


class Axis(NamedTuple):
    """A quantity on the horizontal axis."""

    name: str
    title: str
    divisor: float = 1.0


class Line(NamedTuple):
    """A curve; `low` and `high` are empty if there is only one seed."""

    label: str
    x: dict[str, list[float]]
    y: list[float]
    low: list[float]
    high: list[float]
    ended: bool = False
    """Whether this is a diverged seed, drawn separately and excluded from the mean."""
    part: str = ""
    """The name of the quantity, if a panel shows several."""
    behind: bool = False
    """Whether the curve is a pale reference behind the others."""


def axes(runs: Sequence[RecordedRun]) -> list[Axis]:
    """Return the horizontal axes: rounds, bytes, time, and simulated time if recorded."""
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
    """Return the curves of a quantity: each label's mean over its seeds, and each diverged seed."""
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


def additional(name: str) -> Value:
    """Return the function that reads a recorded quantity other than a metric."""
    return lambda columns: columns.column(name, *OTHERS)


def _mean(
    label: str, known: list[Axis], runs: Sequence[RecordedRun], value: Value, most: int
) -> Line | None:
    """Return the mean with minimum and maximum over the runs that measured each round.

    Args:
        label: The label of the runs.
        known: The horizontal axes.
        runs: The runs of one label with different seeds.
        value: The quantity.
        most: The largest number of points.

    Returns:
        The curve, or None if no run measured the quantity.
    """
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
    if len(rounds) > most:  # equally spaced points, with both ends and the extremes
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
    """Round to five significant digits, which halves the size of the page's data."""
    return float(f"{value:.5g}")


class Lines(NamedTuple):
    """Curves over rounds, or over another axis."""

    name: str
    title: str
    note: str
    lines: list[Line]
    log: bool = False
    share: bool = False
    """Whether the values are shares, shown as percentages."""
    zero: bool = False
    """Whether the vertical axis begins at zero."""
    span: list[float] | None = None
    """The limits of the vertical axis that several small figures share."""
    kind: str = "lines"


class Bars(NamedTuple):
    """Bars, one per client or other category."""

    name: str
    title: str
    note: str
    unit: str
    values: list[float]
    names: list[str]
    """The names of the categories; if empty, they are numbered."""
    column: str = "client"
    """The category that a bar represents."""
    kind: str = "bars"


class Heat(NamedTuple):
    """Heat map with one cell per row (a label, method or client) and column (a client or round)."""

    name: str
    title: str
    note: str
    row_title: str
    unit: str
    """The unit of the values; empty if they are truth values."""
    rows: list[str]
    values: Sequence[Sequence[float | None]]
    names: list[str]
    """The names of the columns; if empty, they are numbered."""
    column: str = "client"
    """The category that a column represents."""
    kind: str = "heat"


class Strip(NamedTuple):
    """Gantt chart: a row per client, a bar per local task [client, begin, end, aggregated]."""

    name: str
    title: str
    note: str
    label: str
    clients: list[int]
    bars: list[list[float]]
    kind: str = "strip"


Panel = Lines | Bars | Heat | Strip


class Section(NamedTuple):
    """Panels under one heading; the reader chooses among the horizontal `axes`."""

    name: str
    title: str
    note: str
    axes: list[Axis]
    panels: list[Panel]
    constants: list[str]
    """Sentences about quantities that did not change, in place of flat curves."""
    columns: int = 0
    """Number of small figures per line; 0 for figures of the usual size."""


class Style(NamedTuple):
    """Colours, dash pattern, marker and legend entry of a method."""

    light: str
    dark: str
    dash: str
    marker: str = "circle"
    """The marker, different for each label of a report; not filled if it ends in "-open"."""
    name: str = ""
    """The name of the label in legends."""


SOLID, DASH, DOT, DASHDOT, LONG = "solid", "dash", "dot", "dashdot", "longdash"

STYLES = {
    "fedsgd": Style("#7a7f87", "#9aa0a8", DOT),
    "fedavg": Style("#2b2f36", "#e9ecf1", SOLID),
    "fedprox": Style("#857a1f", "#d8cc6a", DASH),
    "scaffold": Style("#b04a85", "#e39ac4", SOLID),
    "feddyn": Style("#882255", "#d4719f", DASHDOT),
    "fedpd": Style("#6a4fb3", "#b3a0ee", DASH),
    "fedadmm": Style("#0072b2", "#4db1ec", SOLID),
    "aligned-admm": Style("#9f05f5", "#a028fe", SOLID),
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
"""Styles of the methods that come with the package."""

SPARE = (
    Style("#521ebd", "#9870e8", DASHDOT),
    Style("#56080c", "#ee5c63", LONG),
    Style("#2f7f86", "#74c7cf", LONG),
    Style("#8e1f8b", "#da5ad6", LONG),
    Style("#866a45", "#c7b093", DASHDOT),
    Style("#4f7a28", "#a3d06f", LONG),
    Style("#3d511e", "#bcda90", DOT),
)
"""Styles, taken in turn, of other methods and of further labels of a method with its own style.
The first differ most from the colours of the usual baselines."""

DASHES = (SOLID, DASH, DOT, DASHDOT, LONG)
SHAPES = (
    *("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "star"),
    *("triangle-left", "triangle-right", "pentagon"),
)
MARKERS = (*SHAPES, *(f"{shape}-open" for shape in SHAPES))


def styles(algorithms: dict[str, str]) -> dict[str, Style]:
    """Return the style of each label.

    The first label of a method that comes with the package has the colour of the method.  Each
    further label has one of the spare colours; when these are used up, they repeat with other
    dashes.  Markers follow the order of the labels.

    Args:
        algorithms: Label -> name of its algorithm.
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
    """Return the style of each label of a report, with its name in legends."""
    chosen = styles({label: runs[0].algorithm for label, runs in content.labels.items()})
    return {label: style._replace(name=content.names[label]) for label, style in chosen.items()}
