"""The server's Flower app, the same as a function, and its health for whoever watches it.

    GET /health     200 and a JSON object; 503 once no round has come for longer than one may take
    GET /metrics    the same numbers and more, as Prometheus reads them

The endpoint is off by default and listens on loopback.  Only numbers leave: no text that a site
sent, and no name but a client's number.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from annotated_types import Ge, Le

from fedadmm.core import clock, files
from fedadmm.core.errors import CompatibilityError, ConfigError, StateError
from fedadmm.core.parts import name_of
from fedadmm.core.validation import check
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol import wire
from fedadmm.flower.server.run_recorder import RunRecorder
from fedadmm.flower.server.service import DeploymentResult, Service
from fedadmm.flower.site.app import STATE_DIR
from fedadmm.run.callbacks import Callbacks, Given, as_callbacks
from fedadmm.run.record import Record
from fedadmm.run.state import Ending, RoundReport
from fedadmm.study import run_history as reading
from fedadmm.study.report.live import Answer, Loopback

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp


SITES = "sites"
"""Where the run directory of a simulation keeps the sites' state."""
log = logging.getLogger("flwr.fedadmm")
"""What Flower shows with its own lines, also in `flwr log`."""
_PREDECESSOR = 60.0
"""Seconds that a server waits for the one before it to end."""


def server_app(federation: Federation, callbacks: Sequence[Given] = ()) -> ServerApp:
    """A Flower ServerApp that runs a federation, and resumes it when it is started again.

    The run configuration must hold `run-dir`, the folder that receives metrics.jsonl,
    summary.json, model.safetensors and the checkpoint.  `accept-rollback`, `accept-nodes` and
    `accept-sites` may be true, `leave-out` and `take-out` name clients and `operator-key` a file,
    as in `Federation`.  `status-port` is
    the port of this machine's loopback on which /health and /metrics are answered while the run
    goes on, and 0, the default, is none.
    """
    from flwr.serverapp import ServerApp

    def main(grid: Grid, context: Context) -> None:
        directory = RunRecorder(run_folder(context))
        run = configured(federation, context.run_config)
        watched = RunMonitor(run)
        with endpoint(context, watched):
            said = partial(log_round, run.experiment.rounds)
            seen = serve(run, grid, directory.path, [directory, watched, said, *callbacks])
            directory.finish(seen)

    app = ServerApp()
    app.main()(main)
    return app


def configured(federation: Federation, config: Mapping[str, Any]) -> Federation:
    """The federation with what the operator says in the run configuration."""
    words: dict[str, Any] = {}
    for name in ("accept-rollback", "accept-nodes", "accept-sites"):
        word = config.get(name, getattr(federation, name.replace("-", "_")))
        if not isinstance(word, bool):
            raise ConfigError(f"run-config: {name} is {word!r}, but must be true or false")
        words[name.replace("-", "_")] = word
    for name in ("leave-out", "take-out"):
        named = str(config.get(name, "")).replace(",", " ").split()
        if not all(one.isdecimal() and int(one) < federation.clients for one in named):
            raise ConfigError(
                f"run-config: {name} is {config[name]!r}, but must be client numbers below "
                f'{federation.clients}, as in {name}="2,5"'
            )
        field = name.replace("-", "_")
        words[field] = [*getattr(federation, field), *map(int, named)]
    words["operator_key"] = str(config.get("operator-key") or "") or federation.operator_key
    return replace(federation, **words)


def endpoint(context: Context, watched: RunMonitor) -> AbstractContextManager[object]:
    """What answers on the port that the run configuration names, or nothing."""
    port = context.run_config.get("status-port", 0)
    if type(port) is not int:
        raise ConfigError(f"run-config: status-port is {port!r}, but must be a port, or 0 for none")
    return StatusEndpoint(port, watched) if port else nullcontext()


def run_folder(context: Context) -> Path:
    """Where the server keeps the run."""
    folder = context.run_config.get("run-dir")
    if not isinstance(folder, str) or not folder:
        raise ConfigError(
            f"run-config: run-dir is {folder!r}, but must be a folder of the server, as in "
            "flwr run . NAME --run-config 'run-dir=\"/var/lib/fedadmm/run\"'"
        )
    return Path(folder)


def serve(
    federation: Federation, grid: Grid, folder: Path, callbacks: Iterable[Given] = ()
) -> DeploymentResult:
    """Run a federation over a grid, from its last checkpoint in `folder` if there is one.

    Two servers on one checkpoint would acknowledge what the other never folded: the second waits,
    and is refused.  Callbacks look at the rounds; none of them can measure here, because the
    clients' states are at the sites.
    """
    chosen = as_callbacks(callbacks)
    for one in chosen:
        if one.measures:
            raise CompatibilityError(
                f"callbacks has {name_of(type(one))!r}, which measures on the clients' states, but "
                "a deployment keeps them at the sites; leave it out"
            )
    files.make_directory(folder)
    beside: dict[str, Mapping[str, Any]] = {}
    if federation.train_config:
        beside[wire.CONFIG] = federation.train_config
    if is_simulated(grid):
        beside[wire.PLACE] = {STATE_DIR: str(folder.resolve() / SITES)}
    with Callbacks(chosen, _summary) as attached, torch.no_grad():
        with ExitStack() as held:
            try:
                held.enter_context(files.locked(folder, _PREDECESSOR))
            except StateError as error:
                raise StateError(
                    f"{error}; `flwr list` names the run that still trains, and `flwr stop` ends "
                    "it (Ctrl-C ends only the log of `flwr run --stream`)"
                ) from None
            files.remove_leftovers(folder)
            outcome = Service(federation, grid, folder, attached, beside).run()
        attached.ended(outcome.ending, outcome)
    return outcome


def _summary(ending: Ending, outcome: DeploymentResult | None) -> dict[str, Any]:
    """What callbacks learn at the end of a deployed run."""
    told: dict[str, Any] = {"code": ending.code, "status": ending.sentence}
    if outcome is not None:
        told |= {"rounds": outcome.state.round, "network": outcome.counts}
    return told


def is_simulated(grid: Grid) -> bool:
    """Whether the nodes are made up by `flwr run` on this machine, and have no folders."""
    # The module is loaded where somebody simulates, and expensive to load elsewhere.
    module = sys.modules.get("flwr.superlink.grid.inmemory_grid")
    return module is not None and isinstance(grid, module.InMemoryGrid)


def log_round(rounds: int, report: RoundReport) -> None:
    """Say how a round went, where Flower says such things."""
    record = report.record
    metrics = "".join(f", {name} {value:.4g}" for name, value in record["metrics"].items())
    seconds, clients = record["clock"]["seconds"], record["cohort"]["participants"]
    text = f"round {record['round']} of {rounds}: {clients} clients{metrics} ({seconds:.1f} s)"
    log.info(text)


class _Gauge(NamedTuple):
    name: str
    kind: str
    help: str
    values: dict[str, float]
    """By what stands between the braces."""


class RunMonitor:
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
            self._heard |= dict.fromkeys(reading.clients(record), record["round"])
            for event in record.get("network", {}).get("events", ()):
                self._refusals[event["client"], event["reason"]] += 1

    def health(self) -> dict[str, object]:
        """Whether rounds come as they should."""
        patience = self._federation.patience
        with self._lock:
            quiet = clock.now() - self._since
            number = self._record["round"] if self._record is not None else 0
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
            f'client="{client}",reason="{reason}"': float(count)
            for (client, reason), count in sorted(self._refusals.items())
        }
        return [
            _Gauge("client_last_round", "gauge", "The last round it took part in.", heard),
            _Gauge("client_events_total", "counter", "What became of its replies.", refused),
        ]


class StatusEndpoint(Loopback):
    """Serves a `RunMonitor` on loopback, in a thread, while a `with` statement lasts."""

    def __init__(self, port: int, watched: RunMonitor) -> None:
        check("run-config", "status-port", port, Annotated[int, Ge(1), Le(65535)])
        try:
            super().__init__(port, partial(_answer, watched))
        except OSError as error:
            raise ConfigError(
                f"run-config: status-port is {port}, but nothing can listen there "
                f"({error.strerror})"
            ) from None


def _answer(watched: RunMonitor, path: str) -> Answer:
    if path == "/health":
        found = watched.health()
        code = 200 if found["healthy"] else 503
        return Answer(code, "application/json", json.dumps(found).encode())
    if path == "/metrics":
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Answer(200, kind, watched.metrics().encode())
    return Answer(404, "text/plain", b"there are /health and /metrics\n")
