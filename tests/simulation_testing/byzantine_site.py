"""A site that sends what it likes."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import torch
from flwr.app import RecordDict

from fedadmm.core.codec import Packed, decode, encode
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.admission import seal
from fedadmm.flower.protocol.ledger import RefusedError, Reply, ReplyKind, reply_to


class Liar:
    """One client that tells the truth about half the time, so that the rest of it is believed."""

    def __init__(self, client: int, chance: Random) -> None:
        self.client = client
        self._chance = chance
        self._past: list[RecordDict] = []

    def instead(self, question: RecordDict, truth: RecordDict) -> RecordDict:
        """What is said instead of the truth."""
        chance = self._chance
        self._past.append(truth)
        if chance.random() < 0.4:
            return truth
        task, _ = wire.read_task(question)
        try:
            reply, body = wire.read_reply(truth, 10**9)
        except RefusedError:
            return truth
        kind = chance.randrange(10)
        if kind == 0:
            return chance.choice(self._past)  # an old reply
        if kind == 1:
            return wire.write(reply, chance.randbytes(chance.choice([0, 7, 300])))
        if kind == 2:
            return wire.write(reply, body + bytes(chance.choice([1, 10**5])))
        if kind == 3:
            claimed = chance.choice([ReplyKind.LOST, ReplyKind.STALE, ReplyKind.FAILED])
            return wire.write(reply_to(task, claimed, "\x1b[2J it was\nnot me"), b"")
        if reply.kind not in (ReplyKind.UPDATE, ReplyKind.MASKED):
            return truth
        if kind == 4:
            return self._with_head(reply, body)
        if kind == 5:  # the digest stays that of the truth
            return wire.write(reply, self._with_numbers(body, lambda x: x + 1))
        if kind == 6:
            wrong = chance.choice([math.nan, math.inf, 1e300])
            return self._sealed(reply, self._with_numbers(body, lambda x: x * 0 + wrong))
        if kind == 7:
            return self._sealed(reply, self._with_names(body))
        if kind == 8:
            return self._sealed(reply, self._with_numbers(body, lambda x: x * 1e4))
        return self._sealed(reply, self._with_numbers(body, lambda x: x + 0.1))  # believed

    def _with_head(self, reply: Reply, body: bytes) -> RecordDict:
        changes = [
            {"client": reply.client + 1},
            {"version": reply.version + 1},
            {"version": max(reply.version - 1, 0)},
            {"sequence": reply.sequence + 1},
            {"incarnation": reply.incarnation + 1},
            {"run": "another"},
            {"task": "0" * 32},
        ]
        return self._sealed(reply._replace(**self._chance.choice(changes)), body)  # type: ignore[arg-type]

    def _sealed(self, reply: Reply, body: bytes) -> RecordDict:
        return wire.write(seal(reply._replace(digest=""), body), body)

    def _with_numbers(self, body: bytes, change: Callable[[torch.Tensor], torch.Tensor]) -> bytes:
        packed = decode(body)
        return encode(Packed({n: change(t) for n, t in packed.tensors.items()}, packed.plain))

    def _with_names(self, body: bytes) -> bytes:
        packed = decode(body)
        return encode(Packed({f"{n}x": t for n, t in packed.tensors.items()}, packed.plain))
