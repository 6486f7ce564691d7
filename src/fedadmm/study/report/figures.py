"""The kinds of figures: data series that the page and `drawing` draw alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedadmm.study.report.curves import Axis, Line


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


class Ranks(NamedTuple):
    """The mean rank of every label, best first, and how close ranks are not told apart."""

    name: str
    title: str
    note: str
    labels: list[str]
    ranks: list[float]
    critical: float
    kind: str = "ranks"


Panel = Lines | Bars | Heat | Strip | Ranks


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
    """How many small figures stand side by side; 0 for figures of the usual size."""
