"""Figures about single clients, and figures that compare the settings of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fedadmm.study import formatting, run_history
from fedadmm.study.report.figures import Axis, Bars, Heat, Lines, Panel, Section, short
from fedadmm.study.run_dir import RecordedRun
from fedadmm.study.study_result import StudyResult

MOST_CLIENTS = 500
"""Largest number of clients in a figure with one mark per client."""
MOST_ROWS = 100
"""Largest number of clients in a figure of participation over rounds."""
MOST_PICTURES = 4
"""Largest number of methods with their own figure of participation over rounds."""


def client_panels(content: StudyResult) -> Iterator[Panel]:
    """Yield the figures with one mark per client."""
    partition = content.partition
    if partition is not None and partition.counts:
        shown = partition.counts[:MOST_CLIENTS]
        labels = partition.labels or [str(index) for index in range(len(shown[0]))]
        values = [[float(row[label]) for row in shown] for label in range(len(shown[0]))]
        note = "How many samples of each label each client holds."
        note += _limit(len(shown), partition.clients)
        names = partition.names[:MOST_CLIENTS]
        yield Heat("partition", "Partition", note, "label", "samples", labels, values, names)
    if partition is not None and partition.sizes:
        sizes = [float(size) for size in partition.sizes[:MOST_CLIENTS]]
        by_size = partition.weights == "rows"
        weighting = "weighted by its samples" if by_size else "weighted equally"
        note = f"How many samples each client holds. In the average each client is {weighting}."
        note += _limit(len(sizes), partition.clients)
        names = partition.names[:MOST_CLIENTS]
        yield Bars("sizes", "Client sizes", note, "samples", sizes, names)
    known = partition.clients if partition else 0  # otherwise the largest participant id counts
    clients = max(known, *(run.columns.clients for run in content.runs))
    yield from _participation(content, clients)
    yield from _presence(content, clients)
    if len(content.runs) == 1:
        yield from _agreement(content)


def _agreement(content: StudyResult) -> Iterator[Panel]:
    """Yield the mean cosine of each site's last updates to the sum of the others."""
    found = content.runs[0].columns.agreement
    means = {client: sum(last) / len(last) for client, last in sorted(found.items())}
    if not means:
        return
    names = content.partition.names if content.partition else []
    labels = [names[c] if c < len(names) else str(c) for c in means]
    lowest = min(means, key=lambda client: means[client])
    label = labels[list(means).index(lowest)]
    note = (
        "The cosine of a site's update to the sum of the others', a mean over its last "
        f"{run_history.AGREEMENT_ROUNDS} updates. The lowest is that of {label}, "
        f"{means[lowest]:.2f}. A negative value may mean wrong updates, or unusual data; nothing "
        "follows from it by itself."
    )
    values = [short(one) for one in means.values()]
    yield Bars("agreement", "Agreement of each site", note, "cosine", values, labels)


def _limit(shown: int, clients: int) -> str:
    return f" The first {shown} of {clients:,} clients." if clients > shown else ""


def _participation(content: StudyResult, clients: int) -> Iterator[Panel]:
    """Yield participation counts: bars if equal for all methods, otherwise a row per method."""
    counts = {label: _counts(runs, clients) for label, runs in content.labels.items()}
    counts = {label: values for label, values in counts.items() if any(values)}
    if not counts:
        return
    name, title, unit = "participation", "Participation", "rounds"
    rows = list(counts.values())
    several = any(len(runs) > 1 for runs in content.labels.values())
    average = ", on average over the seeds" if several else ""
    note = f"Rounds in which each client participated{average}.{_limit(len(rows[0]), clients)}"
    names = content.partition.names if content.partition else []
    if all(row == rows[0] for row in rows):
        yield Bars(name, title, note, unit, rows[0], names)
    else:
        methods = [content.names[label] for label in counts]
        yield Heat(name, title, note, "method", unit, methods, rows, names)


def _counts(runs: list[RecordedRun], clients: int) -> list[float]:
    """Return the rounds of each shown client, a mean over the seeds that did not diverge."""
    healthy = [run for run in runs if not run.diverged] or runs
    counts = sum((run.columns.took_part for run in healthy), Counter[int]())
    return [short(counts[client] / len(healthy)) for client in range(min(clients, MOST_CLIENTS))]


def _presence(content: StudyResult, clients: int) -> Iterator[Panel]:
    """Yield participation by round in the first run of each method, or once if all are equal."""
    first = {label: runs[0] for label, runs in content.labels.items()}
    met = {label: run for label, run in first.items() if run.columns.took_part}
    pictures = [run.columns.cohorts for run in met.values()]
    alike = all(one == pictures[0] for one in pictures)
    for label, run in list(met.items())[: 1 if alike else MOST_PICTURES]:
        cohorts, counts = run.columns.cohorts, run.columns.took_part
        if all(counts[client] == run.tally["rounds"] for client in range(clients)):
            continue  # full participation, which the counts already show
        values = [
            [float(client in cohort) for cohort in cohorts.values()]
            for client in range(min(clients, MOST_ROWS))
        ]
        names = content.partition.names if content.partition else []
        rows = names[:MOST_ROWS] if len(names) == clients else [str(i) for i in range(len(values))]
        note = "A mark where a client participated in a round"
        note += f", with seed {content.labels[label][0].seed}." if len(content.runs) > 1 else "."
        note += _limit(len(values), clients)
        note += f" The first {len(cohorts)} rounds." if run.tally["rounds"] > len(cohorts) else ""
        name, title = "presence", "Participants by round"
        if not alike:
            name, title = f"presence-{label}", f"{title}: {content.names[label]}"
        columns = [str(number) for number in cohorts]
        yield Heat(name, title, note, "client", "", rows, values, columns, "round")


def last_values(content: StudyResult, base: str) -> Bars | Heat | None:
    """Return each client's last value of a metric: bars for one method, or a row per method."""
    found = {label: _means(runs, base) for label, runs in content.labels.items()}
    rows = {content.names[label]: values for label, values in found.items() if values}
    if not rows:
        return None
    # Clients without samples for this metric have no bar, rather than one of height zero.
    shown = sorted(set.intersection(*(set(values) for values in rows.values())))
    about = run_history.metric(base)
    several = len(content.runs) > len(content.labels)
    average = ", a mean over the seeds" if several else ""
    note = f"The last measurement on the client's own samples{average}."
    names = content.partition.names if content.partition else []
    labels = [names[client] if client < len(names) else str(client) for client in shown]
    head = (f"{base}-clients", f"{about.title} of each client", note)
    values = [[short(row[client]) for client in shown] for row in rows.values()]
    if len(rows) == 1:
        return Bars(*head, about.title.lower(), values[0], labels)
    return Heat(*head, "method", about.title.lower(), list(rows), values, labels)


def _means(runs: list[RecordedRun], base: str) -> dict[int, float]:
    """Return each client's last value, a mean over the seeds that did not diverge."""
    lists: list[list[float | None]] = []
    for run in runs:
        lists += [] if run.diverged else [run.columns.by_client.get(f"{base}_by_client", [])]
    clients = range(min(map(len, lists), default=0))
    columns = {client: [values[client] for values in lists] for client in clients}
    return {
        client: sum(one for one in column if one is not None) / len(column)
        for client, column in columns.items()
        if None not in column
    }


MOST_MULTIPLES = 36
"""Largest number of small figures in a section."""
MOST_OVERLAID = 12
"""Largest number of settings in a figure of the usual size."""


def sweep_sections(
    content: StudyResult, known: list[Axis], whole: Lines | None
) -> Iterator[Section]:
    """Yield the sections of a sweep; `whole` contains the curves of all settings."""
    metric = content.results.metric or ""
    spreads = {row.label: row.final.get(metric) for row in content.results.rows}
    # Settings that diverged have no final value.
    finals = {label: one.mean for label, one in spreads.items() if one and one.mean is not None}
    if not content.settings or not finals:
        return
    up = run_history.metric(metric).up
    best = (max if up else min)(finals, key=lambda label: finals[label])
    panels = list(_overview(content, finals))
    if panels:
        value = formatting.metric(metric, finals[best])
        note = f"The final value of each setting; the best is {best}, with {value}."
        yield Section("sweep", "Sweep", note, [], panels, [])
    if whole is not None and len(content.labels) > 1:
        multiples: list[Panel] = list(_multiples(content, whole, best))
        note = f"The same axes for every setting; the pale line is the best one, {best}."
        if len(content.labels) > len(multiples):
            note += f" The first {len(multiples)} of {len(content.labels)} settings."
        columns = len(dict.fromkeys(list(one.values())[-1] for one in content.settings.values()))
        title = f"{whole.title}, one by one"
        yield Section("multiples", title, note, known, multiples, [], min(columns, 6))


def _overview(content: StudyResult, finals: dict[str, float]) -> Iterator[Panel]:
    """Yield bars over the values of one key, or a heat map over those of two keys."""
    about = run_history.metric(content.results.metric or "")
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


def _multiples(content: StudyResult, whole: Lines, best: str) -> Iterator[Lines]:
    """Yield one small figure per setting, with the best setting as a pale reference."""
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
    """Return the limits of the vertical axis, from the values of settings that did not diverge."""
    calm = [line for line in whole.lines if not line.ended]
    values = [y for line in calm for y in (*line.y, *line.low, *line.high)]
    if whole.log:
        values = [value for value in values if value > 0]
        edge = (max(values) / min(values)) ** 0.05
        return [min(values) / edge, max(values) * edge]
    low, high = min(values), max(values)
    edge = 0.05 * (high - low or abs(high) or 1.0)
    return [low - edge, high + edge]
