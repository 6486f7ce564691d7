"""The old address of `fedadmm.study.rundir`."""

from __future__ import annotations

from fedadmm.study.rundir import (
    CONFIG,
    METRICS,
    PARTITION,
    SUMMARY,
    MetricsWriter,
    create,
    holds_run,
    read_json,
    read_metrics,
    write_json,
    write_text,
)

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
