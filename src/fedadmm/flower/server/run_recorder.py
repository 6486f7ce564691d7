"""The files of a deployed run: those of a simulation, and the events on the network."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import fedadmm
from fedadmm.core import atomic_files, clock
from fedadmm.core.codec import params_sha256
from fedadmm.core.errors import DataError
from fedadmm.core.outputs import Iterate
from fedadmm.flower.protocol.ledger import RefusalReason, RefusedError
from fedadmm.run.round_callbacks import BEST
from fedadmm.run.state import RoundReport
from fedadmm.study.run_dir import RunDir, create
from fedadmm.study.run_history import RUNNING, best_model

if TYPE_CHECKING:
    from fedadmm.flower.federation import Federation
    from fedadmm.flower.server.service import DeploymentResult


EVENTS, WAITING = "events.jsonl", "waiting.json"


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the events so far; an incomplete last line is skipped."""
    lines = (atomic_files.read_if_there(path / EVENTS) or b"").split(b"\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        raise DataError(f"{path / EVENTS}: holds a line that is no event") from None


def _is_event(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


class RunRecorder:
    """Callback that appends every round to metrics.jsonl and writes the summary at the end.

    Refused, missing, lost and repaired replies are in events.jsonl, one line per event.  A resumed
    run continues from its checkpoint; the records of later rounds are replaced.

    Args:
        path: The run directory.
        federation: Names method and data of a run without a config.toml in its pages.
    """

    def __init__(self, path: Path, federation: Federation | None = None) -> None:
        create(path)
        self.path = path
        self._folder = RunDir(path)
        # Raises for records of another version, before any site is asked.
        self.rounds = len(self._folder.records())
        """Number of rounds on disk."""
        self._begun = False
        self._about: dict[str, Any] = {}
        if federation is not None:
            method = federation.experiment.algorithm
            self._about = {
                "algorithm": method.name,
                "method": method.title,
                "problem": f"the data of {federation.clients} sites",
            }

    def __call__(self, report: RoundReport) -> None:
        """Append one round."""
        if not self._begun:
            self._folder.keep(report.record["round"] - 1)
            self._repair_events()
            if about := self._about | self._ended():
                self._folder.close({**about, "code": RUNNING, "status": "running"})
            self._begun = True
        network = dict(report.record.get("network", {}))
        self._note(network.pop("events", []))
        at = {"at": clock.timestamp()}
        record = report.record | {"network": network, "clock": report.record["clock"] | at}
        self._folder.append(record, durable=True)  # its checkpoint follows

    def _repair_events(self) -> None:
        """Remove a line that a crash left incomplete, before anything is appended."""
        data = atomic_files.read_if_there(self.path / EVENTS) or b""
        lines = [line for line in data.splitlines(keepends=True) if _is_event(line)]
        if b"".join(lines) != data:
            atomic_files.write(self.path / EVENTS, b"".join(lines))

    def _note(self, events: Sequence[dict[str, Any]]) -> None:
        if events:
            lines = "".join(json.dumps(event) + "\n" for event in events)
            atomic_files.append(self.path / EVENTS, lines.encode())

    def _ended(self) -> dict[str, Any]:
        """Return the summary of a completed run, which continues with more rounds, or nothing."""
        try:
            return self._folder.finished() or {}
        except DataError as error:  # nothing of the run depends on it
            _logger.warning("%s; the summary is written again", error)
            return {}

    def finish(
        self, outcome: DeploymentResult, extra: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Write the model and the summary."""
        best, last = outcome.state.components.get(BEST), Iterate(outcome.params, outcome.buffers)
        self._folder.write_model(best, last)
        summary = (
            self._about
            | {
                "status": outcome.ending.sentence,
                "code": outcome.ending.code,
                "rounds": outcome.state.round,
                "best": best_model(best),
                "fitted": outcome.fitted,
                "params_sha256": params_sha256(outcome.params),
                "network": outcome.counts,
                "fedadmm_version": fedadmm.__version__,
                "created": clock.timestamp(),
            }
            | (extra or {})
        )
        self._folder.close(summary)
        return summary


_logger = logging.getLogger("fedadmm")


class NetworkEvent(NamedTuple):
    """An event of one client on the network."""

    sequence: int
    client: int
    reason: str
    detail: str
    at: str
    """The time as text."""


class EventLog:
    """Counts and collects refused, missing, lost and repaired replies."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._fresh: list[NetworkEvent] = []

    def note(self, sequence: int, client: int, why: RefusedError) -> None:
        """Count, collect and log an event."""
        self.counts[str(why.reason)] += 1
        self._fresh.append(
            NetworkEvent(sequence, client, str(why.reason), why.detail, clock.timestamp())
        )
        _logger.warning("round %d, client %d: %s", sequence + 1, client, why)

    def count(self, reason: RefusalReason) -> None:
        """Count a reply that is not reported as an event."""
        self.counts[str(reason)] += 1

    def take(self) -> Sequence[NetworkEvent]:
        """Return the events since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh
