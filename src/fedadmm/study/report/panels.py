"""What the figures show: data series, built once, drawn by the page and by `drawing`."""

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
    axes,
    besides,
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
    "clients": ("Clients", "Who holds what, and who took part."),
}
"""A section's title, and what it is about."""


def _overlaid(content: StudyResult, known: list[Axis]) -> list[Section]:
    """Figures in which all methods are drawn over each other."""
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
    """Panels whose curves are all flat, or whose bars are all equal, become sentences."""
    drawn: list[Panel] = []
    constants: list[str] = []
    for panel in panels:
        # The same value in every round and for every seed; one point is no curve.
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
    """The evaluated metrics: accuracies first, then losses, in the order they were recorded."""
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
    """Worst client, percentile and spread over the rounds, and each client's last value."""
    for base, names in run_history.over_clients(metric_names(content)).items():
        for name in names:
            yield from _panel(content, rounds, _metric, name)
        yield from filter(None, [last_values(content, base)])


def _more(content: StudyResult, rounds: list[Axis]) -> Iterator[Panel]:
    """One panel a key; `X_bound` and `X_measured` share the panel `X`."""
    names = metric_names(content)
    unknown = [n for n in names if not run_history.metric(n).known and n not in _fair(names)]
    further = dict.fromkeys(
        name for run in content.runs for name in run.columns.names("callbacks", "network")
    )
    for get, found in ((_metric, unknown), (besides, further)):
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
    """One figure of `_CURVES`: a quantity over the rounds, or its middle with a band."""

    name: str
    title: str
    note: str
    values: Sequence[Value]
    """The quantity; or the lower end of the band, the middle and the upper end."""
    log: bool = False
    share: bool = False
    zero: bool = False
    diverged: bool = False
    """Whether seeds that diverged are drawn, too."""


def _quantile(group: str, name: str, index: int) -> Value:
    """One of three quantiles; NaN where a record has none, or the method no penalty."""

    def value(columns: Columns) -> Numbers:
        low, found = (columns.column(f"{name}.{place}", group) for place in (0, index))
        return np.where((low > 0) | (group == "clock"), found, np.nan)

    return value


def _residual(name: str, note: str) -> Curves:
    def value(columns: Columns) -> Numbers:  # a log axis has no place for zero
        found = columns.column(name, *OTHERS)
        return np.where(found == 0, np.nan, found)

    return Curves(name, run_history.metric(name).title, note, [value], log=True, diverged=True)


def _spent(name: str, title: str, note: str) -> Curves:
    return Curves(name, title, note, [lambda own: own.column(name, "privacy")], diverged=True)


def _mean(name: str, title: str, note: str, share: bool = False) -> Curves:
    return Curves(name, title, note, [besides(name)], share=share, zero=True)


_CURVES = {
    "residuals": [
        _residual(
            "primal_residual",
            "How far the participants' models are from the global model they received: the root "
            "of the weighted mean of ‖wᵢ − θ‖².",
        ),
        _residual(
            "dual_residual",
            "How far the global model moved, times the mean penalty: mean β · ‖θ⁺ − θ‖. Methods "
            "without a penalty have none.",
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
            "Gradients that a participant evaluated, in passes over its data, on average: its "
            "steps, and the full gradients that stopping rule and method ask for.",
        ),
        _mean("steps", "Local steps", "Steps that all participants of a round made together."),
        _mean("participants", "Participants", "How many clients took part in each round."),
    ],
    "clock": [
        Curves(
            "staleness",
            "Staleness",
            "Server steps between a broadcast and its reply: the median so far, the band up to the "
            "largest.",
            [_quantile("clock", "staleness_quantiles", index) for index in (0, 0, 2)],
            zero=True,
        ),
        _mean("idle", "Idle time", "The share of the clients' time so far without work.", True),
        _mean("steps_per_second", "Server steps", "Server steps a virtual second, so far."),
    ],
    "privacy": [
        _spent(
            "epsilon",
            "Privacy spent (ε)",
            "ε of (ε, δ) so far: for every client with all its data, and of a run with dp-sgd for "
            "every record (row), by the client that has spent most.",
        ),
        _spent(
            "clip",
            "Clip",
            "The largest norm of what a client sends in a round, and with dp-sgd of the gradient "
            "of one row.",
        ),
    ],
}
"""The figures of quantities that have a place of their own, by section."""


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
    """What the participants did, and where the time of a round went."""
    yield from _curves(content, rounds, "work")
    columns = [run.columns for run in content.runs]
    totals = {
        phase: sum(one.total("clock", f"{phase}_seconds") for one in columns) for phase in PHASES
    }
    found = {phase: seconds for phase, seconds in totals.items() if seconds}
    if found:
        done = sum(one.count for one in columns)
        values = [short(1000 * seconds / done) for seconds in found.values()]
        note = "Milliseconds of a round on average over all runs; callbacks write this page's data."
        yield Bars("profile", "Where the time went", note, "ms a round", values, [*found], "phase")


def _clock(content: StudyResult, rounds: list[Axis]) -> Iterator[Panel]:
    """What a virtual clock tells: delays, idle time, and who worked when."""
    yield from _curves(content, rounds, "clock")
    counts = sum((run.columns.delays for run in content.runs), Counter[int]())
    if counts:
        delays = range(max(counts) + 1)
        note = "How many replies came with each delay, in server steps."
        values, names = [float(counts[one]) for one in delays], [str(one) for one in delays]
        yield Bars("delays", "Delays", note, "replies", values, names, "delay")
    yield from _strips(content)


def _strips(content: StudyResult) -> Iterator[Strip]:
    """The first pieces of work of each label's first run."""
    for label, runs in list(content.labels.items())[:MOST_STRIPS]:
        pieces = runs[0].columns.pieces
        bars = [[client, short(begin), short(end), folded] for client, begin, end, folded in pieces]
        if not bars:
            continue
        clients = sorted({int(bar[0]) for bar in bars})
        note = "Who worked when, at the beginning; pale work was lost, late or too stale."
        name = "strip" if len(content.labels) == 1 else f"strip-{label}"
        own = f": {content.names[label]}" if len(content.labels) > 1 else ""
        title = f"Who worked when{own}"
        yield Strip(name, title, note, label, clients, bars)
