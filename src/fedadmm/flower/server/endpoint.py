"""Health and metrics of a server for whoever watches it on its own machine; off by default.

    GET /health     200 and a JSON object; 503 once no round has come for longer than one may take
    GET /metrics    the same numbers and more, as Prometheus reads them

Only numbers leave: no text that a site sent, and no name but a client's number.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from functools import partial
from typing import Annotated, NamedTuple

from annotated_types import Ge, Le

from fedadmm.core import clock
from fedadmm.core.errors import ConfigError
from fedadmm.core.validation import check
from fedadmm.flower.federation import Federation
from fedadmm.run.plan import RoundReport
from fedadmm.run.record import Record
from fedadmm.study import records as reading
from fedadmm.study.serving import Answer, Loopback


class _Gauge(NamedTuple):
    name: str
    kind: str
    help: str
    values: dict[str, float]
    """By what stands between the braces."""


class Watched:
    """What is told of a run; called with the report of every round."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._lock = threading.Lock()
        self._since = clock.now()
        self._record: Record | None = None
        self._sums: Counter[str] = Counter()
        self._refusals: Counter[tuple[int, str]] = Counter()
        self._heard: dict[int, int] = {}

    def __call__(self, report: RoundReport) -> None:
        """Take note of a round."""
        record = report.record
        with self._lock:
            self._since, self._record = clock.now(), record
            for name in ("refused", "missing", "bytes_up", "bytes_down"):
                self._sums[name] += int(reading.besides(record, name) or 0)
            self._heard |= dict.fromkeys(reading.clients(record), reading.number(record))
            for event in record.get("network", {}).get("events", ()):
                self._refusals[event["client"], event["word"]] += 1

    def health(self) -> dict[str, object]:
        """Whether rounds come as they should."""
        patience = self._federation.patience
        with self._lock:
            quiet = clock.now() - self._since
            number = reading.number(self._record) if self._record is not None else 0
        return {
            "healthy": quiet <= patience.start + 2 * patience.round,
            "round": number,
            "rounds": self._federation.experiment.rounds,
            "seconds_since_round": round(quiet, 1),
        }

    def metrics(self) -> str:
        """Everything in Prometheus' text format."""
        health = self.health()
        with self._lock:
            gauges = [*self._run(health), *self._of_clients()]
        lines = []
        for gauge in gauges:
            lines += [f"# HELP fedadmm_{gauge.name} {gauge.help}"]
            lines += [f"# TYPE fedadmm_{gauge.name} {gauge.kind}"]
            for labels, value in gauge.values.items():
                lines.append(
                    f"fedadmm_{gauge.name}{f'{{{labels}}}' if labels else ''} {value:.17g}"
                )
        return "\n".join(lines) + "\n"

    def _run(self, health: dict[str, object]) -> list[_Gauge]:
        def one(name: str, kind: str, what: str, value: object) -> _Gauge:
            return _Gauge(name, kind, what, {"": float(value)})  # type: ignore[arg-type]

        record, sums = self._record, self._sums
        took_part = 0 if record is None else len(reading.clients(record))
        found = [
            one("up", "gauge", "Whether rounds come as they should.", health["healthy"]),
            one("round", "gauge", "The last round that is complete.", health["round"]),
            one("rounds", "gauge", "How many there will be at least.", health["rounds"]),
            one("quiet_seconds", "gauge", "Since that round.", health["seconds_since_round"]),
            one("clients", "gauge", "Sites of the federation.", self._federation.clients),
            one("participants", "gauge", "Of that round.", took_part),
            one("refused_total", "counter", "Replies that were refused.", sums["refused"]),
            one("missing_total", "counter", "Replies that did not come.", sums["missing"]),
            one("received_bytes_total", "counter", "Of uploads.", sums["bytes_up"]),
            one("sent_bytes_total", "counter", "Of broadcasts.", sums["bytes_down"]),
        ]
        for name in ("loss", "test_accuracy"):
            value = None if record is None else reading.value(record, name)
            if value is not None:
                found.append(one(name, "gauge", "As that round measured it.", value))
        return found

    def _of_clients(self) -> list[_Gauge]:
        heard = {f'client="{c}"': float(number) for c, number in sorted(self._heard.items())}
        refused = {
            f'client="{client}",word="{word}"': float(count)
            for (client, word), count in sorted(self._refusals.items())
        }
        return [
            _Gauge("client_last_round", "gauge", "The last round it took part in.", heard),
            _Gauge("client_events_total", "counter", "What became of its replies.", refused),
        ]


class Endpoint(Loopback):
    """Serves a `Watched` on loopback, in a thread, while a `with` statement lasts."""

    def __init__(self, port: int, watched: Watched) -> None:
        check("run-config", "status-port", port, Annotated[int, Ge(1), Le(65535)])
        try:
            super().__init__(port, partial(_answer, watched))
        except OSError as error:
            raise ConfigError(
                f"run-config: status-port is {port}, but nothing can listen there "
                f"({error.strerror})"
            ) from None


def _answer(watched: Watched, path: str) -> Answer:
    if path == "/health":
        found = watched.health()
        code = 200 if found["healthy"] else 503
        return Answer(code, "application/json", json.dumps(found).encode())
    if path == "/metrics":
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Answer(200, kind, watched.metrics().encode())
    return Answer(404, "text/plain", b"there are /health and /metrics\n")
