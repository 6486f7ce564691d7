"""Create tasks, send and resend them, and validate the replies."""

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
"""Number of times a task is sent to a client that answers with an error."""
_LONGEST = 8
"""An unanswered task is sent again after 1, 2, 4 and then always 8 times `resend` seconds."""
_BOOT = 32
"""Asynchronous tasks are numbered from (number of server starts) << 32, so that they increase."""
_ROOM = 4096
"""Bytes by which a reply may exceed the expected size, so that the error can name the field."""


class AcceptedReply(NamedTuple):
    """A validated reply, which may be aggregated."""

    reply: Reply
    admitted: AdmittedUpdate
    metrics: Mapping[str, float]
    """Metrics of the site's own training loop, if it has any."""
    share: Share | None = None
    """With secure aggregation, the signed key of the site for this upload."""
    task: Task | None = None
    """With secure aggregation, the task that READY answers."""
    words: Words | None = None
    """The masked upload."""
    requirement: SetRequirement = SetRequirement()
    """The conditions of the site on the set of sites in the sum."""


class ClientRequest(Protocol):
    """A kind of request to clients: creates its tasks and validates their replies."""

    scale: float

    def task(self, ledger: ServerLedger, client: int, sequence: int, index: int) -> Task:
        """Create the task of a client; `index` is the round that determines its random numbers."""

    def content(self, task: Task, index: int) -> RecordDict:
        """Write the task as a message."""

    def validate(self, ledger: ServerLedger, task: Task, arrival: Arrival) -> AcceptedReply:
        """Validate a reply, or raise a RefusedError."""


class TrainingRequest:
    """The request to train from one state of the server, encoded and hashed once.

    For a method that aligns absent clients it is encoded once per client, because every client has
    a catch-up vector of its own.
    """

    def __init__(
        self,
        job: Job,
        download: Download,
        admission: Admission,
        step: int,
        attachments: wire.Records | None = None,
    ) -> None:
        self._job = job
        self._download = download
        self._admission = admission
        self._step = step
        self._attachments = attachments
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
            task, self._body(task.client, index, task.acked_version == 0)[0], self._attachments
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
            _REASONS.get(reply.kind, RefusalReason.PROTOCOL), reply.reason or reply.kind
        )

    def failed(self, client: int) -> ClientInfo:
        """Return the statistics of a client whose result is not finite."""
        return self._template.info._replace(client=client, finite=False)

    def _body(self, client: int, index: int, newcomer: bool) -> tuple[bytes, str]:
        missed = self._download.missed
        key = (index, newcomer, None if missed is None else client)
        if key not in self._bodies:
            change = None if missed is None else missed.missed(client)
            body = encode(pack(create_payload(self._job, self._download, index, newcomer, change)))
            self._bodies[key] = body, digest(body)
        return self._bodies[key]


_REASONS = {
    ReplyKind.FAILED: RefusalReason.FINITE,
    ReplyKind.LOST: RefusalReason.LOST,
    ReplyKind.STALE: RefusalReason.ROLLBACK,
    ReplyKind.DECLINED: RefusalReason.DECLINED,
}
"""A client for which the open task is outdated has seen a later one: the server was rolled back."""


class OutstandingTask(NamedTuple):
    """A task that was sent and is not answered."""

    broadcast: ClientRequest
    task: Task
    round_index: int
    step: int
    """The step of the server when the task was created."""
    seat: OnlineNode
    at: float
    times: int = 1
    failed: bool = False
    """Whether it was answered by an error and may be sent again immediately."""
    over: bool = False
    """Whether the reply was refused."""

    def late(self, now: float, resend: float) -> bool:
        """Return whether it may be lost; the timeout doubles with every copy, for slow nodes."""
        return now - self.at > resend * min(1 << (self.times - 1), _LONGEST)


class TaskDispatcher:
    """Sends tasks, at most one per client, and validates the replies."""

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
        """Start without outstanding tasks.

        With `afresh`, a restarted server repeats its round under a new number: it lost the set for
        which an upload was released, and a site releases it for no other.
        """
        self._boots, self._afresh = boots, afresh
        self._exchange = exchange
        self._roster = roster
        self._journal = journal
        self._resend = resend
        self._number = boots << _BOOT
        self.outstanding: dict[int, OutstandingTask] = {}
        self._sent = 0

    def take_count(self) -> int:
        """Return the number of broadcasts since the last call."""
        count, self._sent = self._sent, 0
        return count

    def clear(self) -> None:
        """Forget all outstanding tasks."""
        self.outstanding = {}

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
        """Send a task to every client without one, and again where it may be lost."""
        online, now = self._roster.online(), self._exchange.now()
        contents = {}
        for client in clients:
            seat, task_out = online.get(client), self.outstanding.get(client)
            if seat is None:
                continue
            late = task_out is not None and task_out.late(now, self._resend)
            if task_out is None or (task_out.over and late):
                task_out = self._create(client, broadcast, ledger, step, seat, rounds)
            elif not task_out.over and (task_out.failed or late or task_out.seat != seat):
                times = task_out.times + 1
                task_out = task_out._replace(seat=seat, at=now, times=times, failed=False)
            else:
                continue
            self.outstanding[client] = task_out
            contents[client] = (
                seat.node,
                task_out.broadcast.content(task_out.task, task_out.round_index),
            )
        if isinstance(broadcast, TrainingRequest):
            self._sent += len(contents)
        self._exchange.send("train", str(step + 1), contents, max(ttl, 1.0))

    def _create(
        self,
        client: int,
        broadcast: ClientRequest,
        ledger: ServerLedger,
        step: int,
        seat: OnlineNode,
        rounds: bool,
    ) -> OutstandingTask:
        """Create a task, indexed by the round, or by the client's updates in asynchronous mode."""
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
        """Yield validated and refused replies; others are only counted."""
        for arrival in self._exchange.arrivals(until):
            client, task_out = arrival.key, self.outstanding.get(arrival.key)
            if task_out is None:
                self._journal.count(RefusalReason.DUPLICATE)
                continue
            outcome: AcceptedReply | RefusedError
            try:
                outcome = task_out.broadcast.validate(ledger, task_out.task, arrival)
            except RefusedError as refused:
                outcome = refused
                self.refuse(client, refused)
            yield client, outcome

    def refuse(self, client: int, refused: RefusedError) -> None:
        """Handle a refused reply: resend at once after an error, later after an invalid update."""
        task_out = self.outstanding[client]
        again = refused.reason is RefusalReason.ERROR and task_out.times < ATTEMPTS
        stays = refused.reason is RefusalReason.PROTOCOL  # an answer to an earlier task
        self.outstanding[client] = task_out._replace(failed=again, over=not (again or stays))
