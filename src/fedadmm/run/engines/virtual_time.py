"""An honest clock: clients work for real, and their time is virtual.

The same algorithm files run with or without rounds.  In `mode="async"` every arriving reply is
one server step (Tran-Dinh et al. 2021, Algorithm 2): the clients that are free start from the
model as it is now, then the clock runs on to the next arrival, which may have been computed from
an older model.  In `mode="sync"` a round lasts as long as its slowest client.

Who starts: of those the sampler names in a step, the ones that are free, up to `concurrency`.
A client's record is committed when its reply is folded; work that is lost, late or too stale
leaves the client as it was, so that the server's mean stays the mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from fedadmm.core.errors import ParameterError
from fedadmm.core.messages import ClientInfo, ClientRecords, Download, Engine, EngineState, Upload
from fedadmm.core.parts import Count, NotNegative, Positive, Probability, Share, part
from fedadmm.run.client import Job, client_round
from fedadmm.run.engines.choice import EngineChoice, torch_threads
from fedadmm.run.engines.staleness import Staleness
from fedadmm.run.engines.timeline import Duration, Kind, Timeline, read_trace


@part("engine", "virtual-time")
class VirtualTime(EngineChoice):
    """The choice of the virtual-time engine.

    A piece of work takes a compute time and a network time, each from a distribution: constant,
    uniform up to `ratio` times the fastest, log-normal around the given time, or (compute time
    only) a file of lines `client,seconds`.

    Args:
        mode: "async" folds replies as they arrive, "sync" waits for everybody in a round.
        compute: the distribution of compute times.
        compute_time: virtual seconds of the fastest client; the median for log-normal.
        ratio: uniform: how much slower than the fastest a client may be.
        spread: log-normal: the standard deviation of the logarithm.
        redraw: draw anew for every piece of work, instead of once for every client.
        trace: trace: the file; a client goes through its lines again and again.
        network: the distribution of network times, down and up together.
        network_time: virtual seconds of the fastest connection; the median for log-normal.
        availability: the probability that a client is there when it is asked to start.
        dropout: the probability that a reply is lost.
        concurrency: how many clients work at the same time; None for all.
        buffer: async: how many replies make a server step.
        max_staleness: async: the largest delay in server steps, used by `policy`.
        policy: async: what happens beyond it: "accept" all, "drop" the reply, or "wait" with the
            step until the client has replied.
        deadline: virtual seconds after which a client is given up (in "sync": after which a round
            ends); None for never.
    """

    affects_result: ClassVar[bool] = True

    mode: Literal["async", "sync"] = "async"
    compute: Kind = "uniform"
    compute_time: Positive = 1.0
    ratio: Annotated[float, Ge(1)] = 2.0
    spread: NotNegative = 0.5
    redraw: bool = False
    trace: str | None = None
    network: Literal["constant", "uniform", "log-normal"] = "constant"
    network_time: NotNegative = 0.0
    availability: Share = 1.0
    dropout: Probability = 0.0
    concurrency: Count | None = None
    buffer: Count = 1
    max_staleness: Annotated[int, Ge(0)] | None = None
    policy: Literal["accept", "drop", "wait"] = "accept"
    deadline: Positive | None = None

    def __post_init__(self) -> None:
        if self.compute == "trace" and self.trace is None:
            raise ParameterError("VirtualTime: trace is None, but compute='trace' needs a file")
        if self.concurrency is not None and self.mode == "async" and self.concurrency < self.buffer:
            raise ParameterError(
                f"VirtualTime: concurrency is {self.concurrency}, but must be at least "
                f"buffer={self.buffer}, or a step never gets all its replies"
            )
        if self.max_staleness is None and self.policy != "accept":
            raise ParameterError(
                f"VirtualTime: max_staleness is None, but policy='{self.policy}' needs a number"
            )

    @property
    def is_asynchronous(self) -> bool:
        return self.mode == "async"

    def uses_one_core(self, threads: int | Literal["auto"]) -> bool:
        return True

    def expected_delay(self, clients: int) -> int | None:
        if not self.is_asynchronous:
            return None
        if self.max_staleness is not None and self.policy != "accept":
            return self.max_staleness
        return min(self.concurrency or clients, clients)

    def start(self, job: Job, store: ClientRecords) -> Engine:
        if self.trace is not None and self.compute == "trace":
            read_trace(self.trace)
        return VirtualTimeEngine(job, store, self)

    def durations(self) -> tuple[Duration, Duration]:
        """Compute time and network time."""
        shared = (self.ratio, self.spread, self.redraw)
        return (
            Duration("compute", self.compute, self.compute_time, *shared, self.trace),
            Duration("network", self.network, self.network_time, *shared),
        )


class VirtualTimeEngine(Engine):
    """Runs clients along a timeline."""

    def __init__(self, job: Job, store: ClientRecords, options: VirtualTime) -> None:
        self._job = job
        self._store = store
        self._options = options
        self.is_asynchronous = options.is_asynchronous
        durations = options.durations()

        def seconds(client: int, turn: int) -> float:
            return sum(duration.seconds(job.seed, client, turn) for duration in durations)

        self._timeline = Timeline(options, seconds, job.seed, job.problem.num_clients)
        self._downloads: dict[int, Download] = {}
        self._staleness = Staleness(job.problem.num_clients)

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        self._downloads[round_index] = download._replace(missed=None)
        if round_index < 0 or not self._options.is_asynchronous:
            folded = self._timeline.whole_round(ids, round_index, sure=round_index < 0)
        else:
            folded = self._timeline.advance(ids, round_index)
        delays = [round_index - flight.step for flight in folded]
        self._staleness.note([flight.client for flight in folded], delays, round_index)
        for flight in folded:
            client, step = flight.client, flight.step
            # An old model, but the newest state: nothing that it missed is old.
            received = self._downloads[step]._replace(missed=download.missed)
            with torch_threads(1):
                done = client_round(self._job, client, self._store.get(client), received, step)
            if done.record is not None:
                self._store.commit(client, done.record, round_index)
            yield client, done.upload, done.info
        wanted = {flight.step for flight in self._timeline.queue}  # somebody works from these
        self._downloads = {step: d for step, d in self._downloads.items() if step in wanted}

    def broadcasts(self, ids: Sequence[int]) -> int:
        return self._timeline.started

    def extras(self) -> dict[str, Any]:
        line = self._timeline
        record: dict[str, Any] = {
            "virtual_time": line.clock,
            "steps_per_second": line.steps / line.clock if line.clock else 0.0,
            "idle": line.idle(),
            "in_flight": len(line.queue),
            "dropped": sum(not ended.folded for ended in line.ended),
            "intervals": [
                [ended.client, ended.begin, ended.end, int(ended.folded)] for ended in line.ended
            ],
        }
        if self._options.is_asynchronous:
            record |= self._staleness.extras()
        return record

    def snapshot(self) -> EngineState:
        values = {"timeline": self._timeline.values(), "staleness": self._staleness.values()}
        return EngineState(values, dict(self._downloads))

    def restore(self, state: EngineState) -> None:
        self._timeline.restore(state.values["timeline"])
        self._staleness.restore(state.values["staleness"])
        self._downloads = dict(state.downloads)
