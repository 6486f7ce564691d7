"""Secure aggregation at the server: choose the sets of sites and add up their masked words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fedadmm.core.aggregation import MaskedSum
from fedadmm.core.messages import ClientInfo, Download, PartialSum
from fedadmm.core.pairwise_masks import Share, Words, groups, summed
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.admission import AdmittedUpdate, check_answers
from fedadmm.flower.protocol.ledger import (
    RefusalReason,
    RefusedError,
    ReplyKind,
    ServerLedger,
    Task,
)
from fedadmm.flower.protocol.payloads import check_work
from fedadmm.flower.secure_aggregation.masked_messages import (
    SetRequirement,
    body_size,
    from_body,
    length_of,
    read_requirement,
    read_share,
    read_sum,
    upload_template,
    write_set,
)
from fedadmm.flower.server.exchange import Arrival
from fedadmm.flower.server.tasks import AcceptedReply, TrainingRequest
from fedadmm.run.client import Job

if TYPE_CHECKING:
    from flwr.app import RecordDict

_ROOM = 4096


class GroupSum(NamedTuple):
    """The outcome for one set of clients: their sum, or why there is none."""

    clients: Sequence[int]
    partial: PartialSum | None
    why: str = ""
    """Why there is no sum; empty otherwise."""


class ReadyRequest(TrainingRequest):
    """A training request that sites answer with READY."""

    def validate(self, ledger: ServerLedger, task: Task, arrival: Arrival) -> AcceptedReply:
        content = arrival.read()
        reply, body = wire.read_reply(content, _ROOM)
        if reply.kind is not ReplyKind.READY:
            return super().validate(ledger, task, arrival)
        if body:
            raise RefusedError(RefusalReason.GARBAGE, "it has a body, before its set is known")
        share = read_share(content, task.client)
        check_answers(ledger, task, reply, share.public)
        info = self._template.info._replace(client=task.client)
        info = _noised_steps(self._job, info, wire.read_record(content, wire.SHARE))
        check_work(self._job, info, self._step)
        answer = self._template._replace(info=info)
        return AcceptedReply(
            reply,
            AdmittedUpdate(answer, {}),
            {},
            share,
            task,
            requirement=read_requirement(content),
        )

    def sets(self, part: MaskedSum, ready: Mapping[int, AcceptedReply]) -> MaskedSumRequest:
        """Return the request for the masked words of the clients that are ready."""
        return MaskedSumRequest(self._job, part, self._download, ready)


def choose_groups(part: MaskedSum, requirements: Mapping[int, SetRequirement]) -> list[list[int]]:
    """Choose the groups of clients that are summed, so that every member allows its group.

    A set that sites require again becomes a group if all of its members are ready.  A site whose
    conditions cannot be met is in no group, because it would make the sum of the others void.
    """
    again, rest = list[list[int]](), list(requirements)
    for wanted in {
        one: None for requirement in requirements.values() for one in requirement.wanted
    }:
        whole = len(wanted) >= part.minimum and wanted <= set(rest)
        if whole and all(requirements[client].allows(wanted) for client in wanted):
            again.append(sorted(wanted))
            rest = [client for client in rest if client not in wanted]
    while len(rest) >= part.minimum:
        made = groups(rest, part.group)
        met = [c for group in made for c in group if requirements[c].allows(group)]
        if len(met) == len(rest):
            return again + made
        rest = met
    return again


class MaskedSumRequest:
    """A request for the masked words of the clients that are ready, in groups."""

    def __init__(
        self, job: Job, part: MaskedSum, download: Download, ready: Mapping[int, AcceptedReply]
    ) -> None:
        self._job = job
        self._part = part
        self._ready = ready
        self._template = upload_template(job, download)
        self._point, self._length = part.fixed_point, length_of(job, self._template)
        self._most = body_size(self._point, self._length) + _ROOM
        self.groups = choose_groups(part, {c: ready[c].requirement for c in sorted(ready)})
        shares = {client: _share(accepted) for client, accepted in ready.items()}
        self._attachments = {
            client: {wire.SET: write_set([shares[one] for one in group])}
            for group in self.groups
            for client in group
        }
        self.scale = 0.0

    def left_out(self, client: int) -> str:
        """Return why a client that is ready is in no group."""
        requirement = self._ready[client].requirement
        if requirement.wanted:
            sets = " and ".join(str(sorted(one)) for one in requirement.wanted)
            return f"it requires the set of its earlier upload, clients {sets}"
        fewest, ready = max(self._part.minimum, requirement.fewest), len(self._ready)
        if ready < fewest:
            return f"{ready} clients are ready, but its sum needs {fewest}"
        return f"fewer than {fewest} of those who are ready agree to a set with it"

    @property
    def members(self) -> list[int]:
        """All clients that are asked."""
        return [client for group in self.groups for client in group]

    def task(self, ledger: ServerLedger, client: int, sequence: int, index: int) -> Task:
        task = self._ready[client].task
        assert task is not None
        return task

    def content(self, task: Task, index: int) -> RecordDict:
        return wire.write(task, b"", self._attachments[task.client])

    def validate(self, ledger: ServerLedger, task: Task, arrival: Arrival) -> AcceptedReply:
        reply, body = wire.read_reply(arrival.read(), self._most)
        if reply.kind is ReplyKind.DECLINED and reply.task == task.id:
            raise RefusedError(RefusalReason.DECLINED, reply.reason)
        if reply.kind is not ReplyKind.MASKED:
            raise RefusedError(RefusalReason.PROTOCOL, f"kind: got {reply.kind}, expected masked")
        check_answers(ledger, task, reply, body)
        words = from_body(body, self._point, self._length)
        return self._ready[task.client]._replace(words=words)

    def sums(self, answers: Mapping[int, AcceptedReply]) -> Iterator[GroupSum]:
        """Yield the sum of every group whose members all answered."""
        for group in self.groups:
            lost = [client for client in group if client not in answers]
            if lost:
                yield GroupSum(group, None, f"client {lost[0]} did not send its words")
                continue
            total = summed([_words(answers[client]) for client in group])
            try:
                upload, infos = read_sum(self._job, self._part, group, total, self._template)
            except RefusedError as error:
                yield GroupSum(group, None, error.detail)
                continue
            if self._job.solver is not None and self._job.solver.noise is not None:
                infos = [
                    info._replace(
                        solve=reported.solve._replace(status="masked"), noised=reported.noised
                    )
                    for info, reported in zip(
                        infos, (self._ready[c].admitted.answer.info for c in group), strict=True
                    )
                ]
            weight = sum(self._job.problem.weight(client) for client in group)
            sent = len(group) * total.nbytes
            yield GroupSum(group, PartialSum(upload, weight, sent, infos))


def _noised_steps(job: Job, info: ClientInfo, found: Mapping[str, object]) -> ClientInfo:
    """Read the number of noised steps of a site, for the server's privacy accounting."""
    if job.solver is None or job.solver.noise is None:
        return info
    steps, epochs, noised = (found.get(name) for name in ("steps", "epochs", "noised"))
    whole = type(steps) is int and type(noised) is int
    if not whole or not isinstance(epochs, float) or not 0 < epochs < 1e12:
        raise RefusedError(RefusalReason.GARBAGE, "the number of noised steps is missing")
    assert isinstance(steps, int)
    assert isinstance(noised, int)
    if not (0 <= steps < 10**12 and 0 <= noised < 10**12):
        raise RefusedError(
            RefusalReason.RANGE, f"got {steps} and {noised} noised steps, expected less than 10^12"
        )
    solve = info.solve._replace(steps=steps, epochs=epochs, passes=epochs)
    return info._replace(solve=solve, noised=noised)


def _share(accepted: AcceptedReply) -> Share:
    assert accepted.share is not None
    return accepted.share


def _words(accepted: AcceptedReply) -> Words:
    assert accepted.words is not None
    return accepted.words
