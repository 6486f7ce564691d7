"""What a configuration chooses: the options of an engine, which start it when they are called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from fedadmm.engines.job import Job
from fedadmm.protocols import ClientStateStore, Engine


class EngineChoice(ABC):
    """The options of an engine, a frozen dataclass."""

    name: ClassVar[str]
    """The name in configurations and on the command line."""
    shapes_the_run: ClassVar[bool] = False
    """Whether its options change the result, and not only how fast it is computed."""
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

    @abstractmethod
    def __call__(self, job: Job, store: ClientStateStore) -> Engine:
        """Start the engine."""
