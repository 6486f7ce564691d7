"""Simulation of asynchronous and heterogeneous clients in virtual time.

Clients train for real, and the time that this takes is simulated.  The same methods run with or
without rounds.  In `mode="async"` every arriving update is one server step (Tran-Dinh et al. 2021,
Algorithm 2): free clients start from the current model, then the clock advances to the next
arrival, which may have been computed from an older model.  In `mode="sync"` a round lasts as long
as its slowest client.

In a step those of the sampled clients start that are free, up to `concurrency`.  A client's record
is committed when its update is aggregated; lost, late or too stale work does not change the client,
so that the server's mean remains that of the clients' states.
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
    """Run clients in virtual time, asynchronously or in rounds.

    Local training takes a compute time and a network time, each from a distribution: constant,
    uniform from the given time to `ratio` times it, log-normal with the given median, or (compute
    time only) a file of lines `client,seconds`.

    Args:
        mode: "async" aggregates updates on arrival, "sync" waits for all participants of a round.
        compute: Distribution of compute times.
        compute_time: Compute time of the fastest client in virtual seconds; the median for
            log-normal.
        ratio: For uniform: largest time as a multiple of the smallest.
        spread: For log-normal: standard deviation of the logarithm.
        redraw: Whether times are drawn for every update, instead of once per client.
        trace: For trace: the file, whose lines of a client are repeated.
        network: Distribution of network times, download and upload together.
        network_time: Network time of the fastest client in virtual seconds; the median for
            log-normal.
        availability: Probability that a sampled client is available.
        dropout: Probability that an update is lost.
        concurrency: Largest number of clients that train at the same time; None for all.
        buffer: For async: number of updates in a server step.
        max_staleness: For async: largest delay in server steps, used by `policy`.
        policy: For async: updates with a larger delay are accepted ("accept") or dropped ("drop"),
            or the server step waits for the client before the delay is exceeded ("wait").
        deadline: Virtual seconds after which a client is cancelled (in "sync": after which a round
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
                f"VirtualTime: concurrency: got {self.concurrency}, expected at least "
                f"buffer={self.buffer}, or a step never gets all its updates"
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
            aggregated = self._timeline.whole_round(ids, round_index, sure=round_index < 0)
        else:
            aggregated = self._timeline.advance(ids, round_index)
        delays = [round_index - flight.step for flight in aggregated]
        self._staleness.note([flight.client for flight in aggregated], delays, round_index)
        for flight in aggregated:
            client, step = flight.client, flight.step
            # An old model, but the newest state: nothing that it missed is old.
            received = self._downloads[step]._replace(missed=download.missed)
            with torch_threads(1):
                done = client_round(self._job, client, self._store.get(client), received, step)
            if done.record is not None:
                self._store.commit(client, done.record, round_index)
            yield client, done.upload, done.info
        wanted = {flight.step for flight in self._timeline.queue}  # from which clients are training
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
            "dropped": sum(not ended.aggregated for ended in line.ended),
            "intervals": [
                [ended.client, ended.begin, ended.end, int(ended.aggregated)]
                for ended in line.ended
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
