"""What the figures show of single clients: what they hold, when they took part, how they fare."""

from __future__ import annotations

from collections.abc import Iterator

from fedadmm.study import records
from fedadmm.study.report.figures import Bars, Heat, Panel, short
from fedadmm.study.results import Outcome
from fedadmm.study.rundir import RecordedRun

MOST_CLIENTS = 500
"""Figures with one mark a client show at most this many of them."""
MOST_ROWS, MOST_ROUNDS = 100, 200
"""This many clients and rounds fit into a picture of who took part when."""
MOST_PICTURES = 4


def client_panels(content: Outcome) -> Iterator[Panel]:
    """Every figure with a mark per client."""
    partition = content.partition
    if partition is not None and partition.counts:
        shown = partition.counts[:MOST_CLIENTS]
        labels = partition.labels or [str(index) for index in range(len(shown[0]))]
        values = [[float(row[label]) for row in shown] for label in range(len(shown[0]))]
        note = "How many rows of each label each client holds."
        note += _limit(len(shown), partition.clients)
        names = partition.names[:MOST_CLIENTS]
        yield Heat("partition", "Partition", note, "label", "rows", labels, values, names)
    if partition is not None and partition.sizes:
        sizes = [float(size) for size in partition.sizes[:MOST_CLIENTS]]
        note = "How many rows each client holds." + _limit(len(sizes), partition.clients)
        names = partition.names[:MOST_CLIENTS]
        yield Bars("sizes", "Client sizes", note, "rows", sizes, names)
    known = partition.clients if partition else 0  # or as many as took part
    seen = (i for run in content.runs for record in run.records for i in records.clients(record))
    clients = max(known, max(seen, default=-1) + 1)
    yield from _participation(content, clients)
    yield from _presence(content, clients)


def _limit(shown: int, clients: int) -> str:
    return f" The first {shown} of {clients:,} clients." if clients > shown else ""


def _participation(content: Outcome, clients: int) -> Iterator[Panel]:
    """Bars when all methods met the same clients, else one row a method."""
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


def _presence(content: Outcome, clients: int) -> Iterator[Panel]:
    """Who took part when, in the first run of each method; once where all met the same clients."""
    met = {
        label: {r["round"]: frozenset(records.clients(r)) for r in records.rounds(runs[0].records)}
        for label, runs in content.labels.items()
    }
    met = {label: cohorts for label, cohorts in met.items() if any(cohorts.values())}
    alike = all(cohorts == next(iter(met.values())) for cohorts in met.values())
    for label, cohorts in list(met.items())[: 1 if alike else MOST_PICTURES]:
        if all(len(cohort) == clients for cohort in cohorts.values()):
            continue  # everybody in every round, which the participation says
        shown = list(cohorts)[:MOST_ROUNDS]
        values = [
            [float(client in cohorts[number]) for number in shown]
            for client in range(min(clients, MOST_ROWS))
        ]
        names = content.partition.names if content.partition else []
        rows = names[:MOST_ROWS] if len(names) == clients else [str(i) for i in range(len(values))]
        note = "A mark where a client took part in a round"
        note += f", with seed {content.labels[label][0].seed}." if len(content.runs) > 1 else "."
        note += _limit(len(values), clients)
        note += f" The first {len(shown)} rounds." if len(cohorts) > len(shown) else ""
        name, title = "presence", "Who took part when"
        if not alike:
            name, title = f"presence-{label}", f"{title}: {content.names[label]}"
        columns = [str(number) for number in shown]
        yield Heat(name, title, note, "client", "", rows, values, columns, "round")


def last_values(content: Outcome, base: str) -> Bars | Heat | None:
    """Each client's last value of a metric: bars for one method, else one row a method."""
    found = {label: _means(runs, base) for label, runs in content.labels.items()}
    rows = {content.names[label]: values for label, values in found.items() if values}
    if not rows:
        return None
    # Clients without rows to measure on have no bar, rather than one of height zero.
    shown = sorted(set.intersection(*(set(values) for values in rows.values())))
    about = records.metric(base)
    several = len(content.runs) > len(content.labels)
    note = f"The last measurement on its own rows{', a mean over the seeds' if several else ''}."
    names = content.partition.names if content.partition else []
    labels = [names[client] if client < len(names) else str(client) for client in shown]
    head = (f"{base}-clients", f"{about.title} of each client", note)
    values = [[short(row[client]) for client in shown] for row in rows.values()]
    if len(rows) == 1:
        return Bars(*head, about.title.lower(), values[0], labels)
    return Heat(*head, "method", about.title.lower(), list(rows), values, labels)


def _means(runs: list[RecordedRun], base: str) -> dict[int, float]:
    """Client -> its last value, a mean over the seeds that did not diverge."""
    lists: list[list[float | None]] = []
    for run in runs:
        found = (records.by_client(record).get(base) for record in reversed(run.records))
        lists += [] if run.diverged else [next(filter(None, found), [])]
    clients = range(min(map(len, lists), default=0))
    columns = {client: [values[client] for values in lists] for client in clients}
    return {
        client: sum(one for one in column if one is not None) / len(column)
        for client, column in columns.items()
        if None not in column
    }
