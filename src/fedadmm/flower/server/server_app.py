"""The Flower app of the server, the same as a function, and an HTTP endpoint with its status.

    GET /health     200 and a JSON object; 503 if no round completed for longer than one may take
    GET /metrics    these and more numbers in the format of Prometheus

The endpoint is off by default and listens on loopback.  It serves numbers only: no text that a
site sent, and no names except client numbers.
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

from fedadmm.core import atomic_files, clock
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
"""Folder of the sites' states in the run directory of a Flower simulation."""
log = logging.getLogger("flwr.fedadmm")
"""A logger whose lines Flower shows, also in `flwr log`."""
_PREDECESSOR = 60.0
"""Seconds that a server waits for its predecessor to end."""


def server_app(federation: Federation, callbacks: Sequence[Given] = ()) -> ServerApp:
    """Create a Flower ServerApp that runs a federation and resumes it after a restart.

    The run configuration must hold `run-dir`, the folder that receives metrics.jsonl,
    summary.json, model.safetensors and the checkpoint.  `accept-rollback`, `accept-nodes` and
    `accept-sites` may be true, `leave-out` and `take-out` name clients and `operator-key` a file,
    as in `Federation`.  `status-port` is
    a loopback port for /health and /metrics during the run; 0, the default, disables them.
    """
    from flwr.serverapp import ServerApp

    def main(grid: Grid, context: Context) -> None:
        folder = run_folder(context)
        run = configured(federation, context.run_config)
        directory = RunRecorder(folder, run)
        watched = RunMonitor(run)
        with endpoint(context, watched):
            said = partial(log_round, run.experiment.rounds)
            seen = serve(run, grid, directory.path, [directory, watched, said, *callbacks])
            directory.finish(seen)

    app = ServerApp()
    app.main()(main)
    return app


def configured(federation: Federation, config: Mapping[str, Any]) -> Federation:
    """Return the federation with the operator's settings from the run configuration."""
    given: dict[str, Any] = {}
    for name in ("accept-rollback", "accept-nodes", "accept-sites"):
        value = config.get(name, getattr(federation, name.replace("-", "_")))
        if not isinstance(value, bool):
            raise ConfigError(f"run-config: {name}: got {value!r}, expected true or false")
        given[name.replace("-", "_")] = value
    for name in ("leave-out", "take-out"):
        named = str(config.get(name, "")).replace(",", " ").split()
        if not all(one.isdecimal() and int(one) < federation.clients for one in named):
            raise ConfigError(
                f"run-config: {name}: got {config[name]!r}, expected client numbers below "
                f'{federation.clients}, as in {name}="2,5"'
            )
        field = name.replace("-", "_")
        given[field] = [*getattr(federation, field), *map(int, named)]
    given["operator_key"] = str(config.get("operator-key") or "") or federation.operator_key
    return replace(federation, **given)


def endpoint(context: Context, watched: RunMonitor) -> AbstractContextManager[object]:
    """Return the status endpoint on the port in the run configuration, or a null context."""
    port = context.run_config.get("status-port", 0)
    if type(port) is not int:
        raise ConfigError(f"run-config: status-port: got {port!r}, expected a port, or 0 for none")
    return StatusEndpoint(port, watched) if port else nullcontext()


def run_folder(context: Context) -> Path:
    """Return the run directory of the server."""
    folder = context.run_config.get("run-dir")
    if not isinstance(folder, str) or not folder:
        raise ConfigError(
            f"run-config: run-dir: got {folder!r}, expected a folder of the server, as in "
            "flwr run . NAME --run-config 'run-dir=\"/var/lib/fedadmm/run\"'"
        )
    return Path(folder)


def serve(
    federation: Federation, grid: Grid, folder: Path, callbacks: Iterable[Given] = ()
) -> DeploymentResult:
    """Run a federation over a grid, from its last checkpoint in `folder` if there is one.

    The folder is locked: of two servers on one checkpoint, each would acknowledge updates that the
    other never aggregated.  Callbacks receive the rounds; those that measure client states are
    rejected, because the states are at the sites.

    Raises:
        CompatibilityError: a callback measures client states.
        StateError: another server uses the folder, or it has another run.
    """
    chosen = as_callbacks([*callbacks, *federation.experiment.callbacks])
    for one in chosen:
        if one.measures:
            raise CompatibilityError(
                f"callbacks has {name_of(type(one))!r}, which measures on the clients' states, but "
                "a deployment keeps them at the sites; leave it out"
            )
    atomic_files.make_directory(folder)
    attachments: dict[str, Mapping[str, Any]] = {}
    if federation.train_config:
        attachments[wire.CONFIG] = federation.train_config
    if is_simulated(grid):
        attachments[wire.PLACE] = {STATE_DIR: str(folder.resolve() / SITES)}
    with Callbacks(chosen, _summary) as attached, torch.no_grad():
        with ExitStack() as held:
            try:
                held.enter_context(atomic_files.locked(folder, _PREDECESSOR))
            except StateError as error:
                raise StateError(
                    f"{error}; `flwr list` names the run that still trains, and `flwr stop` ends "
                    "it (Ctrl-C ends only the log of `flwr run --stream`)"
                ) from None
            atomic_files.remove_leftovers(folder)
            outcome = Service(federation, grid, folder, attached, attachments).run()
        attached.ended(outcome.ending, outcome)
    return outcome


def _summary(ending: Ending, outcome: DeploymentResult | None) -> dict[str, Any]:
    """Return what callbacks receive at the end of a deployed run."""
    summary: dict[str, Any] = {"code": ending.code, "status": ending.sentence}
    if outcome is not None:
        summary |= {"rounds": outcome.state.round, "network": outcome.counts}
    return summary


def is_simulated(grid: Grid) -> bool:
    """Return whether the nodes are simulated by `flwr run` on this machine."""
    # The module is loaded in simulations only, and importing it is slow.
    module = sys.modules.get("flwr.superlink.grid.inmemory_grid")
    return module is not None and isinstance(grid, module.InMemoryGrid)


def log_round(rounds: int, report: RoundReport) -> None:
    """Log a round in the log of Flower."""
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
    """By the labels between the braces."""


class RunMonitor:
    """Collects the status of a run; a callback for every round."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._lock = threading.Lock()
        self._since = clock.now()
        self._record: Record | None = None
        self._sums: Counter[str] = Counter()
        self._refusals: Counter[tuple[int, str]] = Counter()
        self._heard: dict[int, int] = {}

    def __call__(self, report: RoundReport) -> None:
        """Record a round."""
        record = report.record
        with self._lock:
            self._since, self._record = clock.now(), record
            for name in ("refused", "missing", "bytes_up", "bytes_down"):
                self._sums[name] += int(reading.additional(record, name) or 0)
            self._heard |= dict.fromkeys(reading.clients(record), record["round"])
            for event in record.get("network", {}).get("events", ()):
                self._refusals[event["client"], event["reason"]] += 1

    def health(self) -> dict[str, object]:
        """Return whether rounds complete in time."""
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
        """Return all numbers in the text format of Prometheus."""
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
            one("up", "gauge", "Whether rounds complete in time.", health["healthy"]),
            one("round", "gauge", "The last completed round.", health["round"]),
            one("rounds", "gauge", "Number of rounds of the run.", health["rounds"]),
            one(
                "quiet_seconds",
                "gauge",
                "Seconds since that round.",
                health["seconds_since_round"],
            ),
            one("clients", "gauge", "Number of clients.", self._federation.clients),
            one("participants", "gauge", "Participants of the last completed round.", took_part),
            one("refused_total", "counter", "Refused replies.", sums["refused"]),
            one("missing_total", "counter", "Missing replies.", sums["missing"]),
            one("received_bytes_total", "counter", "Bytes of uploads.", sums["bytes_up"]),
            one("sent_bytes_total", "counter", "Bytes of broadcasts.", sums["bytes_down"]),
        ]
        for name in ("loss", "test_accuracy"):
            value = None if record is None else reading.value(record, name)
            if value is not None:
                found.append(one(name, "gauge", "Value in the last completed round.", value))
        return found

    def _of_clients(self) -> list[_Gauge]:
        heard = {f'client="{c}"': float(number) for c, number in sorted(self._heard.items())}
        refused = {
            f'client="{client}",reason="{reason}"': float(count)
            for (client, reason), count in sorted(self._refusals.items())
        }
        return [
            _Gauge("client_last_round", "gauge", "Last round of the client.", heard),
            _Gauge("client_events_total", "counter", "Events by client and reason.", refused),
        ]


class StatusEndpoint(Loopback):
    """Serves a `RunMonitor` on loopback, in a thread, during a `with` statement."""

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
