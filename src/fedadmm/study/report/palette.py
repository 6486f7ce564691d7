"""One colour, one dash pattern and one marker per method, the same in every figure of a report.

The first hues are those of Okabe and Ito and of Tol, which stay apart for colour-blind readers; so
many methods are more than any such palette holds, so those that come near each other under a colour
vision deficiency differ in their dashes too, and no two methods of a report share a marker.  Each
colour has a shade for a light page and one for a dark page, both with a contrast of at least 3:1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fedadmm.study.results import Outcome


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


def styles_of(content: Outcome) -> dict[str, Style]:
    """The style of each label of a report, with what the label is called."""
    chosen = styles({label: runs[0].algorithm for label, runs in content.labels.items()})
    return {label: style._replace(name=content.names[label]) for label, style in chosen.items()}
