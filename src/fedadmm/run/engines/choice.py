"""The choice of an engine: its options, and what others may ask of it before it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from fedadmm.core.parts import role
from fedadmm.core.protocols import ClientRecords, Engine
from fedadmm.run.client import Job


@role("engine")
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

    def keeps_to_one_core(self, threads: int | Literal["auto"]) -> bool:
        """Whether a run with these threads leaves the other cores free, for others beside it."""
        return False

    def expected_delay(self, clients: int) -> int | None:
        """About how many server steps a reply is late, 0 where none ever is; None with rounds."""
        return None

    @abstractmethod
    def start(self, job: Job, store: ClientRecords) -> Engine:
        """Start the engine, or refuse a job that it cannot run."""
