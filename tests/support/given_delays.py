"""Server steps under a given law of who replies and how late (FedDR's Assumption 4.1).

In step k the sampler draws who replies, and each of them a delay d, uniform on 0 ... max_delay: it
works from the model of step k - d, on its own newest state, and its reply is folded at once.  So
the constants of the asynchronous theorem are set, not measured: tau is `max_delay`, and the window
T and the least probability are the sampler's.  Nothing here has a duration; `VirtualTime` is the
engine where delays come from how long work takes.

A client works on one model at a time: it cannot have read its model before its last reply, and a
longer delay is cut there (the assumption's d_{i_k} = 0).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from fedadmm.core.messages import ClientInfo, ClientRecords, Download, Engine, EngineState, Upload
from fedadmm.core.parts import Natural, check_one_each, part
from fedadmm.core.rng import derive, numpy_generator
from fedadmm.core.schedules import of_client
from fedadmm.run.client import Job, run_client
from fedadmm.run.engines.choice import EngineChoice
from fedadmm.run.engines.staleness import Staleness


@part("engine", "given-delays")
class GivenDelays(EngineChoice):
    """The choice of the engine whose delays are drawn from a given law.

    Args:
        max_delay: tau, the largest delay in server steps: one number, or one per client; a
            client's delays are uniform on 0 ... its tau.
    """

    affects_result: ClassVar[bool] = True
    is_asynchronous: ClassVar[bool] = True

    max_delay: Natural | Sequence[Natural] = 0

    @property
    def longest(self) -> int:
        """tau of the theorem: the largest delay of any client."""
        return max(self.max_delay) if isinstance(self.max_delay, Sequence) else self.max_delay

    def expected_delay(self, clients: int) -> int:
        return self.longest

    def start(self, job: Job, store: ClientRecords) -> Engine:
        check_one_each(self, "max_delay", self.max_delay, job.problem.num_clients)
        return GivenDelaysEngine(job, store, self)


class GivenDelaysEngine(Engine):
    """Runs clients from the models of earlier steps."""

    is_asynchronous = True

    def __init__(self, job: Job, store: ClientRecords, law: GivenDelays) -> None:
        self._job = job
        self._store = store
        self._law = law
        self._downloads: dict[int, Download] = {}
        self._staleness = Staleness(job.problem.num_clients)

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        self._downloads[round_index] = download._replace(missed=None)
        delays = [self._delay(client, round_index) for client in ids]
        self._staleness.note(ids, delays, round_index)
        for client, delay in zip(ids, delays, strict=True):
            # An old model, but the newest state: nothing that it missed is old.
            received = self._downloads[round_index - delay]._replace(missed=download.missed)
            upload, info = run_client(self._job, self._store, client, received, round_index)
            yield client, upload, info
        oldest = max(0, round_index + 1 - self._law.longest)
        self._downloads = {step: d for step, d in self._downloads.items() if step >= oldest}

    def _delay(self, client: int, step: int) -> int:
        if step < 0:
            return 0
        draws = numpy_generator(derive(self._job.seed, "given-delays", step, client))
        drawn = int(draws.integers(of_client(self._law.max_delay, client) + 1))
        return min(drawn, self._staleness.absence(client, step))

    def extras(self) -> dict[str, Any]:
        return self._staleness.extras()

    def snapshot(self) -> EngineState:
        return EngineState({"staleness": self._staleness.values()}, dict(self._downloads))

    def restore(self, state: EngineState) -> None:
        self._staleness.restore(state.values["staleness"])
        self._downloads = dict(state.downloads)
