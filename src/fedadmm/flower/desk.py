"""The server's desk: makes out tasks, judges what comes back, keeps count of both."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from fedadmm.engines.job import Job, global_vector
from fedadmm.errors import StateError
from fedadmm.flower import wire
from fedadmm.flower.codec import Packed, digest, num_bytes, pack, unpack
from fedadmm.flower.door import Door
from fedadmm.flower.exchange import Arrival
from fedadmm.flower.parcels import Answer, answer_template, parcel
from fedadmm.flower.protocol import Kind, Reply, ServerLedger, Task, issue
from fedadmm.protocols import ClientInfo, Download

if TYPE_CHECKING:
    from flwr.app import RecordDict

_logger = logging.getLogger("fedadmm")
_ROOM = 4096
"""Bytes beyond a proper answer that are let in, so that the misfit can be named."""


class Event(NamedTuple):
    """Something about a client that people should be able to see."""

    sequence: int
    client: int
    word: str
    """One word that can be counted: finite, digest, lost, error …"""
    detail: str


class Verdict(NamedTuple):
    """What an arrival came to."""

    reply: Reply | None = None
    answer: Answer | None = None
    refused: str = ""
    """Why nothing is folded, beginning with a word that can be counted."""


class Desk:
    """One broadcast: its tasks and the verdicts on their replies."""

    def __init__(self, job: Job, download: Download, round_index: int, door: Door) -> None:
        self._job = job
        self._door = door
        self._parcels = {
            newcomer: pack(parcel(job, download, round_index, newcomer))
            for newcomer in (False, True)
        }
        self._digests = {which: digest(packed, {}) for which, packed in self._parcels.items()}
        self._template = answer_template(job, download)
        self._most = num_bytes(pack(self._template)) + _ROOM
        theta = global_vector(job, download)
        self._scale = 0.0 if theta is None else float(torch.linalg.vector_norm(theta))

    def task(self, ledger: ServerLedger, client: int, sequence: int) -> Task:
        """The task for a client."""
        newcomer = ledger.entry(client).version == 0
        return issue(ledger, client, sequence, self._digests[newcomer])

    def content(self, task: Task) -> RecordDict:
        """The task as a message."""
        return wire.write(task, self._parcels[task.folded == 0])

    def judge(self, ledger: ServerLedger, task: Task, arrival: Arrival) -> Verdict:
        """Accept an update, or say why not."""
        if arrival.content is None:
            return Verdict(refused=f"error: {arrival.error}")
        try:
            reply, packed = wire.read_reply(arrival.content, self._most)
        except StateError as error:
            return Verdict(refused=str(error))
        if reply.kind is not Kind.UPDATE:
            known = reply.task == task.id
            word = {Kind.FAILED: "finite"}.get(reply.kind, str(reply.kind))
            return Verdict(reply, refused=f"{word if known else 'protocol'}: {reply.reason}")
        refusal = self._door.refusal(ledger, task, reply, packed, self._template, self._scale)
        if refusal is not None:
            return Verdict(reply, refused=refusal)
        return Verdict(reply, self._open(packed, task.client))

    def failed(self, client: int) -> ClientInfo:
        """What is known about a client whose result was not finite."""
        return self._template.info._replace(client=client, finite=False)

    def _open(self, packed: Packed, client: int) -> Answer:
        answer = unpack(self._template, packed)
        return answer._replace(info=answer.info._replace(client=client))


class Journal:
    """Counts and remembers what was refused, missing, lost or repaired."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._fresh: list[Event] = []

    def note(self, sequence: int, client: int, text: str) -> None:
        """Count an event and say it."""
        word, _, detail = text.partition(": ")
        self.counts[word] += 1
        self._fresh.append(Event(sequence, client, word, detail))
        _logger.warning("round %d, client %d: %s", sequence + 1, client, text)

    def take(self) -> Sequence[Event]:
        """The events since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh
