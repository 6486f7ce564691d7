"""The one sender of tasks: makes them out, sends them again, judges what comes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from fedadmm.core.codec import digest, encode, pack
from fedadmm.core.messages import ClientInfo, Download
from fedadmm.core.pairwise_masks import Share, Words
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.admission import Admission, AdmittedUpdate
from fedadmm.flower.protocol.ledger import (
    RefusalReason,
    RefusedError,
    Reply,
    ReplyKind,
    ServerLedger,
    Task,
    create_task,
)
from fedadmm.flower.protocol.payloads import (
    check_work,
    create_payload,
    decode_result,
    result_template,
)
from fedadmm.flower.secure_aggregation.masked_messages import SetRequirement
from fedadmm.flower.server.exchange import Arrival, Exchange, OnlineNode, Roster
from fedadmm.flower.server.run_recorder import EventLog
from fedadmm.run.client import Job, global_vector, message_template

if TYPE_CHECKING:
    from flwr.app import RecordDict

ATTEMPTS = 2
"""How often a task is sent to a client that answers with an error."""
_LONGEST = 8
"""A task that stays unanswered is sent again after 1, 2, 4 and then always 8 times `resend`."""
_BOOT = 32
"""Without rounds, tasks are numbered from (number of server starts) << 32: they always grow."""
_ROOM = 4096
"""Bytes beyond a proper answer that are let in, so that the misfit can be named."""


class AcceptedReply(NamedTuple):
    """A reply that may be folded."""

    reply: Reply
    admitted: AdmittedUpdate
    metrics: Mapping[str, float]
    """What the site's own training loop measured, if anything."""
    share: Share | None = None
    """Where only masked sums leave: the site's key for this upload."""
    task: Task | None = None
    """The task to which it is ready."""
    words: Words | None = None
    """The upload under masks."""
    requirement: SetRequirement = SetRequirement()
    """The conditions of the site on the set of sites in the sum."""


class ClientRequest(Protocol):
    """What is asked of clients: how a task looks, and what may come back."""

    scale: float

    def task(self, ledger: ServerLedger, client: int, sequence: int, index: int) -> Task:
        """The task for a client; `index` is the round that its random numbers belong to."""

    def content(self, task: Task, index: int) -> RecordDict:
        """The task as a message."""

    def validate(self, ledger: ServerLedger, task: Task, arrival: Arrival) -> AcceptedReply:
        """Accept what came back, or say in a RefusedError why not."""


class TrainingRequest:
    """What one state of the server asks of its clients, encoded and hashed once.

    Once per client where each of them has missed virtual steps of its own.
    """

    def __init__(
        self,
        job: Job,
        download: Download,
        admission: Admission,
        step: int,
        beside: wire.Records | None = None,
    ) -> None:
        self._job = job
        self._download = download
        self._admission = admission
        self._step = step
        self._beside = beside
        self._bodies: dict[tuple[int, bool, int | None], tuple[bytes, str]] = {}
        self._template = result_template(job, download)
        self._message = message_template(job, download.broadcast)
        self._most = len(encode(pack(self._template))) + _ROOM
        theta = global_vector(job, download)
        self.scale = 0.0 if theta is None else float(torch.linalg.vector_norm(theta.double()))

    def task(self, ledger: ServerLedger, client: int, sequence: int, index: int) -> Task:
        _, fingerprint = self._body(client, index, ledger.entry(client).version == 0)
        return create_task(ledger, client, sequence, fingerprint)

    def content(self, task: Task, index: int) -> RecordDict:
        return wire.write(
            task, self._body(task.client, index, task.acked_version == 0)[0], self._beside
        )

    def validate(self, ledger: ServerLedger, task: Task, arrival: Arrival) -> AcceptedReply:
        content = arrival.read()
        reply, body = wire.read_reply(content, self._most)
        if reply.kind is ReplyKind.UPDATE and not self._job.aggregator.is_secure:
            admit = self._admission.admit
            decoded = partial(decode_result, self._job, self._message, self._download.pipeline)
            admitted = admit(ledger, task, reply, body, self._template, self.scale, decoded)
            check_work(self._job, admitted.answer.info, self._step)
            return AcceptedReply(reply, admitted, wire.read_metrics(content))
        if reply.task != task.id:
            raise RefusedError(
                RefusalReason.PROTOCOL, f"{reply.kind} to another task: {reply.reason}"
            )
        raise RefusedError(
            _WORDS.get(reply.kind, RefusalReason.PROTOCOL), reply.reason or reply.kind
        )

    def failed(self, client: int) -> ClientInfo:
        """What is known about a client whose result was not finite."""
        return self._template.info._replace(client=client, finite=False)

    def _body(self, client: int, index: int, newcomer: bool) -> tuple[bytes, str]:
        missed = self._download.missed
        key = (index, newcomer, None if missed is None else client)
        if key not in self._bodies:
            change = None if missed is None else missed.missed(client)
            body = encode(pack(create_payload(self._job, self._download, index, newcomer, change)))
            self._bodies[key] = body, digest(body)
        return self._bodies[key]


_WORDS = {
    ReplyKind.FAILED: RefusalReason.FINITE,
    ReplyKind.LOST: RefusalReason.LOST,
    ReplyKind.STALE: RefusalReason.ROLLBACK,
    ReplyKind.DECLINED: RefusalReason.DECLINED,
}
"""A client that finds the open task outdated has seen a later one: the server went back."""


class OutstandingTask(NamedTuple):
    """A task that is out."""

    broadcast: ClientRequest
    task: Task
    round_index: int
    step: int
    """The server's step when the task was made out."""
    seat: OnlineNode
    at: float
    times: int = 1
    failed: bool = False
    """Whether it was answered by an error and may be sent again at once."""
    over: bool = False
    """Whether it was answered by something that cannot be folded."""

    def late(self, now: float, resend: float) -> bool:
        """Whether it may have got lost: each copy gives a slow node twice as long as the last."""
        return now - self.at > resend * min(1 << (self.times - 1), _LONGEST)


class TaskDispatcher:
    """The tasks that are out, one per client at most."""

    def __init__(
        self,
        exchange: Exchange,
        roster: Roster,
        journal: EventLog,
        resend: float,
        boots: int,
        *,
        afresh: bool,
    ) -> None:
        """`afresh`: a server that starts again begins its round anew.

        It no longer knows for which set an upload left, and that leaves for no other.
        """
        self._boots, self._afresh = boots, afresh
        self._exchange = exchange
        self._roster = roster
        self._journal = journal
        self._resend = resend
        self._number = boots << _BOOT
        self.out: dict[int, OutstandingTask] = {}
        self._sent = 0

    def take_count(self) -> int:
        """How many broadcasts went out since this was last asked."""
        count, self._sent = self._sent, 0
        return count

    def clear(self) -> None:
        """A new round: nobody is asked anything."""
        self.out = {}

    def send(
        self,
        clients: Iterable[int],
        broadcast: ClientRequest,
        ledger: ServerLedger,
        step: int,
        ttl: float,
        *,
        rounds: bool,
    ) -> None:
        """A task for everybody who has none; the same one again where it may have got lost."""
        online, now = self._roster.online(), self._exchange.now()
        contents = {}
        for client in clients:
            seat, flight = online.get(client), self.out.get(client)
            if seat is None:
                continue
            late = flight is not None and flight.late(now, self._resend)
            if flight is None or (flight.over and late):
                flight = self._make_out(client, broadcast, ledger, step, seat, rounds)
            elif not flight.over and (flight.failed or late or flight.seat != seat):
                times = flight.times + 1
                flight = flight._replace(seat=seat, at=now, times=times, failed=False)
            else:
                continue
            self.out[client] = flight
            contents[client] = (
                seat.node,
                flight.broadcast.content(flight.task, flight.round_index),
            )
        if isinstance(broadcast, TrainingRequest):
            self._sent += len(contents)
        self._exchange.send("train", str(step + 1), contents, max(ttl, 1.0))

    def _make_out(
        self,
        client: int,
        broadcast: ClientRequest,
        ledger: ServerLedger,
        step: int,
        seat: OnlineNode,
        rounds: bool,
    ) -> OutstandingTask:
        """A round's number counts for all; without rounds a client's own updates are counted."""
        if rounds:
            number, index = step + ledger.restarts, step
            if self._afresh:
                number = (number << _BOOT) + self._boots
        else:
            self._number += 1
            number, index = self._number, ledger.entry(client).version
        task = broadcast.task(ledger, client, number, index)
        return OutstandingTask(broadcast, task, index, step, seat, self._exchange.now())

    def judged_replies(
        self, ledger: ServerLedger, until: float
    ) -> Iterator[tuple[int, AcceptedReply | RefusedError]]:
        """What came back, judged; what answers nothing that is out is only counted."""
        for arrival in self._exchange.arrivals(until):
            client, flight = arrival.key, self.out.get(arrival.key)
            if flight is None:
                self._journal.count(RefusalReason.DUPLICATE)
                continue
            outcome: AcceptedReply | RefusedError
            try:
                outcome = flight.broadcast.validate(ledger, flight.task, arrival)
            except RefusedError as refused:
                outcome = refused
                self.refuse(client, refused)
            yield client, outcome

    def refuse(self, client: int, refused: RefusedError) -> None:
        """What came cannot be folded: ask again at once after an error, later after a lie."""
        flight = self.out[client]
        again = refused.reason is RefusalReason.ERROR and flight.times < ATTEMPTS
        stays = refused.reason is RefusalReason.PROTOCOL  # an answer to an earlier task
        self.out[client] = flight._replace(failed=again, over=not (again or stays))
