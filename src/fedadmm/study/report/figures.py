"""The kinds of figures: data series that the page and `drawing` draw alike."""

from __future__ import annotations

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
    """What a bar stands for."""
    kind: str = "bars"


class Heat(NamedTuple):
    """One cell for each row (a label, a method) and client."""

    name: str
    title: str
    note: str
    row_title: str
    unit: str
    rows: list[str]
    values: list[list[float]]
    names: list[str]
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
