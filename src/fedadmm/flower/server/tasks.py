"""One broadcast: its tasks, and the verdicts on their replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from fedadmm.engines.job import Job, global_vector
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.admission import Admission, Admitted
from fedadmm.flower.protocol.codec import digest, encode, pack
from fedadmm.flower.protocol.ledger import Kind, Reply, ServerLedger, Task, issue
from fedadmm.flower.protocol.messages import answer_template, parcel
from fedadmm.flower.protocol.refusal import RefusedError, Word
from fedadmm.flower.server.exchange import Arrival
from fedadmm.protocols import ClientInfo, Download

if TYPE_CHECKING:
    from flwr.app import RecordDict

_ROOM = 4096
"""Bytes beyond a proper answer that are let in, so that the misfit can be named."""


class Accepted(NamedTuple):
    """A reply that may be folded."""

    reply: Reply
    admitted: Admitted


class Broadcast:
    """What one state of the server asks of its clients, encoded and hashed once."""

    def __init__(self, job: Job, download: Download, admission: Admission) -> None:
        self._job = job
        self._download = download
        self._admission = admission
        self._bodies: dict[tuple[int, bool], tuple[bytes, str]] = {}
        self._template = answer_template(job, download)
        self._most = len(encode(pack(self._template))) + _ROOM
        theta = global_vector(download)
        self._scale = 0.0 if theta is None else float(torch.linalg.vector_norm(theta.double()))

    def task(self, ledger: ServerLedger, client: int, sequence: int, index: int) -> Task:
        """The task for a client; `index` is the round that its random numbers belong to."""
        _, fingerprint = self._body(index, ledger.entry(client).version == 0)
        return issue(ledger, client, sequence, fingerprint)

    def content(self, task: Task, index: int) -> RecordDict:
        """The task as a message."""
        return wire.write(task, self._body(index, task.folded == 0)[0])

    def judge(self, ledger: ServerLedger, task: Task, arrival: Arrival) -> Accepted:
        """Accept an update, or say in a RefusedError why not."""
        if arrival.content is None:
            raise RefusedError(Word.ERROR, arrival.error)
        reply, body = wire.read_reply(arrival.content, self._most)
        if reply.kind is Kind.UPDATE:
            admit = self._admission.admit
            return Accepted(reply, admit(ledger, task, reply, body, self._template, self._scale))
        if reply.task != task.id:
            raise RefusedError(Word.PROTOCOL, f"{reply.kind} to another task: {reply.reason}")
        raise RefusedError(_WORDS[reply.kind], reply.reason)

    def failed(self, client: int) -> ClientInfo:
        """What is known about a client whose result was not finite."""
        return self._template.info._replace(client=client, finite=False)

    def _body(self, index: int, newcomer: bool) -> tuple[bytes, str]:
        if (index, newcomer) not in self._bodies:
            body = encode(pack(parcel(self._job, self._download, index, newcomer)))
            self._bodies[index, newcomer] = body, digest(body)
        return self._bodies[index, newcomer]


_WORDS = {Kind.FAILED: Word.FINITE, Kind.LOST: Word.LOST, Kind.STALE: Word.ROLLBACK}
"""A client that finds the open task outdated has seen a later one: the server went back."""
