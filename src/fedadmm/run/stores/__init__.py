"""Where client state is kept between rounds, and how a run survives its process."""

from __future__ import annotations

from fedadmm.core.codec import params_sha256
from fedadmm.run.checkpoint import Checkpoint, Checkpoints
from fedadmm.run.stores.disk import DiskStore
from fedadmm.run.stores.memory import MemoryStore

__all__ = ["Checkpoint", "Checkpoints", "DiskStore", "MemoryStore", "params_sha256"]
