"""Where client state is kept between rounds."""

from __future__ import annotations

from fedadmm.state.memory import MemoryStore

__all__ = ["MemoryStore"]
