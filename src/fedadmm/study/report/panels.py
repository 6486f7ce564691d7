"""What the figures show: data series, built once, drawn by the page and by `drawing`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fedadmm.study.report import clock
from fedadmm.study.report.clock import Strip
from fedadmm.study.report.curves import Axis, Line, Value, axes, lines, quartile_lines, short
from fedadmm.study.report.reading import LOWER_IS_BETTER, Content, Record, Run

MOST_CLIENTS = 500
"""Figures with one mark a client show at most this many of them."""

BOOKKEEPING = {
    *("round", "participants", "clients", "epochs", "steps", "bytes_up", "bytes_down"),
    *("primal_residual", "dual_residual", "seconds", "evaluation_seconds", "virtual_time"),
    *("penalty_mean", "penalty_min", "penalty_max", "penalty_quartiles"),
    *clock.KEYS,
}
"""Keys of a record that have a figure or an axis of their own."""

NOTES = {
    "loss": "f, the weighted mean of the clients' training losses at the global model.",
    "objective": "F = f + g, the training loss with the regulariser.",
    "gradient_mapping": "Its norm is zero exactly at a stationary point of F.",
    "sparsity": "The share of the global model's parameters that are exactly zero.",
    "test_loss": "The mean loss of the global model on held-out rows.",
    "test_accuracy": "The share of held-out rows that the global model classifies rightly.",
}


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


Panel = Lines | Bars | Heat | Strip


class Section(NamedTuple):
    """Some panels under one heading; `axes` are those the reader may choose from."""

    name: str
    title: str
    note: str
    axes: list[Axis]
    panels: list[Panel]


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
        ),
        Section(
            "residuals",
            "Consensus",
            "Both residuals fall to zero when the clients agree and the global model rests.",
            rounds,
            list(_residuals(content, rounds)),
        ),
        Section(
            "work",
            "Local work",
            "What the participants of a round did.",
            rounds,
            list(_work(content, rounds)),
        ),
        Section(
            "clock",
            "Virtual time",
            "Who waited for whom.",
            rounds,
            list(_clock(content, rounds)),
        ),
        Section(
            "more",
            "Further measurements",
            "Whatever else the runs recorded.",
            rounds,
            list(_more(content, rounds)),
        ),
        Section("clients", "Clients", "Who holds what, and who took part.", [], _clients(content)),
    ]
    return [section for section in every if section.panels]


def metric_names(content: Content) -> list[str]:
    """The evaluated metrics: accuracies first, then losses, in the order they were recorded."""
    names = dict.fromkeys(
        key
        for run in content.runs
        for record in run.records
        for key, value in record.items()
        if key not in BOOKKEEPING and isinstance(value, int | float) and not isinstance(value, bool)
    )
    if not _differ(content, "loss", "objective"):
        names.pop("objective", None)
    return sorted(names, key=lambda name: ("accuracy" not in name, "loss" not in name))


def primary_metric(content: Content) -> str | None:
    """The one metric to tell a run by: the target's, else an accuracy, else a loss."""
    if content.target is not None:
        return content.target.metric
    return next(iter(metric_names(content)), None)


def pretty(name: str) -> str:
    """A metric's name as a title."""
    text = name.replace("_", " ").strip()
    return text[:1].upper() + text[1:]


def _differ(content: Content, one: str, other: str) -> bool:
    return any(
        record.get(one) != record.get(other) for run in content.runs for record in run.records
    )


def _is_learning(name: str) -> bool:
    return name in NOTES or "accuracy" in name or "loss" in name


def _learning(content: Content, known: list[Axis]) -> Iterator[Panel]:
    for name in metric_names(content):
        if _is_learning(name):
            yield from _panel(content, known, name)


def _more(content: Content, rounds: list[Axis]) -> Iterator[Panel]:
    """One panel a key; `X_bound` and `X_measured` share the panel `X`."""
    families: dict[str, list[str]] = {}
    for name in metric_names(content):
        if not _is_learning(name):
            families.setdefault(_stem(name), []).append(name)
    for stem, names in families.items():
        yield from _panel(content, rounds, *names, title=pretty(stem))


def _stem(name: str) -> str:
    for ending in ("bound", "measured"):
        if name == ending:
            return "certificate"
        if name.endswith("_" + ending):
            return name.removesuffix("_" + ending)
    return name


def _panel(
    content: Content, known: list[Axis], *names: str, title: str = "", log: bool = False
) -> Iterator[Lines]:
    curves: list[Line] = []
    for name in names:
        part = name if len(names) > 1 else ""
        curves += lines(content, known, _get(name), part)
    values = [y for line in curves if not line.ended for y in line.y]
    if not values:
        return
    positive = min(values) > 0
    wide = positive and max(values) > 50 * min(values)
    falling = bool(LOWER_IS_BETTER.search(names[0]))
    yield Lines(
        name=names[0],
        title=title or pretty(names[0]),
        note=NOTES.get(names[0], ""),
        lines=curves,
        log=positive and (log or wide or (falling and max(values) > 5 * min(values))),
        share="accuracy" in names[0] or "sparsity" in names[0],
    )


def _get(name: str) -> Value:
    return lambda record: record.get(name)


def _positive(name: str) -> Value:
    """What a log axis can show: a residual that is exactly zero has no place on it."""
    return lambda record: record.get(name) or None


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
            yield Lines(name, pretty(name), note, curves, log=True)


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
        "epochs": ("Local epochs", "Passes over its data that a participant made, on average."),
        "steps": ("Local steps", "Steps that all participants of a round made together."),
        "participants": ("Participants", "How many clients took part in each round."),
    }
    for name, (title, note) in notes.items():
        curves = [line for line in lines(content, rounds, _get(name)) if not line.ended]
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
        curves = [line for line in lines(content, rounds, _get(name)) if not line.ended]
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
        (max(_ids(record), default=-1) for run in content.runs for record in run.records),
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
        yield Heat(name, title, note, "method", unit, list(counts), rows, names)


def _counts(runs: list[Run], clients: int) -> list[float]:
    """How often each client took part, a mean over the seeds that did not diverge."""
    healthy = [run for run in runs if not run.diverged] or runs
    counts = [0] * clients
    for run in healthy:
        for record in run.records:
            for client in _ids(record):
                counts[client] += 1
    return [short(count / len(healthy)) for count in counts]


def _ids(record: Record) -> list[int]:
    ids = record.get("clients")
    return [i for i in ids if isinstance(i, int) and i >= 0] if isinstance(ids, list) else []
