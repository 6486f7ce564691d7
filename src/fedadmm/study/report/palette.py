"""One colour and one dash pattern per algorithm, the same in every figure.

The hues are those of Okabe and Ito and of Tol, which stay apart for colour-blind readers; thirteen
methods are more than any such palette holds, so methods that come near each other under a colour
vision deficiency differ in their dashes too.  Each colour has a shade for a light page and one
for a dark page, both with a contrast of at least 3:1.
"""

from __future__ import annotations

from typing import NamedTuple


class Style(NamedTuple):
    """How a method is drawn."""

    light: str
    dark: str
    dash: str


SOLID, DASH, DOT, DASHDOT, LONG = "solid", "dash", "dot", "dashdot", "longdash"

STYLES = {
    "fedsgd": Style("#7a7f87", "#9aa0a8", DOT),
    "fedavg": Style("#2b2f36", "#e9ecf1", SOLID),
    "fedprox": Style("#857a1f", "#d8cc6a", DASH),
    "scaffold": Style("#b04a85", "#e39ac4", SOLID),
    "feddyn": Style("#882255", "#d4719f", DASHDOT),
    "fedpd": Style("#6a4fb3", "#b3a0ee", DASH),
    "fedadmm": Style("#0072b2", "#4db1ec", SOLID),
    "fedadmm-in": Style("#2a8fc4", "#8ccbf2", DOT),
    "fedadmm-insa": Style("#00856a", "#35c9a3", SOLID),
    "feddr": Style("#d55e00", "#ff8a3d", SOLID),
    "feddr-ii": Style("#b37a00", "#f2b632", DASHDOT),
    "fedsplit": Style("#b5485a", "#f08c9c", LONG),
    "async-feddr": Style("#8c510a", "#d9a066", DOT),
}
"""The methods that come with the package."""

STRANGERS = (
    Style("#4f7a28", "#a3d06f", LONG),
    Style("#5b6abf", "#9fb0ff", LONG),
    Style("#a0522d", "#e3a27f", DASHDOT),
    Style("#2f7f86", "#74c7cf", DASHDOT),
)
"""Methods that this file does not know take these in turn."""

DASHES = (SOLID, DASH, DOT, DASHDOT, LONG)


def styles(algorithms: dict[str, str]) -> dict[str, Style]:
    """The style of each label, from {label: algorithm}.

    Labels of one algorithm (two values of rho, say) share its colour and take different dashes.
    """
    strangers = sorted({name for name in algorithms.values() if name not in STYLES})
    result: dict[str, Style] = {}
    seen: dict[str, int] = {}
    for label, algorithm in algorithms.items():
        base = STYLES.get(algorithm)
        if base is None:
            base = STRANGERS[strangers.index(algorithm) % len(STRANGERS)]
        turn = seen.get(algorithm, 0)
        seen[algorithm] = turn + 1
        dash = DASHES[(DASHES.index(base.dash) + turn) % len(DASHES)]
        result[label] = base._replace(dash=dash)
    return result
