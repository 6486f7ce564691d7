"""What the figures show: data series, built once, drawn by the page and by `drawing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from fedadmm.study import records, words
from fedadmm.study.recorded import RecordedRun
from fedadmm.study.report import clock
from fedadmm.study.report.content import Content
from fedadmm.study.report.curves import Axis, Line, Value, axes, lines, quartile_lines, short
from fedadmm.study.report.figures import Bars, Heat, Lines, Panel, Section

MOST_CLIENTS = 500
"""Figures with one mark a client show at most this many of them."""


def sections(content: Content) -> list[Section]:
    """Every figure of a report; what was not measured has none."""
    known = axes(content.runs)
    rounds = known[:1]
    every = [
        Section(
            "learning",
            "Learning curves",
            "What the rounds, the bytes and the time buy.",
            known,
            list(_learning(content, known)),
            [],
        ),
        _section(
            content,
            "residuals",
            "Consensus",
            "Both residuals fall to zero when the clients agree and the global model rests.",
            rounds,
            _residuals(content, rounds),
        ),
        _section(
            content,
            "work",
            "Local work",
            "What the participants of a round did.",
            rounds,
            _work(content, rounds),
        ),
        _section(
            content,
            "clock",
            "Virtual time",
            "Who waited for whom.",
            rounds,
            _clock(content, rounds),
        ),
        _section(
            content,
            "privacy",
            "Privacy",
            "What the released sums tell about any one client, at most.",
            rounds,
            _privacy(content, rounds),
        ),
        _section(
            content,
            "more",
            "Further measurements",
            "Whatever else the runs recorded.",
            rounds,
            _more(content, rounds),
        ),
        Section(
            "clients", "Clients", "Who holds what, and who took part.", [], _clients(content), []
        ),
    ]
    return [section for section in every if section.panels or section.constants]


def _section(
    content: Content, name: str, title: str, note: str, rounds: list[Axis], panels: Iterator[Panel]
) -> Section:
    """Panels whose curves are all flat become sentences."""
    drawn: list[Panel] = []
    constants: list[str] = []
    for panel in panels:
        if isinstance(panel, Lines) and all(map(_is_flat, panel.lines)):
            constants.append(_constant(content, panel))
        else:
            drawn.append(panel)
    return Section(name, title, note, rounds, drawn, constants)


def _is_flat(line: Line) -> bool:
    """Whether a curve has the same value in every round and for every seed; one point is none."""
    return len(line.y) > 1 and len({*line.y, *line.low, *line.high}) == 1


def _constant(content: Content, panel: Lines) -> str:
    groups: dict[str, list[str]] = {}
    for line in panel.lines:
        name = content.names[line.label] + (f" ({line.part})" if line.part else "")
        groups.setdefault(words.number(line.y[0], panel.share), []).append(name)
    if len(groups) == 1:
        return f"{panel.title}: {next(iter(groups))} in every round."
    parts = [f"{value} ({', '.join(names)})" for value, names in groups.items()]
    return f"{panel.title}, the same in every round: {'; '.join(parts)}."


def metric_names(content: Content) -> list[str]:
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


def _differ(content: Content, one: str, other: str) -> bool:
    return any(
        records.value(record, one) != records.value(record, other)
        for run in content.runs
        for record in run.records
    )


def _learning(content: Content, known: list[Axis]) -> Iterator[Panel]:
    for name in metric_names(content):
        if records.metric(name).known:
            yield from _panel(content, known, _metric, name)


def _more(content: Content, rounds: list[Axis]) -> Iterator[Panel]:
    """One panel a key; `X_bound` and `X_measured` share the panel `X`."""
    unknown = [name for name in metric_names(content) if not records.metric(name).known]
    further = dict.fromkeys(
        name for r in content.runs for record in r.records for name in records.further(record)
    )
    for get, found in ((_metric, unknown), (_besides, further)):
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
    content: Content, known: list[Axis], get: Callable[[str], Value], *names: str, title: str = ""
) -> Iterator[Lines]:
    curves: list[Line] = []
    for name in names:
        part = name if len(names) > 1 else ""
        curves += lines(content, known, get(name), part)
    values = [y for line in curves if not line.ended for y in line.y]
    if not values:
        return
    positive = min(values) > 0
    wide = positive and max(values) > 50 * min(values)
    about = records.metric(names[0])
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


def _besides(name: str) -> Value:
    return lambda record: records.besides(record, name)


def _positive(name: str) -> Value:
    """What a log axis can show: a residual that is exactly zero has no place on it."""
    return lambda record: records.besides(record, name) or None


def _residuals(content: Content, rounds: list[Axis]) -> Iterator[Panel]:
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


def _privacy(content: Content, rounds: list[Axis]) -> Iterator[Panel]:
    notes = {
        "epsilon": ("Privacy spent (ε)", "ε of (ε, δ) for every client with all its data, so far."),
        "clip": ("Clip", "The largest norm of what a client sends in a round."),
    }
    for name, (title, note) in notes.items():
        curves = lines(content, rounds, partial(records.privacy, name=name))
        if curves:
            yield Lines(name, title, note, curves)


def _work(content: Content, rounds: list[Axis]) -> Iterator[Panel]:
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
        curves = [line for line in lines(content, rounds, _besides(name)) if not line.ended]
        if curves:
            yield Lines(name, title, note, curves, zero=True)


def _clock(content: Content, rounds: list[Axis]) -> Iterator[Panel]:
    stale = clock.staleness_lines(content, rounds)
    if stale:
        note = "Server steps between a broadcast and its reply: the median so far, the band up to "
        yield Lines("staleness", "Staleness", f"{note}the largest.", stale, zero=True)
    counts, delays = clock.delay_counts(content)
    if counts:
        note = "How many replies came with each delay, in server steps."
        yield Bars("delays", "Delays", note, "replies", counts, delays, "delay")
    notes = {
        "idle": ("Idle time", "The share of the clients' time so far without work."),
        "steps_per_second": ("Server steps", "Server steps a virtual second, so far."),
    }
    for name, (title, note) in notes.items():
        curves = [line for line in lines(content, rounds, _besides(name)) if not line.ended]
        if curves:
            yield Lines(name, title, note, curves, share=name == "idle", zero=True)
    yield from clock.strips(content)


def _clients(content: Content) -> list[Panel]:
    panels: list[Panel] = []
    partition = content.partition
    if partition is not None and partition.counts:
        shown = partition.counts[:MOST_CLIENTS]
        labels = partition.labels or [str(index) for index in range(len(shown[0]))]
        values = [[float(row[label]) for row in shown] for label in range(len(shown[0]))]
        note = "How many rows of each label each client holds."
        note += _limit(len(shown), partition.clients)
        names = partition.names[:MOST_CLIENTS]
        panels.append(Heat("partition", "Partition", note, "label", "rows", labels, values, names))
    if partition is not None and partition.sizes:
        sizes = [float(size) for size in partition.sizes[:MOST_CLIENTS]]
        note = "How many rows each client holds." + _limit(len(sizes), partition.clients)
        names = partition.names[:MOST_CLIENTS]
        panels.append(Bars("sizes", "Client sizes", note, "rows", sizes, names))
    return [*panels, *_participation(content)]


def _limit(shown: int, clients: int) -> str:
    return f" The first {shown} of {clients:,} clients." if clients > shown else ""


def _participation(content: Content) -> Iterator[Panel]:
    """Bars when all methods met the same clients, else one row a method."""
    known = content.partition.clients if content.partition else 0
    highest = max(
        (
            max(records.clients(record), default=-1)
            for run in content.runs
            for record in run.records
        ),
        default=-1,
    )
    clients = max(known, highest + 1)
    counts = {label: _counts(runs, clients) for label, runs in content.labels.items()}
    counts = {label: values for label, values in counts.items() if any(values)}
    if not counts:
        return
    name, title, unit = "participation", "Participation", "rounds"
    rows = [values[:MOST_CLIENTS] for values in counts.values()]
    several = any(len(runs) > 1 for runs in content.labels.values())
    average = ", on average over the seeds" if several else ""
    note = f"How many rounds each client took part in{average}.{_limit(len(rows[0]), clients)}"
    names = content.partition.names if content.partition else []
    if all(row == rows[0] for row in rows):
        yield Bars(name, title, note, unit, rows[0], names)
    else:
        methods = [content.names[label] for label in counts]
        yield Heat(name, title, note, "method", unit, methods, rows, names)


def _counts(runs: list[RecordedRun], clients: int) -> list[float]:
    """How often each client took part, a mean over the seeds that did not diverge."""
    healthy = [run for run in runs if not run.diverged] or runs
    counts = [0] * clients
    for run in healthy:
        for record in records.rounds(run.records):
            for client in records.clients(record):
                counts[client] += 1
    return [short(count / len(healthy)) for count in counts]
