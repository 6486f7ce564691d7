"""The local work itself, which runs for real, while its time is virtual.

A client at work has a broadcast of its own and a state that nothing else changes, so its result
does not depend on when it is computed.  It is computed when its reply is due, and with several
workers a few replies that are due next are computed beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from fedadmm.core import trees
from fedadmm.core.messages import ClientRecord, ClientRecords, Download, Engine, Partial
from fedadmm.run.client import ClientRound, Job, client_round
from fedadmm.run.engines.threads import torch_threads
from fedadmm.run.engines.timeline import Flight
from fedadmm.run.engines.workers import Workers


class Held:
    """Records that are read through; what is committed is held back until somebody takes it."""

    def __init__(self, records: ClientRecords) -> None:
        self.get = records.get
        self._held: dict[int, ClientRecord] = {}

    def commit(self, client: int, record: ClientRecord, round_index: int) -> None:
        """Hold a record back."""
        self._held[client] = record

    def take(self, client: int) -> ClientRecord | None:
        """Hand over what was held back."""
        return self._held.pop(client, None)


class Crew:
    """Computes replies: in this process, or in `workers` others."""

    def __init__(self, job: Job, store: ClientRecords, workers: int) -> None:
        self._job = job
        self._store = store
        self._desks = [Held(store) for _ in range(workers)] if workers > 1 else []
        self._engines: list[Engine] = []
        if workers > 1:
            self._engines = [Workers(workers=1).start(job, desk) for desk in self._desks]
        self._started = False
        self._done: dict[int, ClientRound] = {}

    def reply(
        self, flight: Flight, following: Iterable[Flight], downloads: Mapping[int, Download]
    ) -> ClientRound:
        """The reply of a flight; `following` are those whose replies are due after it."""
        if not self._engines:
            record, download = self._store.get(flight.client), downloads[flight.step]
            with torch_threads(1):  # as in a worker, whose results these must equal to the last bit
                return client_round(self._job, flight.client, record, download, flight.step)
        if flight.client not in self._done:
            missing = (f for f in following if f.client not in self._done)
            self._together([flight, *islice(missing, len(self._engines) - 1)], downloads)
        return self._done.pop(flight.client)

    def forget(self, client: int) -> None:
        """A reply that is not wanted any more."""
        self._done.pop(client, None)

    def close(self) -> None:
        for engine in self._engines:
            engine.close()

    def _together(self, flights: Sequence[Flight], downloads: Mapping[int, Download]) -> None:
        """One flight a worker process; a thread each waits for it."""
        places = range(len(flights))
        with torch_threads(1):  # the other cores belong to the workers
            if not self._started:  # processes are forked one after the other, beside no thread
                replies = [self._at(place, flights[place], downloads) for place in places]
                self._started = len(flights) == len(self._engines)
            else:
                with ThreadPoolExecutor(len(flights)) as threads:
                    waiting = [
                        threads.submit(self._at, place, flights[place], downloads)
                        for place in places
                    ]
                    replies = [future.result() for future in waiting]
        for flight, reply in zip(flights, replies, strict=True):
            self._done[flight.client] = reply

    def _at(self, place: int, flight: Flight, downloads: Mapping[int, Download]) -> ClientRound:
        engine, desk = self._engines[place], self._desks[place]
        done = engine.run_clients([flight.client], downloads[flight.step], flight.step)
        replies = [trees.clone(reply) for reply in done]
        assert len(replies) == 1
        assert not isinstance(replies[0], Partial)
        _, upload, info = replies[0]
        return ClientRound(desk.take(flight.client), upload, info)
