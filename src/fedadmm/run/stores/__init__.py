"""Stores of the clients' states between rounds."""

from __future__ import annotations

from fedadmm.core.codec import params_sha256 as params_sha256
from fedadmm.run.stores.disk import DiskStore as DiskStore
from fedadmm.run.stores.records import MemoryStore as MemoryStore
