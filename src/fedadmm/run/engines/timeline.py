"""Who works when, and for how long: an event queue in virtual time.  No tensor is touched here.

Durations are drawn from keys: the same seed, the same clock.
"""

from __future__ import annotations

import csv
import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedadmm.core.errors import DataError
from fedadmm.core.rng import Key, derive, numpy_generator, uniform

if TYPE_CHECKING:
    from fedadmm.run.engines.virtual_time import VirtualTime


Fate = Literal["arrived", "lost", "late"]
"""Outcome of local training: its update arrives, is lost, or misses a deadline.  It is known at the
start, so that lost work need not be computed."""


class Flight(NamedTuple):
    """A client at work; flights are ordered by their end, those of the same time by their start."""

    end: float
    serial: int
    client: int
    step: int
    """The server step whose broadcast the client received."""
    begin: float
    fate: Fate


class Ended(NamedTuple):
    """An interval of local training that has ended, for figures."""

    client: int
    begin: float
    end: float
    aggregated: bool


class Timeline:
    """The clock, the clients at work, and counters."""

    def __init__(
        self, rules: VirtualTime, seconds: Callable[[int, int], float], seed: Key, clients: int
    ) -> None:
        self._rules = rules
        self._seconds = seconds
        self._seed = seed
        self._clients = clients
        self.clock = 0.0
        self.steps = 0
        self.ended: list[Ended] = []
        """Intervals that ended in the last step."""
        self.started = 0
        """Number of intervals that began in the last step."""
        self.queue: list[Flight] = []
        self._working: set[int] = set()
        self._turns: dict[int, int] = {}
        self._serial = 0
        self._worked = 0.0

    def advance(self, ids: Iterable[int], step: int) -> list[Flight]:
        """Advance by one server step without rounds, and return the updates to aggregate.

        Free clients start first.  There are `buffer` updates, fewer if no other client is at work,
        and more if the policy is to wait for a client that would become too stale.
        """
        self._begin()
        for client in self._starters(ids, step):
            limit = None if self._rules.deadline is None else self.clock + self._rules.deadline
            heapq.heappush(self.queue, self._launch(client, step, self.clock, limit))
        aggregated: list[Flight] = []
        while self.queue and (len(aggregated) < self._rules.buffer or self._overdue(step)):
            flight = heapq.heappop(self.queue)
            self.clock = flight.end
            taken = flight.fate == "arrived" and not self._too_stale(flight, step)
            self._end(flight, taken)
            if taken:
                aggregated.append(flight)
        self._pause_if_nothing_ended()
        return aggregated

    def whole_round(self, ids: Sequence[int], step: int, *, sure: bool = False) -> list[Flight]:
        """Advance by one synchronous round, until its slowest client or the deadline.

        With a limit on concurrency clients queue.  With `sure` no client can miss the round.
        """
        self._begin()
        rules, opened = self._rules, self.clock
        limit = None if sure or rules.deadline is None else opened + rules.deadline
        asked = [client for client in ids if sure or self._is_there(client, step)]
        free = [opened] * min(rules.concurrency or len(asked), len(asked))
        aggregated = []
        for client in asked:
            begin = heapq.heappop(free)
            if limit is not None and begin >= limit:
                break
            flight = self._launch(client, step, begin, limit, sure)
            heapq.heappush(free, flight.end)
            self.clock = max(self.clock, flight.end)
            self._end(flight, flight.fate == "arrived")
            if flight.fate == "arrived":
                aggregated.append(flight)
        self._pause_if_nothing_ended()
        return aggregated

    def idle(self) -> float:
        """Return the share of the clients' total time in which they were idle."""
        running = sum(self.clock - flight.begin for flight in self.queue)
        total = self._clients * self.clock
        return max(0.0, 1.0 - (self._worked + running) / total) if total else 0.0

    def values(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return {
            "clock": self.clock,
            "steps": self.steps,
            "queue": [list(flight) for flight in sorted(self.queue)],
            "turns": sorted(self._turns.items()),
            "serial": self._serial,
            "worked": self._worked,
        }

    def restore(self, values: dict[str, Any]) -> None:
        """Restore the state from plain values."""
        self.clock, self.steps = values["clock"], values["steps"]
        self.queue = [Flight(*entry) for entry in values["queue"]]
        self._working = {flight.client for flight in self.queue}
        self._turns = dict(values["turns"])
        self._serial, self._worked = values["serial"], values["worked"]

    def _begin(self) -> None:
        self.ended = []
        self.started = 0
        self.steps += 1

    def _starters(self, ids: Iterable[int], step: int) -> list[int]:
        """Return the sampled clients that are free and available, at random beyond the limit."""
        ready = [i for i in ids if i not in self._working and self._is_there(i, step)]
        if self._rules.concurrency is None:
            return ready
        places = self._rules.concurrency - len(self.queue)
        if len(ready) <= places:
            return ready
        draws = numpy_generator(derive(self._seed, "virtual-time/start", step))
        return sorted(int(i) for i in draws.choice(ready, max(places, 0), replace=False))

    def _is_there(self, client: int, step: int) -> bool:
        if self._rules.availability == 1.0:
            return True
        key = derive(self._seed, "virtual-time/available", step, client)
        return uniform(key) < self._rules.availability

    def _launch(
        self, client: int, step: int, begin: float, limit: float | None, sure: bool = False
    ) -> Flight:
        turn = self._turns.get(client, 0)
        self._turns[client] = turn + 1
        end = begin + self._seconds(client, turn)
        fate: Fate = "arrived"
        if self._rules.dropout and not sure:
            lost = uniform(derive(self._seed, "virtual-time/lost", client, turn))
            fate = "lost" if lost < self._rules.dropout else "arrived"
        if limit is not None and end > limit:
            end, fate = limit, "late"
        self._serial += 1
        self.started += 1
        self._working.add(client)
        return Flight(end, self._serial, client, step, begin, fate)

    def _end(self, flight: Flight, aggregated: bool) -> None:
        self._working.discard(flight.client)
        self._worked += flight.end - flight.begin
        self.ended.append(Ended(flight.client, flight.begin, flight.end, aggregated))

    def _overdue(self, step: int) -> bool:
        """Return whether a client at work would be too stale in the next step."""
        rules = self._rules
        if rules.policy != "wait" or rules.max_staleness is None:
            return False
        oldest = min((f.step for f in self.queue if f.fate == "arrived"), default=step + 1)
        return step - oldest >= rules.max_staleness

    def _too_stale(self, flight: Flight, step: int) -> bool:
        rules = self._rules
        if rules.policy != "drop" or rules.max_staleness is None:
            return False
        return step - flight.step > rules.max_staleness

    def _pause_if_nothing_ended(self) -> None:
        if not self.ended:
            self.clock += self._rules.compute_time


Kind = Literal["constant", "uniform", "log-normal", "trace"]
Trace = dict[int, tuple[float, ...]]


@dataclass(frozen=True)
class Duration:
    """One distribution of times; a client's own factor is drawn once, or anew for every turn.

    constant     fastest
    uniform      fastest * U[1, ratio]
    log-normal   fastest * exp(spread * N(0, 1)): `fastest` is then the median
    trace        the client's times in a file, one after the other, again from the first
    """

    purpose: str
    kind: Kind
    fastest: float
    ratio: float = 2.0
    spread: float = 0.5
    redraw: bool = False
    trace: str | None = None

    def seconds(self, seed: Key, client: int, turn: int) -> float:
        """Return the time of a client's local training number `turn`."""
        if self.kind == "constant" or self.fastest == 0.0:
            return self.fastest
        if self.kind == "trace":
            assert self.trace is not None
            return _traced(self.trace, client, turn)
        indices = (client, turn) if self.redraw else (client,)
        draws = numpy_generator(derive(seed, f"virtual-time/{self.purpose}", *indices))
        if self.kind == "uniform":
            return self.fastest * float(draws.uniform(1.0, self.ratio))
        return self.fastest * math.exp(self.spread * float(draws.standard_normal()))


def _traced(path: str, client: int, turn: int) -> float:
    times = read_trace(path).get(client)
    if times is None:
        raise DataError(f"{path}: has no line for client {client}, but needs one for every client")
    return times[turn % len(times)]


@cache
def read_trace(path: str) -> Trace:
    """The times of each client from lines `client,seconds`; a first line of words is a heading."""
    times: dict[int, list[float]] = {}
    try:
        with Path(path).open(newline="", encoding="utf-8") as stream:
            for number, row in enumerate(csv.reader(stream), 1):
                if not row or (number == 1 and not row[0].strip().isdecimal()):
                    continue
                client, seconds = _entry(path, number, row)
                times.setdefault(client, []).append(seconds)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a trace ({error})") from None
    if not times:
        raise DataError(f"{path}: holds no line 'client,seconds'")
    return {client: tuple(found) for client, found in times.items()}


def _entry(path: str, number: int, row: list[str]) -> tuple[int, float]:
    try:
        client, seconds = int(row[0]), float(row[1])
    except (IndexError, ValueError):
        raise DataError(
            f"{path}: line {number}: got {','.join(row)!r}, expected client,seconds"
        ) from None
    if client < 0 or not 0.0 < seconds < math.inf:
        raise DataError(
            f"{path}: line {number} is {','.join(row)!r}, but needs a client of at least 0 and "
            "finite seconds above 0"
        )
    return client, seconds
