"""Numbers for people, the same in the terminal, in Markdown and on the page."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedadmm.study import records

if TYPE_CHECKING:
    from fedadmm.run.evaluation import Target
    from fedadmm.study.results import Spread

Telling = Callable[[str, int, int], None]
"""Told what is being done, how many steps are done, and how many there are."""

NOTHING = "–"
SPREAD = "± is the standard deviation over the seeds"


def number(value: float, share: bool = False) -> str:
    """Four significant digits, or a percentage with one decimal."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "not a number" if math.isnan(value) else "−∞"
    text = f"{100 * value:.1f} %" if share else f"{value:.4g}"
    return text.replace("-", "−")


def untold(what: str, done: int, steps: int) -> None:
    """Nobody wants to know."""


def metric(name: str, value: float) -> str:
    """A metric's value; accuracies and sparsities are percentages."""
    return number(value, records.metric(name).share)


def spread(found: Spread, share: bool = False) -> str:
    """Mean ± deviation; a single value has no deviation."""
    if found.mean is None or found.std is None:
        return NOTHING
    text = number(found.mean, share)
    if found.count < 2:
        return text
    deviation = f"{100 * found.std:.1f}" if share else f"{found.std:.2g}"
    return f"{text.removesuffix(' %')} ± {deviation}{' %' if share else ''}"


def describe(target: Target) -> str:
    """A target in words."""
    sign = "≥" if target.at_least else "≤"
    value = metric(target.metric, target.value).replace(".0 %", " %")
    title = records.metric(target.metric).title.lower()
    return f"{title} {sign}\N{NO-BREAK SPACE}{value}"


def size(count: float | None) -> str:
    """Bytes."""
    if count is None:
        return NOTHING
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float | None) -> str:
    """Seconds."""
    if seconds is None:
        return NOTHING
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
