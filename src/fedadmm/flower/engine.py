"""An engine whose clients are on a network: the loop of `fedadmm.round` runs it like any other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fedadmm import trees
from fedadmm.engines.job import Job
from fedadmm.errors import EngineError
from fedadmm.flower.desk import Desk, Journal
from fedadmm.flower.exchange import Exchange, Seat
from fedadmm.flower.federation import Federation
from fedadmm.flower.parcels import Answer
from fedadmm.flower.protocol import Reply, ServerLedger, Task, fold, mark_lost
from fedadmm.flower.roster import Roster
from fedadmm.protocols import ClientInfo, Download, Engine, Upload

ATTEMPTS = 2
"""How often a task is sent to a client that answers with an error."""
LOOK = 5.0
"""Seconds between two looks for nodes that restarted, came or went."""


class GridEngine(Engine):
    """Sends a round's tasks, collects and judges the replies, yields them in order.

    `ledger` is what was folded *and checkpointed*; `settle` moves it after a round.
    """

    def __init__(
        self,
        federation: Federation,
        job: Job,
        exchange: Exchange,
        roster: Roster,
        ledger: ServerLedger,
        journal: Journal,
    ) -> None:
        self._federation = federation
        self._job = job
        self._exchange = exchange
        self._roster = roster
        self._journal = journal
        self._empty = 0
        self._sent = 0
        self.ledger = ledger
        self._answers: dict[int, tuple[Reply, Answer]] = {}

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        """The uploads of those who answered in time, in the order of `ids`."""
        with_all = not self._job.algorithm.accepts_partial or round_index < 0
        desk = Desk(self._job, download, round_index, self._federation.door)
        collected = _Collection(self, desk, ids, round_index)
        self._answers = collected.run(self._federation.patience.round, with_all)
        self._sent = collected.sent
        missing = [client for client in ids if client not in self._answers]
        if with_all and missing:
            raise EngineError(
                f"{type(self._job.algorithm).__name__} needs all clients, but {len(missing)} did "
                f"not bring an update in round {round_index + 1} (first: {missing[0]}, "
                f"{collected.why.get(missing[0], 'no answer')}); run again to resume"
            )
        self._count_empty()
        if not self._answers and collected.diverged is not None:
            yield collected.diverged
            return
        for client in ids:
            if client in self._answers:
                answer = self._answers[client][1]
                yield client, answer.upload, answer.info

    def broadcasts(self, ids: Sequence[int]) -> int:
        """Every task that went out, those that were sent again or never answered among them."""
        return self._sent

    def accept(self, client: int, reply: Reply, answer: Answer) -> None:
        """Take one reply that was judged elsewhere."""
        self._answers = {client: (reply, answer)}

    def settle(self) -> dict[int, Any]:
        """The round was folded: move the ledger, and return the weighted messages by client."""
        brought = {}
        for client, (reply, answer) in self._answers.items():
            self.ledger = fold(self.ledger, reply)
            share = self._job.problem.weight(client)
            brought[client] = trees.scaled(answer.upload.message, share)
        self._answers = {}
        return brought

    def close(self) -> None:
        """Wait for nothing any more."""
        self._exchange.forget()

    def _count_empty(self) -> None:
        self._empty = 0 if self._answers else self._empty + 1
        most = self._federation.patience.empty
        if self._empty >= most:
            raise EngineError(
                f"no client brought an update in {most} rounds in a row; the state is kept, run "
                "again to resume"
            )


class _Sent(NamedTuple):
    """The last time that a task went out."""

    seat: Seat
    at: float
    times: int


class _Collection:
    """The replies of one round, as they come in."""

    def __init__(
        self, engine: GridEngine, desk: Desk, ids: Sequence[int], round_index: int
    ) -> None:
        self._engine = engine
        self._desk = desk
        self._round = round_index
        self._left = list(ids)
        self._tasks: dict[int, Task] = {}
        self._sent: dict[int, _Sent] = {}
        self._failed: set[int] = set()
        self._answers: dict[int, tuple[Reply, Answer]] = {}
        self.why: dict[int, str] = {}
        self.diverged: tuple[int, Any, ClientInfo] | None = None

    @property
    def sent(self) -> int:
        """How many tasks went out."""
        return sum(sent.times for sent in self._sent.values())

    def run(self, timeout: float, with_all: bool) -> dict[int, tuple[Reply, Answer]]:
        """Send and collect until everybody is done or the time is over."""
        exchange, roster = self._engine._exchange, self._engine._roster
        deadline = exchange.now() + timeout
        while self._left and exchange.now() < deadline:
            roster.refresh()
            online = roster.online()
            if not with_all:
                self._leave_out(online)
            self._send(online, deadline - exchange.now())
            for arrival in exchange.arrivals(min(deadline, exchange.now() + LOOK)):
                self._take(arrival.key, arrival)
            if self._left:
                exchange.pause()
        exchange.forget()
        for client in self._left:
            self._give_up(client, f"missing: {self.why.get(client, 'no answer in time')}")
        return self._answers

    def _leave_out(self, online: dict[int, Seat]) -> None:
        """Who is not there and was not asked takes no part; who was asked may come back."""
        for client in [c for c in self._left if c not in online and c not in self._sent]:
            self._left.remove(client)
            self._give_up(client, "missing: its node is not online")

    def _send(self, online: dict[int, Seat], ttl: float) -> None:
        """A task for everybody who has none that can still be answered."""
        contents = {}
        now, resend = self._engine._exchange.now(), self._engine._federation.patience.resend
        for client in self._left:
            seat, sent = online.get(client), self._sent.get(client)
            waiting = sent is not None and sent.seat == seat and now - sent.at <= resend
            if seat is None or (waiting and client not in self._failed):
                continue
            task = self._desk.task(self._engine.ledger, client, self._round)
            self._tasks[client] = task
            self._sent[client] = _Sent(seat, now, 1 if sent is None else sent.times + 1)
            self._failed.discard(client)
            contents[client] = (seat.node, self._desk.content(task))
        self._engine._exchange.send("train", str(self._round + 1), contents, max(ttl, 1.0))

    def _take(self, client: int, arrival: Any) -> None:
        if client not in self._left:
            self._engine._journal.counts["duplicate"] += 1
            return
        verdict = self._desk.judge(self._engine.ledger, self._tasks[client], arrival)
        if verdict.answer is not None and verdict.reply is not None:
            self._answers[client] = (verdict.reply, verdict.answer)
            self._left.remove(client)
            return
        self.why[client] = verdict.refused
        if verdict.refused.startswith("error: ") and self._sent[client].times < ATTEMPTS:
            self._failed.add(client)
            return
        self._left.remove(client)
        self._give_up(client, verdict.refused)

    def _give_up(self, client: int, why: str) -> None:
        self._engine._journal.note(self._round, client, why)
        word = why.partition(":")[0]
        if word == "lost":
            self._engine.ledger = mark_lost(self._engine.ledger, client)
        if word == "finite":
            self.diverged = (client, None, self._desk.failed(client))
