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


Fate = Literal["reply", "lost", "late"]
"""What becomes of a piece of work: it arrives, or it is lost on the way, or it misses a deadline.
Which of them is known when it starts, so that lost work need not be computed."""


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
    """A piece of work that came to an end, for pictures of who worked when."""

    client: int
    begin: float
    end: float
    folded: bool


class Timeline:
    """The clock, the clients at work, and counters; a plain value of it makes a snapshot."""

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
        """What ended in the last step."""
        self.started = 0
        """How many pieces of work began in the last step."""
        self.queue: list[Flight] = []
        self._working: set[int] = set()
        self._turns: dict[int, int] = {}
        self._serial = 0
        self._worked = 0.0

    def advance(self, ids: Iterable[int], step: int) -> list[Flight]:
        """One server step without rounds: start who is free, then take the replies that come next.

        There are `buffer` of them, fewer when no other client works, and more when the policy is
        to wait for a client that would become too stale.
        """
        self._begin()
        for client in self._starters(ids, step):
            limit = None if self._rules.deadline is None else self.clock + self._rules.deadline
            heapq.heappush(self.queue, self._launch(client, step, self.clock, limit))
        folded: list[Flight] = []
        while self.queue and (len(folded) < self._rules.buffer or self._overdue(step)):
            flight = heapq.heappop(self.queue)
            self.clock = flight.end
            taken = flight.fate == "reply" and not self._too_stale(flight, step)
            self._end(flight, taken)
            if taken:
                folded.append(flight)
        self._pause_if_nothing_ended()
        return folded

    def whole_round(self, ids: Sequence[int], step: int, *, sure: bool = False) -> list[Flight]:
        """One synchronous round: it lasts until its slowest client, or the deadline, is over.

        With a limit on concurrency the clients queue.  `sure` is a round that no client can miss.
        """
        self._begin()
        rules, opened = self._rules, self.clock
        limit = None if sure or rules.deadline is None else opened + rules.deadline
        asked = [client for client in ids if sure or self._is_there(client, step)]
        free = [opened] * min(rules.concurrency or len(asked), len(asked))
        folded = []
        for client in asked:
            begin = heapq.heappop(free)
            if limit is not None and begin >= limit:
                break
            flight = self._launch(client, step, begin, limit, sure)
            heapq.heappush(free, flight.end)
            self.clock = max(self.clock, flight.end)
            self._end(flight, flight.fate == "reply")
            if flight.fate == "reply":
                folded.append(flight)
        self._pause_if_nothing_ended()
        return folded

    def idle(self) -> float:
        """The share of all clients' time so far in which they had nothing to do."""
        running = sum(self.clock - flight.begin for flight in self.queue)
        total = self._clients * self.clock
        return max(0.0, 1.0 - (self._worked + running) / total) if total else 0.0

    def values(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "clock": self.clock,
            "steps": self.steps,
            "queue": [list(flight) for flight in sorted(self.queue)],
            "turns": sorted(self._turns.items()),
            "serial": self._serial,
            "worked": self._worked,
        }

    def restore(self, values: dict[str, Any]) -> None:
        """Go on from plain values."""
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
        """Those invited who are free and there; a draw decides when places are short."""
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
        fate: Fate = "reply"
        if self._rules.dropout and not sure:
            lost = uniform(derive(self._seed, "virtual-time/lost", client, turn))
            fate = "lost" if lost < self._rules.dropout else "reply"
        if limit is not None and end > limit:
            end, fate = limit, "late"
        self._serial += 1
        self.started += 1
        self._working.add(client)
        return Flight(end, self._serial, client, step, begin, fate)

    def _end(self, flight: Flight, folded: bool) -> None:
        self._working.discard(flight.client)
        self._worked += flight.end - flight.begin
        self.ended.append(Ended(flight.client, flight.begin, flight.end, folded))

    def _overdue(self, step: int) -> bool:
        """Whether somebody at work would be too stale in the next step."""
        rules = self._rules
        if rules.policy != "wait" or rules.max_staleness is None:
            return False
        oldest = min((f.step for f in self.queue if f.fate == "reply"), default=step + 1)
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
        """The time that a client's piece of work number `turn` takes."""
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
            f"{path}: line {number} is {','.join(row)!r}, but must be client,seconds"
        ) from None
    if client < 0 or not 0.0 < seconds < math.inf:
        raise DataError(
            f"{path}: line {number} is {','.join(row)!r}, but needs a client of at least 0 and "
            "finite seconds above 0"
        )
    return client, seconds
