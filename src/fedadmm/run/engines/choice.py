"""The choice of an engine: its options, and what others may ask of it before it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

from fedadmm.core.messages import ClientRecords, Engine
from fedadmm.core.parts import Part, role
from fedadmm.core.setup import Setup
from fedadmm.run.client import Job


@role("engine")
class EngineChoice(Part, ABC):
    """A frozen dataclass of options that starts its engine when a run begins."""

    shapes_the_run: ClassVar[bool] = False
    """Whether the options change the result, not only how fast it is computed."""
    needs_disk: ClassVar[bool] = False
    """Whether client state is where the clients are, so that the default store is one on disk."""

    def refuses(self, setup: Setup) -> Iterator[str]:
        """A method without rounds where there are rounds, and the other way round."""
        algorithm, engine = setup.algorithm, type(self).__name__
        method, asynchronous = type(algorithm).__name__, self.is_asynchronous
        if algorithm.asynchronous and not asynchronous:
            yield (
                f"{method} folds every reply as it arrives, but the engine {engine} works in "
                "rounds; use VirtualTime(mode='async') or GivenDelays, or else a method with rounds"
            )
        if asynchronous and not algorithm.accepts_partial:
            yield (
                f"{method} needs all clients in every round, but {engine} folds replies without "
                "rounds; use an engine with rounds, such as VirtualTime(mode='sync')"
            )
        late = asynchronous and self.expected_delay(setup.problem.num_clients) != 0
        if late and not algorithm.tolerates_stale:
            yield (
                f"{engine} folds replies as they arrive, but {algorithm.no_late_replies()}, or an "
                "engine with rounds, such as VirtualTime(mode='sync')"
            )

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
