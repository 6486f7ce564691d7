"""What the figures show of single clients: how well each of them is served."""

from __future__ import annotations

from fedadmm.study import records
from fedadmm.study.recorded import RecordedRun
from fedadmm.study.report.content import Content
from fedadmm.study.report.curves import short
from fedadmm.study.report.figures import Bars, Heat


def last_values(content: Content, base: str) -> Bars | Heat | None:
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
    lists = [_last(run, base) for run in runs if not run.diverged]
    clients = range(min(map(len, lists), default=0))
    columns = {client: [values[client] for values in lists] for client in clients}
    return {
        client: sum(one for one in column if one is not None) / len(column)
        for client, column in columns.items()
        if None not in column
    }


def _last(run: RecordedRun, base: str) -> list[float | None]:
    found = (records.by_client(record).get(base) for record in reversed(run.records))
    return next((values for values in found if values), [])
