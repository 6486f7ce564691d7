"""What the figures show of a sweep: one value per setting, and a small curve for each."""

from __future__ import annotations

from collections.abc import Iterator

from fedadmm.study import formatting, records
from fedadmm.study.report.figures import Axis, Bars, Heat, Lines, Panel, Section, short
from fedadmm.study.results import Outcome

MOST_MULTIPLES = 36
"""This many small figures can still be compared."""
MOST_OVERLAID = 12
"""This many settings can share a figure of the usual size."""


def sweep_sections(content: Outcome, known: list[Axis], whole: Lines | None) -> Iterator[Section]:
    """The sections of a sweep; `whole` holds the curves of all settings."""
    finals = _finals(content)
    if not content.settings or not finals:
        return
    up = records.metric(content.results.metric or "").up
    best = (max if up else min)(finals, key=lambda label: finals[label])
    panels = list(_overview(content, finals))
    if panels:
        told = formatting.metric(content.results.metric or "", finals[best])
        note = f"What each setting ended with; the best is {best}, with {told}."
        yield Section("sweep", "Sweep", note, [], panels, [])
    if whole is not None and len(content.labels) > 1:
        multiples: list[Panel] = list(_multiples(content, whole, best))
        note = f"The same axes for every setting; the pale line is the best one, {best}."
        if len(content.labels) > len(multiples):
            note += f" The first {len(multiples)} of {len(content.labels)} settings."
        columns = len(dict.fromkeys(list(one.values())[-1] for one in content.settings.values()))
        title = f"{whole.title}, one by one"
        yield Section("multiples", title, note, known, multiples, [], min(columns, 6))


def _finals(content: Outcome) -> dict[str, float]:
    """The final value of the compared metric, by label; settings that diverged have none."""
    metric = content.results.metric or ""
    rows = {row.label: row.final.get(metric) for row in content.results.rows}
    return {label: one.mean for label, one in rows.items() if one and one.mean is not None}


def _overview(content: Outcome, finals: dict[str, float]) -> Iterator[Panel]:
    """Bars over the values of one key, a map over those of two; more have no picture."""
    about = records.metric(content.results.metric or "")
    factor, ending = (100.0, " (%)") if about.share else (1.0, "")
    title, unit = f"Final {about.title.lower()}", f"{about.title.lower()}{ending}"
    shown = {label: short(factor * value) for label, value in finals.items()}
    keys = list(dict.fromkeys(key for one in content.settings.values() for key in one))
    place = {tuple(one.values()): label for label, one in content.settings.items()}
    if len(keys) == 1:
        found = [(value, shown[label]) for (value,), label in place.items() if label in shown]
        note = "Means over the seeds; settings that diverged are left out."
        names = [value for value, _ in found]
        yield Bars("final", title, note, unit, [value for _, value in found], names, keys[0])
    elif len(keys) == 2:
        rows, names = (list(dict.fromkeys(one[i] for one in place)) for i in (0, 1))
        values = [[shown.get(place.get((row, name), "")) for name in names] for row in rows]
        note = "Means over the seeds; empty where every seed diverged."
        yield Heat("final", title, note, keys[0], unit, rows, values, names, keys[1])


def _multiples(content: Outcome, whole: Lines, best: str) -> Iterator[Lines]:
    """One small figure per setting, with the best setting behind it."""
    behind = [line._replace(behind=True) for line in whole.lines if line.label == best]
    span = _span(whole)
    for number, label in enumerate(list(content.labels)[:MOST_MULTIPLES]):
        own = [line for line in whole.lines if line.label == label]
        yield whole._replace(
            name=f"{whole.name}-{number + 1}",
            title=content.names[label],
            note="",
            lines=[*(behind if label != best else []), *own],
            span=span,
        )


def _span(whole: Lines) -> list[float]:
    """From the lowest to the highest value of a setting that did not diverge."""
    calm = [line for line in whole.lines if not line.ended]
    values = [y for line in calm for y in (*line.y, *line.low, *line.high)]
    if whole.log:
        values = [value for value in values if value > 0]
        edge = (max(values) / min(values)) ** 0.05
        return [min(values) / edge, max(values) * edge]
    low, high = min(values), max(values)
    edge = 0.05 * (high - low or abs(high) or 1.0)
    return [low - edge, high + edge]
