"""The old address of `fedadmm.study.running`."""

from __future__ import annotations

from fedadmm.study.running import initial_vector

__all__ = ["initial_vector"]
