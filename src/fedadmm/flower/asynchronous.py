"""Without rounds: every reply is one server step, as it arrives; nobody waits for anybody.

asyncFedDR (Tran-Dinh et al. 2021, Algorithm 2) is FedDR run like this: the server folds a reply
and sends that client a new task at once, with the model as it is now.  A slow client's reply was
computed from an older model; it is an increment all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fedadmm.engines.job import this_round
from fedadmm.flower.desk import Desk
from fedadmm.flower.exchange import Arrival, Seat
from fedadmm.flower.parcels import Answer
from fedadmm.flower.protocol import Reply, Task, mark_lost
from fedadmm.protocols import ClientInfo, Download, Engine, Upload
from fedadmm.round import Ending, RoundReport, run_round

if TYPE_CHECKING:
    from fedadmm.flower.server import Outcome, Service

_LOOK = 5.0
"""Seconds between two looks for nodes that came or went."""
_BOOT = 32
"""Tasks are numbered from (number of server starts) << 32, so that they grow over restarts."""


class _Flight(NamedTuple):
    """A task that is out."""

    desk: Desk
    task: Task
    sent: float
    step: int
    seat: Seat
    answered: bool = False
    """Whether a reply came that could not be folded."""


class _OneReply(Engine):
    """An engine for a round of one reply that is here already, after `sent` tasks went out."""

    is_asynchronous = True

    def __init__(self, client: int, answer: Answer, sent: int) -> None:
        self._client = client
        self._answer = answer
        self._sent = sent

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        """The reply."""
        yield self._client, self._answer.upload, self._answer.info

    def broadcasts(self, ids: Sequence[int]) -> int:
        """Every task that went out since the last step."""
        return self._sent


def run_asynchronously(service: Service) -> Outcome:
    """Fold replies as they arrive until `rounds` of them are folded, or the target is met."""
    service.roster.wait_for(1)
    service.open()
    service.repair()
    return _Stream(service).run()


class _Stream:
    """The tasks that are out, and what comes back."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._flights: dict[int, _Flight] = {}
        self._number = service.saved.boots << _BOOT
        self._alive = service.exchange.now()
        self._sent = 0

    def run(self) -> Outcome:
        service, exchange = self._service, self._service.exchange
        rounds = service.federation.rounds
        while service.saved.state.round < rounds:
            self._send_all()
            for arrival in exchange.arrivals(exchange.now() + _LOOK):
                ending = self._take(arrival)
                if ending is not None:
                    return service.outcome(ending)
            service.check_alive(self._alive)
            exchange.pause()
        return service.outcome(Ending("completed", f"completed all {rounds} steps"))

    def _send_all(self) -> None:
        """A task for everybody who is there and has none; an unanswered one is sent again."""
        service = self._service
        service.roster.refresh()
        patience, now = service.federation.patience, service.exchange.now()
        for client, seat in service.roster.online().items():
            flight = self._flights.get(client)
            if flight is None or (flight.answered and now - flight.sent > patience.resend):
                self._send(client, seat)
            elif flight.seat != seat or now - flight.sent > patience.resend:
                self._post(client, flight._replace(sent=now, seat=seat))

    def _send(self, client: int, seat: Seat) -> None:
        service = self._service
        state, job = service.saved.state, service.job
        self._number += 1
        cast = job.algorithm.broadcast(state.server, this_round(job, state.round))
        version = service.engine.ledger.entry(client).version
        desk = Desk(job, Download(cast, state.buffers), version, service.federation.door)
        task = desk.task(service.engine.ledger, client, self._number)
        self._post(client, _Flight(desk, task, service.exchange.now(), state.round, seat))

    def _post(self, client: int, flight: _Flight) -> None:
        contents = {client: (flight.seat.node, flight.desk.content(flight.task))}
        ttl = self._service.federation.patience.round
        self._service.exchange.send("train", str(flight.task.folded + 1), contents, ttl)
        self._flights[client] = flight
        self._sent += 1

    def _take(self, arrival: Arrival) -> Ending | None:
        service, client = self._service, arrival.key
        flight = self._flights.get(client)
        if flight is None:
            return None
        verdict = flight.desk.judge(service.engine.ledger, flight.task, arrival)
        if verdict.answer is None or verdict.reply is None:
            self._refuse(client, flight, verdict.refused)
            return None
        self._alive = service.exchange.now()
        ending = self._fold(client, flight, verdict.reply, verdict.answer)
        if ending is None and client in service.roster.online():
            self._send(client, service.roster.online()[client])
        return ending

    def _fold(self, client: int, flight: _Flight, reply: Reply, answer: Answer) -> Ending | None:
        service = self._service
        state = service.saved.state
        service.engine.accept(client, reply, answer)
        arrived = _OneReply(client, answer, self._sent)
        after, record, infos = run_round(service.job, [client], arrived, state, state.round)
        self._sent = 0
        record["staleness"] = state.round - flight.step
        ending = service.measure(after, record)
        service.observe(RoundReport(after, record, infos, ending))
        service.settle(after)
        return ending

    def _refuse(self, client: int, flight: _Flight, why: str) -> None:
        service = self._service
        word = why.partition(":")[0]
        service.journal.note(service.saved.state.round, client, why)
        if word == "protocol":  # an answer to an earlier task: this one is still out
            return
        self._flights[client] = flight._replace(sent=service.exchange.now(), answered=True)
        if word == "lost":
            service.engine.ledger = mark_lost(service.engine.ledger, client)
            if service.to_repair():
                service.repair()
                del self._flights[client]
