"""What a deployed run writes: the same files as a simulated one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedadmm
from fedadmm.errors import DataError
from fedadmm.experiments import directory as files
from fedadmm.round import RoundReport
from fedadmm.state.digest import params_sha256
from fedadmm.state.files import Contents, write_tensors

if TYPE_CHECKING:
    from fedadmm.flower.server.service import Outcome

MODEL, EVENTS = "model.safetensors", "events.jsonl"


def read_events(path: Path) -> list[dict[str, Any]]:
    """What was refused, missing, lost or repaired so far; a line that is not whole is left out."""
    try:
        lines = (path / EVENTS).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    try:
        return [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        raise DataError(f"{path / EVENTS}: holds a line that is no event") from None


class RunDirectory:
    """An observer that appends to metrics.jsonl, and writes the summary at the end.

    What was refused, missing, lost or repaired stands in events.jsonl, one line an event.

    A resumed run goes on where its checkpoint stands: records beyond it are made again.
    """

    def __init__(self, path: Path) -> None:
        files.create(path)
        self.path = path
        self._writer: files.MetricsWriter | None = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def __call__(self, report: RoundReport) -> None:
        """Append one round."""
        if self._writer is None:
            self._keep_before(report.record["round"])
            self._writer = files.MetricsWriter(self.path)
        record = dict(report.record)
        self._note(record.pop("events", []))
        self._writer(report._replace(record=record))

    def _note(self, events: Sequence[dict[str, Any]]) -> None:
        if events:
            with (self.path / EVENTS).open("a", encoding="utf-8") as stream:
                stream.writelines(json.dumps(event) + "\n" for event in events)

    def _keep_before(self, number: int) -> None:
        done = [record for record in files.read_metrics(self.path) if record["round"] < number]
        lines = [json.dumps(record, allow_nan=False) + "\n" for record in done]
        files.write_text(self.path / files.METRICS, "".join(lines))

    def finish(self, outcome: Outcome, extra: dict[str, Any] | None = None) -> dict[str, Any]:
        """Leave the model and the summary."""
        write_tensors(
            self.path / MODEL, Contents({"params": outcome.params.clone()}, {}), durable=True
        )
        summary = {
            "status": outcome.ending.sentence,
            "code": outcome.ending.code,
            "rounds": outcome.state.round,
            "params_sha256": params_sha256(outcome.params),
            "network": outcome.counts,
            "fedadmm_version": fedadmm.__version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        } | (extra or {})
        files.write_json(self.path / files.SUMMARY, summary)
        return summary
