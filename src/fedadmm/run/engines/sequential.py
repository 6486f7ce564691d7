"""One client after the other in this process: the reference that other engines must equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from fedadmm.core.messages import ClientInfo, ClientRecords, Download, Engine, Upload
from fedadmm.core.parts import part
from fedadmm.run.client import Job, run_client
from fedadmm.run.engines.choice import EngineChoice


@part("engine", "sequential")
class Sequential(EngineChoice):
    """The choice of the sequential engine."""

    def start(self, job: Job, store: ClientRecords) -> Engine:
        return SequentialEngine(job, store)

    def keeps_to_one_core(self, threads: int | Literal["auto"]) -> bool:
        return threads == 1


class SequentialEngine(Engine):
    """Runs clients one by one."""

    def __init__(self, job: Job, store: ClientRecords) -> None:
        self._job = job
        self._store = store

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        for client in ids:
            upload, info = run_client(self._job, self._store, client, download, round_index)
            yield client, upload, info
