"""The choice of an engine: its options, and what others may ask of it before it runs.

The sequential engine stands here as well: it is the reference that all others must equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from fedadmm.core.parts import part
from fedadmm.core.protocols import ClientInfo, ClientRecords, Download, Engine, Upload
from fedadmm.run.client import Job, run_client


class EngineChoice(ABC):
    """A frozen dataclass of options that starts its engine when a run begins."""

    name: ClassVar[str]
    """The name in configurations and on the command line."""
    shapes_the_run: ClassVar[bool] = False
    """Whether the options change the result, not only how fast it is computed."""
    needs_disk: ClassVar[bool] = False
    """Whether client state is where the clients are, so that the default store is one on disk."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether replies are folded as they arrive, without rounds."""
        return False

    @property
    def keeps_to_one_core(self) -> bool:
        """Whether a run leaves the other cores free, so that several fit side by side."""
        return False

    def expected_delay(self, clients: int) -> int | None:
        """About how many server steps a reply is late; None with rounds."""
        return None

    @abstractmethod
    def start(self, job: Job, store: ClientRecords) -> Engine:
        """Start the engine, or refuse a job that it cannot run."""


@part("engine", "sequential")
class Sequential(EngineChoice):
    """The choice of the sequential engine."""

    def start(self, job: Job, store: ClientRecords) -> Engine:
        """Start the engine."""
        return SequentialEngine(job, store)


class SequentialEngine(Engine):
    """Runs one client after the other in this process."""

    def __init__(self, job: Job, store: ClientRecords) -> None:
        self._job = job
        self._store = store

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        """Each client's upload, in the order of `ids`."""
        for client in ids:
            upload, info = run_client(self._job, self._store, client, download, round_index)
            yield client, upload, info
