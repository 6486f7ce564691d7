"""The old address of `fedadmm.study.summary`."""

from __future__ import annotations

from fedadmm.study.summary import Summary, partition_of, summarise

__all__ = ["Summary", "partition_of", "summarise"]
