"""What the figures show: data series, built once, drawn by the page and by `drawing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from fedadmm.study import formatting, records
from fedadmm.study.report.clients import client_panels, last_values
from fedadmm.study.report.clock import clock_panels
from fedadmm.study.report.figures import (
    Axis,
    Bars,
    Line,
    Lines,
    Panel,
    Section,
    Value,
    axes,
    besides,
    lines,
    quartile_lines,
)
from fedadmm.study.report.ranks import rank_panels
from fedadmm.study.report.sweeps import MOST_OVERLAID, sweep_sections
from fedadmm.study.results import Outcome


def sections(content: Outcome) -> list[Section]:
    """Every figure of a report; what was not measured has none."""
    known = axes(content.runs)
    metric = content.results.metric
    whole = next(_panel(content, known, _metric, metric), None) if metric else None
    sweep = list(sweep_sections(content, known, whole))
    overlaid = [] if sweep and len(content.labels) > MOST_OVERLAID else _overlaid(content, known)
    clients = _section(content, "clients", [], client_panels(content))
    every = [*sweep, *overlaid, clients]
    return [section for section in every if section.panels or section.constants]


_ABOUT = {
    "learning": ("Learning curves", "What the rounds, the bytes and the time buy."),
    "ranks": ("Ranks", "Who is ahead, seed by seed."),
    "fairness": (
        "Every client's share",
        "What the model is worth to each client, not only on average.",
    ),
    "residuals": (
        "Consensus",
        "Both residuals fall to zero when the clients agree and the global model rests.",
    ),
    "work": ("Local work", "What the participants of a round did."),
    "clock": ("Virtual time", "Who waited for whom."),
    "privacy": ("Privacy", "What the released sums tell about any one client, at most."),
    "more": ("Further measurements", "Whatever else the runs recorded."),
    "trials": ("Trials", "What the search tried, in its order."),
    "clients": ("Clients", "Who holds what, and who took part."),
}
"""A section's title, and what it is about."""


def _overlaid(content: Outcome, known: list[Axis]) -> list[Section]:
    """Figures in which all methods are drawn over each other."""
    rounds = known[:1]
    return [
        _section(content, "learning", known, _learning(content, known)),
        _section(content, "ranks", [], rank_panels(content)),
        _section(content, "fairness", rounds, _fairness(content, rounds)),
        _section(content, "residuals", rounds, _residuals(content, rounds)),
        _section(content, "work", rounds, _work(content, rounds)),
        _section(content, "clock", rounds, clock_panels(content, rounds)),
        _section(content, "privacy", rounds, _privacy(content, rounds)),
        _section(content, "more", rounds, _more(content, rounds)),
        _section(content, "trials", [], _trials(content)),
    ]


def _section(content: Outcome, name: str, known: list[Axis], panels: Iterator[Panel]) -> Section:
    """Panels whose curves are all flat, or whose bars are all equal, become sentences."""
    drawn: list[Panel] = []
    constants: list[str] = []
    for panel in panels:
        if isinstance(panel, Lines) and all(map(_is_flat, panel.lines)):
            constants.append(_constant(content, panel))
        elif isinstance(panel, Bars) and len(panel.values) > len(set(panel.values)) == 1:
            value = formatting.number(panel.values[0])
            constants.append(f"{panel.title}: {value} {panel.unit} for every {panel.column}.")
        else:
            drawn.append(panel)
    return Section(name, *_ABOUT[name], known, drawn, constants)


def _is_flat(line: Line) -> bool:
    """Whether a curve has the same value in every round and for every seed; one point is none."""
    return len(line.y) > 1 and len({*line.y, *line.low, *line.high}) == 1


def _constant(content: Outcome, panel: Lines) -> str:
    groups: dict[str, list[str]] = {}
    for line in panel.lines:
        name = content.names[line.label] + (f" ({line.part})" if line.part else "")
        groups.setdefault(formatting.number(line.y[0], panel.share), []).append(name)
    if len(groups) == 1:
        return f"{panel.title}: {next(iter(groups))} in every round."
    between = " / " if any("," in name for name in content.names.values()) else ", "
    parts = [f"{value} ({between.join(names)})" for value, names in groups.items()]
    return f"{panel.title}, the same in every round: {'; '.join(parts)}."


def metric_names(content: Outcome) -> list[str]:
    """The evaluated metrics: accuracies first, then losses, in the order they were recorded."""
    names = dict.fromkeys(
        name
        for run in content.runs
        for record in run.records
        for name in records.metrics(record)
        if records.value(record, name) is not None
    )
    if not _differ(content, "loss", "objective"):
        names.pop("objective", None)
    return sorted(names, key=lambda name: ("accuracy" not in name, "loss" not in name))


def _differ(content: Outcome, one: str, other: str) -> bool:
    return any(
        records.value(record, one) != records.value(record, other)
        for run in content.runs
        for record in run.records
    )


def _learning(content: Outcome, known: list[Axis]) -> Iterator[Panel]:
    names = metric_names(content)
    for name in names:
        if records.metric(name).known and name not in _fair(names):
            yield from _panel(content, known, _metric, name)


def _fair(names: list[str]) -> list[str]:
    return [name for own in records.over_clients(names).values() for name in own]


def _fairness(content: Outcome, rounds: list[Axis]) -> Iterator[Panel]:
    """Worst client, percentile and spread over the rounds, and each client's last value."""
    for base, names in records.over_clients(metric_names(content)).items():
        for name in names:
            yield from _panel(content, rounds, _metric, name)
        yield from filter(None, [last_values(content, base)])


def _more(content: Outcome, rounds: list[Axis]) -> Iterator[Panel]:
    """One panel a key; `X_bound` and `X_measured` share the panel `X`."""
    names = metric_names(content)
    unknown = [n for n in names if not records.metric(n).known and n not in _fair(names)]
    further = dict.fromkeys(
        name for r in content.runs for record in r.records for name in records.further(record)
    )
    for get, found in ((_metric, unknown), (besides, further)):
        families: dict[str, list[str]] = {}
        for name in found:
            families.setdefault(_stem(name), []).append(name)
        for stem, names in families.items():
            yield from _panel(content, rounds, get, *names, title=records.metric(stem).title)


def _stem(name: str) -> str:
    for ending in ("bound", "measured"):
        if name == ending:
            return "certificate"
        if name.endswith("_" + ending):
            return name.removesuffix("_" + ending)
    return name


def _panel(
    content: Outcome, known: list[Axis], get: Callable[[str], Value], *names: str, title: str = ""
) -> Iterator[Lines]:
    curves: list[Line] = []
    for name in names:
        part = name if len(names) > 1 else ""
        curves += lines(content, known, get(name), part)
    values = [y for line in curves if not line.ended for y in line.y]
    if not values:
        return
    about = records.metric(names[0])
    positive = min(values) > 0 and not about.share
    wide = positive and max(values) > 50 * min(values)
    clashes = get is _metric and any(
        names[0] in records.ambiguous(record) for run in content.runs for record in run.records
    )
    yield Lines(
        name=f"metrics.{names[0]}" if clashes else names[0],
        title=title or about.title,
        note=about.sentence,
        lines=curves,
        log=positive and (wide or (not about.up and max(values) > 5 * min(values))),
        share=about.share,
    )


def _metric(name: str) -> Value:
    return lambda record: records.value(record, name)


def _positive(name: str) -> Value:
    """What a log axis can show: a residual that is exactly zero has no place on it."""
    return lambda record: records.besides(record, name) or None


def _residuals(content: Outcome, rounds: list[Axis]) -> Iterator[Panel]:
    notes = {
        "primal_residual": "How far the participants' models are from the global model they "
        "received: the root of the weighted mean of ‖wᵢ − θ‖².",
        "dual_residual": "How far the global model moved, times the mean penalty: "
        "mean β · ‖θ⁺ − θ‖. Methods without a penalty have none.",
    }
    for name, note in notes.items():
        curves = lines(content, rounds, _positive(name))
        if curves:
            yield Lines(name, records.metric(name).title, note, curves, log=True)


def _privacy(content: Outcome, rounds: list[Axis]) -> Iterator[Panel]:
    notes = {
        "epsilon": (
            "Privacy spent (ε)",
            "ε of (ε, δ) so far: for every client with all its data, and of a run with dp-sgd for "
            "every record (row), by the client that has spent most.",
        ),
        "clip": (
            "Clip",
            "The largest norm of what a client sends in a round, and with dp-sgd of the gradient "
            "of one row.",
        ),
    }
    for name, (title, note) in notes.items():
        curves = lines(content, rounds, partial(records.privacy, name=name))
        if curves:
            yield Lines(name, title, note, curves)


def _work(content: Outcome, rounds: list[Axis]) -> Iterator[Panel]:
    penalties = [line for line in quartile_lines(content, rounds) if not line.ended]
    if penalties:
        yield Lines(
            "penalty",
            "Penalties βᵢ",
            "The weight of the quadratic term in the local problems: the median participant, the "
            "band from the first to the third quartile. Methods without one are left out.",
            penalties,
            log=True,
        )
    notes = {
        "epochs": ("Local epochs", "The epochs that a participant trained, on average."),
        "passes": (
            "Passes over the data",
            "Gradients that a participant evaluated, in passes over its data, on average: its "
            "steps, and the full gradients that stopping rule and method ask for.",
        ),
        "steps": ("Local steps", "Steps that all participants of a round made together."),
        "participants": ("Participants", "How many clients took part in each round."),
    }
    for name, (title, note) in notes.items():
        curves = [line for line in lines(content, rounds, besides(name)) if not line.ended]
        if curves:
            yield Lines(name, title, note, curves, zero=True)


def _trials(content: Outcome) -> Iterator[Panel]:
    """Each trial's last measurement of the compared metric; the curves are those of the best."""
    metric = content.results.metric or ""
    tuning = content.document.get("kind") == "tuning"
    rows = content.document["runs"] if tuning else []
    found = {str(row["trial"]): row["final"][metric] for row in rows if metric in row["final"]}
    title = records.metric(metric).title
    note = f"{title} after each trial's last round. The other figures show the best trials."
    if found:
        yield Bars("trials", title, note, title.lower(), [*found.values()], [*found], "trial")
