"""Exactly-once increments: who knows which version of a client's state.

Every method of the family uploads increments, so an upload that is lost after the client moved,
or counted twice, would leave the server wrong for ever.  The rule that prevents it:

    a client's state moves only when the server has folded the upload that moved it.

A client keeps two states: the one of the version that the server is known to have folded
(`acked`), and the one of its latest upload (`pending`).  Every task names the version that the
server has folded, and the client

    promotes   pending to acked, when that is the version named;
    replays    the stored reply, when the same task comes again;
    computes   afresh from acked otherwise: what was pending never counted, and is dropped;
    gives up   as stale, when the task is older than one it has seen;
    gives up   as lost, when it holds no such version: its disk was wiped, or is another one's.

The server folds a reply only if it answers the task that is open, once, and writes its own state
and the versions it folded before it sends the next task, which is the acknowledgement.  A lost
reply therefore means that the client did not take part in that round, and nothing else.

Everything here is a pure function of small tuples; disks and networks are elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from fedadmm.core.errors import StateError


class Entry(NamedTuple):
    """What the server knows of one client."""

    incarnation: int = 0
    """How often the client was taken out and started again."""
    version: int = 0
    """The last version that was folded; 0 is the initial state."""
    digest: str = ""
    """The digest of the reply that brought this version."""
    lost: bool = False
    """Whether the client said, when it was last asked, that it no longer has this version."""


NEWCOMER = Entry()


class ServerLedger(NamedTuple):
    """The server's half: one entry for each client that ever took part."""

    run: str
    entries: Mapping[int, Entry] = {}

    def entry(self, client: int) -> Entry:
        """What is known of a client; a newcomer has the initial state."""
        return self.entries.get(client, NEWCOMER)

    @property
    def restarts(self) -> int:
        """How often a client was taken out and started again."""
        return sum(entry.incarnation for entry in self.entries.values())

    def replace(self, client: int, entry: Entry) -> ServerLedger:
        """The ledger with one entry changed."""
        return ServerLedger(self.run, {**self.entries, client: entry})


class Task(NamedTuple):
    """What the server asks of a client, besides the broadcast itself."""

    run: str
    client: int
    sequence: int
    """Grows from task to task of a client: the round and the restarts before it, because a round is
    made again after one of them; or a counter when there are no rounds."""
    incarnation: int
    folded: int
    """The acknowledgement: the last version of this client that the server folded."""
    folded_digest: str
    cast_digest: str
    """The digest of the broadcast, so that a task is the same only if its content is."""

    @property
    def id(self) -> str:
        """The same for a repeated task, different for every other."""
        text = "\n".join(map(str, self))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Kind(StrEnum):
    """What a reply brings."""

    UPDATE = "update"
    READY = "ready"
    """The upload waits at the site until it is known whose it is added to."""
    MASKED = "masked"
    """The upload that was ready, under masks."""
    STALE = "stale"
    LOST = "lost"
    FAILED = "failed"
    DECLINED = "declined"


class Reply(NamedTuple):
    """The head of a reply; the upload travels beside it."""

    kind: Kind
    task: str
    run: str
    client: int
    sequence: int
    incarnation: int
    version: int
    digest: str = ""
    """Over this head (with an empty digest) and the upload."""
    reason: str = ""


class Slot(NamedTuple):
    """What a client's disk says about one state it keeps."""

    run: str
    incarnation: int
    version: int
    sequence: int
    task: str
    digest: str


class ClientLedger(NamedTuple):
    """The client's half: the acknowledged state and the one of the last upload."""

    acked: Slot | None = None
    pending: Slot | None = None


NOTHING = ClientLedger()


class Action(StrEnum):
    """What a client does with a task."""

    COMPUTE = "compute"
    REPLAY = "replay"
    STALE = "stale"
    LOST = "lost"


class Decision(NamedTuple):
    """What to do, the ledger to do it with, and why when nothing is computed.

    `promote` and `forget` are what the disk has to do first: make pending the acked state, or
    drop everything because the server started this client again.
    """

    action: Action
    ledger: ClientLedger
    promote: bool = False
    forget: bool = False
    reason: str = ""


def receive(ledger: ClientLedger, task: Task) -> Decision:
    """What a client does when a task arrives."""
    slots = [slot for slot in ledger if slot is not None]
    if any(slot.run != task.run for slot in slots):
        return Decision(Action.LOST, ledger, reason="the stored state belongs to another run")
    if any(slot.incarnation > task.incarnation for slot in slots):
        return Decision(Action.STALE, ledger, reason="the task is for an earlier incarnation")
    forget = any(slot.incarnation < task.incarnation for slot in slots)
    if forget:
        ledger, slots = NOTHING, []
    newest = max((slot.sequence for slot in slots), default=task.sequence)
    if task.sequence < newest:
        reason = f"the task has number {task.sequence}, but number {newest} was seen already"
        return Decision(Action.STALE, ledger, reason=reason)
    promote = _is(ledger.pending, task.folded, task.folded_digest)
    if promote:
        ledger = ClientLedger(ledger.pending, None)
    if not _stands_at(ledger.acked, task):
        held = 0 if ledger.acked is None else ledger.acked.version
        if task.folded < held:
            reason = f"the task names version {task.folded}, but {held} was acknowledged already"
            return Decision(Action.STALE, ledger, promote, forget, reason)
        reason = f"the server folded version {task.folded}, but version {held} is all there is here"
        return Decision(Action.LOST, ledger, promote, forget, reason)
    if ledger.pending is not None and ledger.pending.task == task.id:
        return Decision(Action.REPLAY, ledger, promote, forget)
    return Decision(Action.COMPUTE, ClientLedger(ledger.acked, None), promote, forget)


def _is(slot: Slot | None, version: int, digest: str) -> bool:
    return slot is not None and (slot.version, slot.digest) == (version, digest)


def _stands_at(acked: Slot | None, task: Task) -> bool:
    if acked is None:
        return task.folded == 0
    return _is(acked, task.folded, task.folded_digest)


def slot_of(reply: Reply) -> Slot:
    """What the disk notes about the state that a reply leads to."""
    return Slot(
        reply.run, reply.incarnation, reply.version, reply.sequence, reply.task, reply.digest
    )


def reply_to(task: Task, kind: Kind, reason: str = "") -> Reply:
    """The head of a reply to a task; an update is the version after the folded one."""
    brings = kind in (Kind.UPDATE, Kind.READY, Kind.MASKED)
    version = task.folded + 1 if brings else task.folded
    return Reply(
        kind,
        task.id,
        task.run,
        task.client,
        task.sequence,
        task.incarnation,
        version,
        reason=reason,
    )


def issue(ledger: ServerLedger, client: int, sequence: int, cast_digest: str) -> Task:
    """The task for a client, with the acknowledgement of what was folded so far."""
    entry = ledger.entry(client)
    return Task(
        ledger.run,
        client,
        sequence,
        entry.incarnation,
        entry.version,
        entry.digest,
        cast_digest,
    )


def objection(ledger: ServerLedger, task: Task, reply: Reply) -> str | None:
    """Why a reply must not be folded, or None; its content is judged by admission."""
    expected = reply_to(task, Kind.UPDATE)
    for name in ("run", "client", "task", "sequence", "incarnation", "version"):
        got, wanted = getattr(reply, name), getattr(expected, name)
        if got != wanted:
            return f"{name} is {got!r}, but must be {wanted!r}"
    entry = ledger.entry(task.client)
    if (entry.incarnation, entry.version) != (task.incarnation, task.folded):
        return f"version {reply.version} was folded already"
    return None


def fold(ledger: ServerLedger, reply: Reply) -> ServerLedger:
    """The ledger after a reply was folded."""
    entry = Entry(reply.incarnation, reply.version, reply.digest)
    return ledger.replace(reply.client, entry)


def mark_lost(ledger: ServerLedger, client: int) -> ServerLedger:
    """Note that a client no longer has the state that the server folded."""
    return ledger.replace(client, ledger.entry(client)._replace(lost=True))


def restart(ledger: ServerLedger, client: int) -> ServerLedger:
    """Start a client again from the initial state, after its contribution was taken out."""
    return ledger.replace(client, Entry(ledger.entry(client).incarnation + 1))


LONGEST_TEXT = 500
"""Characters of a text that a site may send."""


class Word(StrEnum):
    """What became of a task or of its reply; each is counted under this name."""

    ERROR = "error"
    GARBAGE = "garbage"
    SIZE = "size"
    SHAPE = "shape"
    DTYPE = "dtype"
    RANGE = "range"
    DIGEST = "digest"
    FINITE = "finite"
    NORM = "norm"
    PROTOCOL = "protocol"
    ROLLBACK = "rollback"
    LOST = "lost"
    MISSING = "missing"
    DUPLICATE = "duplicate"
    LEDGER = "ledger"
    REPAIRED = "repaired"
    DECLINED = "declined"
    VOID = "void"


class RefusedError(StateError):
    """Something that a site sent is not taken; it costs its sender only."""

    def __init__(self, word: Word, detail: str) -> None:
        self.word = word
        self.detail = printable(detail)
        super().__init__(f"{word}: {self.detail}")


def printable(text: str, most: int = LONGEST_TEXT) -> str:
    """A text of somebody else's as it may stand in a log: one line, no control characters."""
    letters = (x if x.isprintable() else "\N{REPLACEMENT CHARACTER}" for x in text[:most])
    return "".join(letters)
