"""A malicious server that attacks secure aggregation after a simulated run has ended.

It knows every message of the run and tries to learn the upload of one site.  It asks all sites of
an earlier sum but one for the same upload again, because the difference of both sums would show it,
and it sends models on which the local work overflows.  The sites run the real code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from flwr.app import Message, RecordDict

from fedadmm.core.codec import Packed, decode, digest, encode
from fedadmm.core.pairwise_masks import Share
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import ReplyKind, Task
from fedadmm.flower.secure_aggregation.masked_messages import read_share, write_set

from .books import Violation

REPETITIONS = ("a new sequence", "an acknowledgement", "a new incarnation")
"""How the server makes a site compute an upload again."""


class Sent(NamedTuple):
    """A task that left the server, and what travelled with it."""

    task: Task
    body: bytes
    content: RecordDict


class Recorder:
    """Collects the messages of a run that an attack can use."""

    def __init__(self) -> None:
        self.rounds: dict[int, dict[int, Sent]] = {}
        """Tasks by round and client."""
        self._round_of: dict[str, int] = {}
        self.sets: dict[int, frozenset[int]] = {}
        """The largest set of every round."""
        self.ready: dict[str, str] = {}
        """The digest of the READY to a task."""

    def sent(self, content: RecordDict) -> None:
        """Record a message of the server."""
        task, body = wire.read_task(content)
        if wire.SET in content:
            index = self._round_of.get(task.id, -1)
            clients = frozenset(wire.read_record(content, wire.SET)["clients"])
            self.sets[index] = max(clients, self.sets.get(index, frozenset()), key=len)
        else:
            index = int(decode(body).plain["round_index"])
            self._round_of[task.id] = index
            self.rounds.setdefault(index, {})[task.client] = Sent(task, body, content)

    def answered(self, content: RecordDict) -> None:
        """Record the answer of a site."""
        if wire.HEAD in content:
            reply, _ = wire.read_reply(content, 10**9)
            if reply.kind is ReplyKind.READY:
                self.ready[reply.task] = reply.digest


def attack(world: Any, recorder: Recorder, numbers: int = 1 << 50) -> None:
    """Attack the sites of a run; a Violation is raised where they answer what they must not."""
    world.attacked = True
    last = max(recorder.rounds, default=0)
    for client, one in recorder.rounds.get(last, {}).items():
        numbers += 2
        _overflow(world, client, one, last + 1, numbers)
    for index, members in sorted(recorder.sets.items()):
        sent = {c: one for c, one in recorder.rounds.get(index, {}).items() if c in members}
        if len(members) < 4 or len(sent) < len(members):
            continue
        victim = min(members)
        others = {c: one for c, one in sent.items() if c != victim}
        for repetition in REPETITIONS:
            numbers += 2
            tasks = {c: _repeated(one, repetition, recorder, numbers) for c, one in others.items()}
            if all(task is not None for task in tasks.values()):
                _sum(world, others, tasks)  # type: ignore[arg-type]
                world.counts["repeated uploads asked for"] += 1


def _repeated(one: Sent, how: str, recorder: Recorder, number: int) -> Task | None:
    task = one.task._replace(sequence=number)
    if how == "a new sequence":
        return task
    if how == "an acknowledgement":
        known = recorder.ready.get(one.task.id)
        if known is None:
            return None
        return task._replace(acked_version=task.acked_version + 1, acked_digest=known)
    # Only a task to a new client brings what a restarted one starts from.
    return None if task.acked_version else task._replace(incarnation=task.incarnation + 1)


def _sum(world: Any, sent: Mapping[int, Sent], tasks: Mapping[int, Task]) -> None:
    """Ask the sites for the sum of their uploads to these tasks; audited by the world."""
    shares = dict[int, Share]()
    for client, task in tasks.items():
        answer = _ask(world, client, task, sent[client].body, sent[client].content)
        if answer is None or wire.SHARE not in answer:
            return
        shares[client] = read_share(answer, client)
    given = write_set([shares[client] for client in sorted(shares)])
    for client, task in tasks.items():
        _ask(world, client, task, b"", sent[client].content, {wire.SET: given})


def _overflow(world: Any, client: int, one: Sent, index: int, number: int) -> None:
    """The kind of the answer must not show whether the local work has a usable result."""
    packed = decode(one.body)
    kinds = []
    for k, largest in enumerate((1.0, 1.7e308)):
        tensors = {n: torch.full_like(tensor, largest) for n, tensor in packed.tensors.items()}
        plain = {**packed.plain, "round_index": index + k}
        body = encode(Packed(tensors, plain))
        task = one.task._replace(sequence=number + k, broadcast_digest=digest(body))
        answer = _ask(world, client, task, body, one.content)
        kinds.append("error" if answer is None else str(wire.read_reply(answer, 10**9)[0].kind))
    if kinds[0] != kinds[1]:
        raise Violation(f"client {client} answers a model by {kinds[0]}, another by {kinds[1]}")
    world.counts["models crafted to overflow"] += kinds[0] == ReplyKind.READY


def _ask(
    world: Any,
    client: int,
    task: Task,
    body: bytes,
    like: RecordDict,
    extra: Mapping[str, Mapping[str, Any]] | None = None,
) -> RecordDict | None:
    """The answer of a site to a message; None where it is an error."""
    content = wire.write(task, body, extra)
    for name in like:
        if name not in content and name not in (wire.HEAD, wire.BODY, wire.SET):
            content[name] = like[name]
    node = next(node for node in world.nodes.values() if node.client == client and node.online)
    message = Message(content, node.number, "train")
    message.metadata.__dict__["_message_id"] = f"m{10**9}"
    reply = world.answer(node, message)
    return None if reply is None or reply.has_error() else reply.content
