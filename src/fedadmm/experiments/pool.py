"""The old address of `fedadmm.study.pool`."""

from __future__ import annotations

from fedadmm.study.pool import Event

__all__ = ["Event"]
