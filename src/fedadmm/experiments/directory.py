"""The old address of `fedadmm.study.rundir`."""

from __future__ import annotations

from pathlib import Path

from fedadmm.round import Record, RoundReport
from fedadmm.study.rundir import (
    CONFIG,
    METRICS,
    PARTITION,
    SUMMARY,
    RunDir,
    create,
    read_json,
    write_json,
    write_text,
)


def holds_run(directory: Path) -> bool:
    """Whether a folder is a run directory."""
    return RunDir(directory).holds_run


def read_metrics(directory: Path) -> list[Record]:
    """The records so far."""
    return RunDir(directory).records()


class MetricsWriter:
    """An observer that appends every round to metrics.jsonl."""

    def __init__(self, directory: Path) -> None:
        self._directory = RunDir(directory)

    def __call__(self, report: RoundReport) -> None:
        """Append and flush one line."""
        self._directory.append(report.record)

    def close(self) -> None:
        """Close the file."""
        self._directory.close()


__all__ = [
    "CONFIG",
    "METRICS",
    "PARTITION",
    "SUMMARY",
    "MetricsWriter",
    "create",
    "holds_run",
    "read_json",
    "read_metrics",
    "write_json",
    "write_text",
]
