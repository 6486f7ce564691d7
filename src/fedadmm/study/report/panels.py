"""Selection of the figures of a report, which the HTML page and `drawing` both draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedadmm.run.record import OTHERS, PHASES
from fedadmm.study import formatting, run_history
from fedadmm.study.report.figures import (
    Axis,
    Bars,
    Line,
    Lines,
    Panel,
    Section,
    Strip,
    Value,
    additional,
    axes,
    lines,
    short,
)
from fedadmm.study.report.overview import (
    MOST_OVERLAID,
    client_panels,
    last_values,
    sweep_sections,
)
from fedadmm.study.run_history import Columns, Numbers
from fedadmm.study.study_result import StudyResult

MOST_STRIPS = 4


def sections(content: StudyResult) -> list[Section]:
    """Return the sections of a report with all figures of recorded quantities."""
    known = axes(content.runs)
    metric = content.results.metric
    whole = next(_panel(content, known, _metric, metric), None) if metric else None
    sweep = list(sweep_sections(content, known, whole))
    overlaid = [] if sweep and len(content.labels) > MOST_OVERLAID else _overlaid(content, known)
    clients = _section(content, "clients", [], client_panels(content))
    every = [*sweep, *overlaid, clients]
    return [section for section in every if section.panels or section.constants]


_ABOUT = {
    "learning": ("Learning curves", "Progress over rounds, communication and time."),
    "fairness": ("Fairness", "Quality of the model for each client, not only on average."),
    "residuals": (
        "Consensus",
        "Both residuals converge to zero when the clients agree and the global model converges.",
    ),
    "work": ("Local work", "Local training of the participants of each round."),
    "clock": ("Virtual time", "Delays and idle times of the clients."),
    "privacy": ("Privacy", "Differential privacy guarantee of the released aggregates."),
    "more": ("Further measurements", "Other quantities that the runs recorded."),
    "clients": ("Clients", "Distribution of the samples and participation."),
}
"""Title and introductory sentence of each section."""


def _overlaid(content: StudyResult, known: list[Axis]) -> list[Section]:
    """Return the sections whose figures show all methods together."""
    rounds = known[:1]
    return [
        _section(content, "learning", known, _learning(content, known)),
        _section(content, "fairness", rounds, _fairness(content, rounds)),
        _section(content, "residuals", rounds, _curves(content, rounds, "residuals")),
        _section(content, "work", rounds, _work(content, rounds)),
        _section(content, "clock", rounds, _clock(content, rounds)),
        _section(content, "privacy", rounds, _curves(content, rounds, "privacy")),
        _section(content, "more", rounds, _more(content, rounds)),
    ]


def _section(
    content: StudyResult, name: str, known: list[Axis], panels: Iterator[Panel]
) -> Section:
    """Return a section; panels with constant curves or equal bars become sentences."""
    drawn: list[Panel] = []
    constants: list[str] = []
    for panel in panels:
        # The same value in every round and for every seed, in more than one point.
        if isinstance(panel, Lines) and all(
            len(line.y) > 1 and len({*line.y, *line.low, *line.high}) == 1 for line in panel.lines
        ):
            constants.append(_constant(content, panel))
        elif isinstance(panel, Bars) and len(panel.values) > len(set(panel.values)) == 1:
            value = formatting.number(panel.values[0])
            constants.append(f"{panel.title}: {value} {panel.unit} for every {panel.column}.")
        else:
            drawn.append(panel)
    return Section(name, *_ABOUT[name], known, drawn, constants)


def _constant(content: StudyResult, panel: Lines) -> str:
    groups: dict[str, list[str]] = {}
    for line in panel.lines:
        name = content.names[line.label] + (f" ({line.part})" if line.part else "")
        groups.setdefault(formatting.number(line.y[0], panel.share), []).append(name)
    if len(groups) == 1:
        return f"{panel.title}: {next(iter(groups))} in every round."
    between = " / " if any("," in name for name in content.names.values()) else ", "
    parts = [f"{value} ({between.join(names)})" for value, names in groups.items()]
    return f"{panel.title}, the same in every round: {'; '.join(parts)}."


def metric_names(content: StudyResult) -> list[str]:
    """Return the evaluated metrics: accuracies, losses, then others, in the recorded order."""
    columns = [run.columns for run in content.runs]
    names = dict.fromkeys(name for one in columns for name in one.names("metrics"))
    pairs = [(one.column("loss"), one.column("objective")) for one in columns]
    if all(np.array_equal(loss, objective, equal_nan=True) for loss, objective in pairs):
        names.pop("objective", None)
    return sorted(names, key=lambda name: ("accuracy" not in name, "loss" not in name))


def _learning(content: StudyResult, known: list[Axis]) -> Iterator[Panel]:
    names = metric_names(content)
    for name in names:
        if run_history.metric(name).known and name not in _fair(names):
            yield from _panel(content, known, _metric, name)


def _fair(names: list[str]) -> list[str]:
    return [name for own in run_history.over_clients(names).values() for name in own]


def _fairness(content: StudyResult, rounds: list[Axis]) -> Iterator[Panel]:
    """Yield worst client, percentile and spread over the rounds, and each client's last value."""
    for base, names in run_history.over_clients(metric_names(content)).items():
        for name in names:
            yield from _panel(content, rounds, _metric, name)
        yield from filter(None, [last_values(content, base)])


def _more(content: StudyResult, rounds: list[Axis]) -> Iterator[Panel]:
    """Yield one panel per recorded key; `X_bound` and `X_measured` share the panel `X`."""
    names = metric_names(content)
    unknown = [n for n in names if not run_history.metric(n).known and n not in _fair(names)]
    further = dict.fromkeys(
        name for run in content.runs for name in run.columns.names("callbacks", "network")
    )
    for get, found in ((_metric, unknown), (additional, further)):
        families: dict[str, list[str]] = {}
        for name in found:
            families.setdefault(_stem(name), []).append(name)
        for stem, names in families.items():
            yield from _panel(content, rounds, get, *names, title=run_history.metric(stem).title)


def _stem(name: str) -> str:
    for ending in ("bound", "measured"):
        if name == ending:
            return "certificate"
        if name.endswith("_" + ending):
            return name.removesuffix("_" + ending)
    return name


def _panel(
    content: StudyResult,
    known: list[Axis],
    get: Callable[[str], Value],
    *names: str,
    title: str = "",
) -> Iterator[Lines]:
    curves: list[Line] = []
    for name in names:
        part = name if len(names) > 1 else ""
        curves += lines(content, known, get(name), part)
    values = [y for line in curves if not line.ended for y in line.y]
    if not values:
        return
    about = run_history.metric(names[0])
    positive = min(values) > 0 and not about.share
    wide = positive and max(values) > 50 * min(values)
    clashes = get is _metric and any(
        names[0] in run.columns.names("", *OTHERS) for run in content.runs
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
    return lambda columns: columns.column(name)


class Curves(NamedTuple):
    """A figure of a quantity over the rounds, or of a median with a band."""

    name: str
    title: str
    note: str
    values: Sequence[Value]
    """The quantity; or lower end of the band, median, and upper end."""
    log: bool = False
    share: bool = False
    zero: bool = False
    diverged: bool = False
    """Whether diverged seeds are drawn."""


def _quantile(group: str, name: str, index: int) -> Value:
    """Return the function that reads one of three quantiles; NaN without one or without penalty."""

    def value(columns: Columns) -> Numbers:
        low, found = (columns.column(f"{name}.{place}", group) for place in (0, index))
        return np.where((low > 0) | (group == "clock"), found, np.nan)

    return value


def _residual(name: str, note: str) -> Curves:
    def value(columns: Columns) -> Numbers:  # a logarithmic axis cannot show zero
        found = columns.column(name, *OTHERS)
        return np.where(found == 0, np.nan, found)

    return Curves(name, run_history.metric(name).title, note, [value], log=True, diverged=True)


def _spent(name: str, title: str, note: str) -> Curves:
    return Curves(name, title, note, [lambda own: own.column(name, "privacy")], diverged=True)


def _mean(name: str, title: str, note: str, share: bool = False) -> Curves:
    return Curves(name, title, note, [additional(name)], share=share, zero=True)


_CURVES = {
    "residuals": [
        _residual(
            "primal_residual",
            "Distance of the participants' models from the global model that they received: the "
            "square root of the weighted mean of ‖wᵢ − θ‖².",
        ),
        _residual(
            "dual_residual",
            "Change of the global model times the mean penalty: mean β · ‖θ⁺ − θ‖. Methods without "
            "a penalty are left out.",
        ),
    ],
    "work": [
        Curves(
            "penalty",
            "Penalties βᵢ",
            "The weight of the quadratic term in the local problems: the median participant, the "
            "band from the first to the third quartile. Methods without one are left out.",
            [_quantile("work", "penalty_quartiles", index) for index in range(3)],
            log=True,
        ),
        _mean("epochs", "Local epochs", "The epochs that a participant trained, on average."),
        _mean(
            "passes",
            "Passes over the data",
            "Gradients that a participant evaluated, in passes over its data, on average: those of "
            "its steps, and full gradients for the stopping rule and the method.",
        ),
        _mean("steps", "Local steps", "The steps of all participants of a round in total."),
        _mean("participants", "Participants", "The number of participants of each round."),
    ],
    "clock": [
        Curves(
            "staleness",
            "Staleness",
            "Server steps between a broadcast and the client's result: the median so far, the band "
            "up to the largest.",
            [_quantile("clock", "staleness_quantiles", index) for index in (0, 0, 2)],
            zero=True,
        ),
        _mean("idle", "Idle time", "The share of idle time of all clients so far.", True),
        _mean("steps_per_second", "Server steps", "Server steps per virtual second so far."),
    ],
    "privacy": [
        _spent(
            "epsilon",
            "Privacy budget consumed (ε)",
            "ε of the (ε, δ) guarantee so far: client-level, or in a run with dp-sgd "
            "example-level, for the client with the largest ε.",
        ),
        _spent(
            "clip",
            "Clipping norm",
            "The largest norm of a client's update in a round, or with dp-sgd of the gradient of "
            "one sample.",
        ),
    ],
}
"""Figures of quantities other than metrics, by section."""


def _curves(content: StudyResult, rounds: list[Axis], section: str) -> Iterator[Panel]:
    for one in _CURVES[section]:
        tracks = [lines(content, rounds, value) for value in one.values]
        found = tracks[0]
        if len(tracks) == 3:
            found = [
                line._replace(low=below.y, high=above.y)
                for below, line, above in zip(*tracks, strict=True)
            ]
        shown = [line for line in found if one.diverged or not line.ended]
        if shown:
            yield Lines(one.name, one.title, one.note, shown, one.log, one.share, one.zero)


def _work(content: StudyResult, rounds: list[Axis]) -> Iterator[Panel]:
    """Yield the figures of local work, and the time of each phase of a round."""
    yield from _curves(content, rounds, "work")
    columns = [run.columns for run in content.runs]
    totals = {
        phase: sum(one.total("clock", f"{phase}_seconds") for one in columns) for phase in PHASES
    }
    found = {phase: seconds for phase, seconds in totals.items() if seconds}
    if found:
        done = sum(one.count for one in columns)
        values = [short(1000 * seconds / done) for seconds in found.values()]
        note = "Milliseconds per round, on average over all runs; callbacks include the recording."
        title = "Time of a round by phase"
        yield Bars("profile", title, note, "ms per round", values, [*found], "phase")


def _clock(content: StudyResult, rounds: list[Axis]) -> Iterator[Panel]:
    """Yield the figures of a virtual clock: delays, idle time, and the tasks of the clients."""
    yield from _curves(content, rounds, "clock")
    counts = sum((run.columns.delays for run in content.runs), Counter[int]())
    if counts:
        delays = range(max(counts) + 1)
        note = "The number of client results with each delay, in server steps."
        values, names = [float(counts[one]) for one in delays], [str(one) for one in delays]
        yield Bars("delays", "Delays", note, "client results", values, names, "delay")
    yield from _strips(content)


def _strips(content: StudyResult) -> Iterator[Strip]:
    """Yield a Gantt chart of the first tasks in the first run of each label."""
    for label, runs in list(content.labels.items())[:MOST_STRIPS]:
        pieces = runs[0].columns.pieces
        bars = [
            [client, short(begin), short(end), aggregated]
            for client, begin, end, aggregated in pieces
        ]
        if not bars:
            continue
        clients = sorted({int(bar[0]) for bar in bars})
        note = "Local work of each client at the beginning; results of pale tasks were not used."
        name = "strip" if len(content.labels) == 1 else f"strip-{label}"
        own = f": {content.names[label]}" if len(content.labels) > 1 else ""
        title = f"Local work over time{own}"
        yield Strip(name, title, note, label, clients, bars)
