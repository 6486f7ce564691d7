"""The old address of `fedadmm.study.loading`."""

from __future__ import annotations

from fedadmm.study.loading import assign, merged, parse, read, run_only, write

__all__ = ["assign", "merged", "parse", "read", "run_only", "write"]
