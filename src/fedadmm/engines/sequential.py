"""One client after the other in this process: the reference that other engines must equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedadmm.engines.choice import EngineChoice
from fedadmm.engines.job import Job, run_client
from fedadmm.protocols import ClientInfo, ClientStateStore, Download, Engine, Upload


@dataclass(frozen=True)
class Sequential(EngineChoice):
    """The choice of the sequential engine; call it to start one."""

    name: ClassVar[str] = "sequential"

    @property
    def keeps_to_one_core(self) -> bool:
        """Always."""
        return True

    def __call__(self, job: Job, store: ClientStateStore) -> Engine:
        """Start the engine."""
        return SequentialEngine(job, store)


class SequentialEngine:
    """Runs clients one by one."""

    def __init__(self, job: Job, store: ClientStateStore) -> None:
        self._job = job
        self._store = store

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        """Each client's upload, in the order of `ids`."""
        for client in ids:
            upload, info = run_client(self._job, self._store, client, download, round_index)
            yield client, upload, info

    def close(self) -> None:
        """Nothing to give back."""
