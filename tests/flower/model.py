"""A small world around the pure protocol: disks, a lossy network, crashes, all by chance.

Increments are random whole numbers, so that "folded exactly once" is an equality of integers
between what the server has summed and what stands on the client's disk.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from fedadmm.flower.protocol.ledger import (
    NOTHING,
    Action,
    ClientLedger,
    RefusedError,
    Reply,
    ReplyKind,
    ServerLedger,
    Task,
    create_task,
    decide,
    mark_lost,
    record_aggregated,
    reply_to,
    restart,
    stored_version,
    validate_reply,
)


class Crash(Exception):  # noqa: N818
    """The process dies here; what is on disk stays."""


@dataclass
class Disk:
    """A client's disk: the ledger and the state and reply of each slot."""

    ledger: ClientLedger = NOTHING
    states: dict[str, int] = field(default_factory=dict)
    replies: dict[str, tuple[Reply, int]] = field(default_factory=dict)
    wiped: bool = False

    def state(self, digest: str) -> int:
        return self.states[digest] if digest else 0


@dataclass
class Checkpoint:
    """The server's disk."""

    ledger: ServerLedger
    sums: dict[int, int]
    round: int = 0
    boot: int = 0


class World:
    def __init__(self, seed: int, clients: int, asynchronous: bool, repair: bool) -> None:
        self.chance = random.Random(seed)
        self.disks = {client: Disk() for client in range(clients)}
        self.asynchronous = asynchronous
        self.repair = repair
        self.network: list[tuple[str, object]] = []
        self.happened: Counter[str] = Counter()
        self.saved = Checkpoint(ServerLedger("run"), dict.fromkeys(self.disks, 0))
        self.start_server()

    # the server ---------------------------------------------------------------------------

    def start_server(self) -> None:
        self.saved.boot += 1
        self.ledger = self.saved.ledger
        self.sums = dict(self.saved.sums)
        self.round = self.saved.round
        self.open: dict[int, Task] = {}
        self.accepted: dict[int, tuple[Reply, int]] = {}
        self.counter = 0

    def save(self) -> None:
        self.saved = Checkpoint(self.ledger, dict(self.sums), self.round, self.saved.boot)

    def send(self, client: int) -> None:
        if self.asynchronous:
            self.counter += 1
            sequence, cast = (self.saved.boot << 32) + self.counter, f"{sorted(self.sums.items())}"
        else:
            sequence, cast = self.round, f"cast {self.round}"
        if client not in self.open or self.asynchronous:
            self.open[client] = create_task(self.ledger, client, sequence, cast)
        self.network.append(("task", self.open[client]))

    def serve(self, reply: Reply, increment: int) -> None:
        task = self.open.get(reply.client)
        if task is None:
            self.happened["refused"] += 1
            return
        if reply.kind is ReplyKind.LOST and reply.task == task.id:
            self.happened["lost"] += 1
            self.ledger = mark_lost(self.ledger, reply.client)
            if self.repair and self.asynchronous:
                self.take_out(reply.client)
            return
        try:
            validate_reply(self.ledger, task, reply)
        except RefusedError:
            self.happened["refused"] += 1
            return
        if reply.kind is not ReplyKind.UPDATE:
            self.happened["refused"] += 1
            return
        if reply.client in self.accepted:
            self.happened["duplicate"] += 1
            return
        self.accepted[reply.client] = (reply, increment)
        if self.asynchronous:
            self.close_round()
            self.send(reply.client)

    def close_round(self) -> None:
        self.maybe_crash("server before fold", 0.05)
        for client, (reply, increment) in self.accepted.items():
            self.sums[client] += increment
            self.ledger = record_aggregated(self.ledger, reply)
            self.happened["folded"] += 1
            if reply.digest in self.disks[client].states:
                self.disks[client].wiped = False
        self.accepted = {}
        if not self.asynchronous:
            self.open = {}
            if self.repair:
                for client in self.disks:
                    if self.ledger.entry(client).lost:
                        self.take_out(client)
            self.round += 1
        self.maybe_crash("server after fold", 0.05)
        self.save()
        self.maybe_crash("server after checkpoint", 0.05)

    def take_out(self, client: int) -> None:
        self.sums[client] = 0
        self.ledger = restart(self.ledger, client)
        self.open.pop(client, None)
        self.happened["repaired"] += 1
        if self.asynchronous:
            self.save()

    def maybe_crash(self, where: str, probability: float) -> None:
        if self.chance.random() < probability:
            self.happened[where] += 1
            raise Crash

    # a client -----------------------------------------------------------------------------

    def work(self, task: Task) -> None:
        disk = self.disks[task.client]
        decision = decide(disk.ledger, task)
        self.happened[str(decision.action)] += 1
        if decision.forget:
            self.disks[task.client] = disk = Disk(wiped=disk.wiped)
        if decision.promote:
            disk.ledger = ClientLedger(disk.ledger.pending, None)
            self.maybe_crash("client after promotion", 0.05)
        if decision.action is Action.REPLAY:
            assert disk.ledger.pending is not None
            answer = disk.replies[disk.ledger.pending.digest]
        elif decision.action is Action.COMPUTE:
            self.maybe_crash("client before commit", 0.05)
            increment = self.chance.randrange(1, 10**12)
            reply = reply_to(task, ReplyKind.UPDATE)._replace(digest=f"{increment:x}")
            acked = decision.ledger.acked
            base = disk.state(acked.digest) if acked is not None else 0
            disk.states[reply.digest] = base + increment
            disk.replies[reply.digest] = (reply, increment)
            disk.ledger = ClientLedger(acked, stored_version(reply))
            self.maybe_crash("client after commit", 0.05)
            answer = (reply, increment)
        else:
            kind = ReplyKind.LOST if decision.action is Action.LOST else ReplyKind.STALE
            answer = (reply_to(task, kind), 0)
        self.network.append(("reply", answer))
        self.maybe_crash("client after reply", 0.05)

    def wipe(self, client: int) -> None:
        """Even a disk that only held an unfolded state is missed: its reply may still be folded."""
        self.happened["wipe"] += 1
        self.disks[client] = Disk(wiped=self.disks[client] != Disk())

    # what always holds ----------------------------------------------------------------------

    def check(self) -> None:
        """What the server summed is what stands on the client's disk, for both server states."""
        for ledger, sums in ((self.ledger, self.sums), (self.saved.ledger, self.saved.sums)):
            for client, disk in self.disks.items():
                entry = ledger.entry(client)
                if entry.version == 0:
                    assert sums[client] == 0
                elif not disk.wiped and entry.incarnation == _incarnation(disk, entry.incarnation):
                    held = [slot for slot in disk.ledger if slot is not None]
                    digests = {slot.version: slot.digest for slot in held}
                    assert digests.get(entry.version) == entry.digest, (client, entry, held)
                    assert sums[client] == disk.state(entry.digest)

    # the world ------------------------------------------------------------------------------

    def step(self, wipes: bool) -> None:
        event = self.chance.random()
        try:
            if self.network and event < 0.62:
                self.deliver(self.chance.randrange(len(self.network)))
            elif self.network and event < 0.70:
                self.happened["dropped"] += 1
                self.network.pop(self.chance.randrange(len(self.network)))
            elif self.network and event < 0.76:
                self.happened["repeated"] += 1
                self.network.append(self.chance.choice(self.network))
            elif event < 0.90:
                self.send(self.chance.randrange(len(self.disks)))
            elif event < 0.98:
                if not self.asynchronous:
                    self.at_server(self.close_round)
            elif wipes and self.chance.random() < 0.3:
                self.wipe(self.chance.randrange(len(self.disks)))
        except Crash:
            pass
        self.check()

    def deliver(self, index: int) -> None:
        kind, content = self.network.pop(index)
        if kind == "task":
            assert isinstance(content, Task)
            self.work(content)
            return
        assert isinstance(content, tuple)
        self.at_server(lambda: self.serve(*content))

    def at_server(self, action: Callable[[], None]) -> None:
        """A crash here is the server's: it starts again from its disk."""
        try:
            action()
        except Crash:
            self.start_server()
            raise

    def settle(self) -> None:
        """No more faults: everybody who can take part does, within a few rounds."""
        self.chance.random = lambda: 1.0  # type: ignore[method-assign]
        before = {client: self.ledger.entry(client) for client in self.disks}
        for _ in range(4):
            for client in self.disks:
                self.send(client)
            for _ in range(len(self.network) + 6 * len(self.disks)):
                if self.network:
                    self.deliver(0)
            if not self.asynchronous:
                self.close_round()
            self.check()
        for client in self.disks:
            entry = self.ledger.entry(client)
            moved = entry != before[client] and not entry.lost
            assert moved or (entry.lost and not self.repair), (client, entry, before[client])


def _incarnation(disk: Disk, fallback: int) -> int:
    """A disk of an earlier incarnation has yet to hear that it was started again."""
    slots = [slot for slot in disk.ledger if slot is not None]
    return max((slot.incarnation for slot in slots), default=fallback)


def explore(seed: int, steps: int, *, asynchronous: bool, wipes: bool, repair: bool) -> World:
    """One random history, then a quiet end; returns the world for its counts."""
    world = World(seed, clients=3, asynchronous=asynchronous, repair=repair)
    for _ in range(steps):
        world.step(wipes)
    world.settle()
    return world
