"""The old address of `fedadmm.study.report`."""

from __future__ import annotations

from fedadmm.study.report import write_report

__all__ = ["write_report"]
