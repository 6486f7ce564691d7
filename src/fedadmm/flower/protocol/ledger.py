"""Exactly-once updates: which version of a client's state server and client agree on.

Every method of the package uploads increments, so an upload that is lost after the client moved,
or that is counted twice, would leave the server wrong for the rest of the run.  One rule prevents
this:

    A client's state moves only after the server has aggregated the upload that belongs to it.

A client keeps two states: that of the last version which the server is known to have aggregated
(`acked`), and that of its latest upload (`pending`).  Every task names the version that the server
has aggregated, and the client

    promotes    pending to acked, if the task names the pending version;
    replays     the stored reply, if the same task arrives again;
    computes    from the acked state otherwise; a pending upload was never counted and is dropped;
    answers     STALE, if the task is older than one that it has seen;
    answers     LOST, if it has no such version: its disk was wiped or belongs to another client.

The server aggregates a reply only if it answers the open task, and only once.  It stores its state
together with the aggregated versions before it sends the next task, which is the acknowledgement.
A lost reply therefore means that the client did not take part in that round, and nothing else.

All functions of this module are pure; they work on small tuples without disk or network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from fedadmm.core.errors import StateError


class LedgerEntry(NamedTuple):
    """The version of one client's state that the server has aggregated."""

    incarnation: int = 0
    """How often the client was removed and restarted from the initial state."""
    version: int = 0
    """The last aggregated version; 0 is the initial state."""
    digest: str = ""
    """The digest of the reply with this version."""
    lost: bool = False
    """Whether the client answered its last task that it no longer has this version."""


NEWCOMER = LedgerEntry()


class ServerLedger(NamedTuple):
    """The server's ledger: one entry per client that ever took part."""

    run: str
    entries: Mapping[int, LedgerEntry] = {}

    def entry(self, client: int) -> LedgerEntry:
        """The entry of a client; a new client has the initial state."""
        return self.entries.get(client, NEWCOMER)

    @property
    def restarts(self) -> int:
        """How many times clients were removed and restarted."""
        return sum(entry.incarnation for entry in self.entries.values())

    def replace(self, client: int, entry: LedgerEntry) -> ServerLedger:
        """A copy of the ledger with one entry replaced."""
        return ServerLedger(self.run, {**self.entries, client: entry})


class Task(NamedTuple):
    """The header of a task; the broadcast travels as its body."""

    run: str
    client: int
    sequence: int
    """Increases from task to task of a client: the round plus the number of restarts, because a
    round is repeated after a restart; a counter in asynchronous runs."""
    incarnation: int
    acked_version: int
    """The acknowledgement: the last version of this client that the server has aggregated."""
    acked_digest: str
    broadcast_digest: str
    """The digest of the broadcast, so that two tasks are equal only if their contents are."""

    @property
    def id(self) -> str:
        """Identifier of the task: equal for a repeated task, different for any other."""
        text = "\n".join(map(str, self))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class ReplyKind(StrEnum):
    """The kinds of replies of a client."""

    UPDATE = "update"
    READY = "ready"
    """The upload is stored at the site until the set of sites in its sum is fixed."""
    MASKED = "masked"
    """The masked upload, after READY."""
    STALE = "stale"
    LOST = "lost"
    FAILED = "failed"
    DECLINED = "declined"


class Reply(NamedTuple):
    """The header of a reply; the upload travels as its body."""

    kind: ReplyKind
    task: str
    run: str
    client: int
    sequence: int
    incarnation: int
    version: int
    digest: str = ""
    """Digest of this header (with an empty digest) and of the body."""
    reason: str = ""


class StoredVersion(NamedTuple):
    """The version of a client state as stored on the client's disk."""

    run: str
    incarnation: int
    version: int
    sequence: int
    task: str
    digest: str


class ClientLedger(NamedTuple):
    """The client's ledger: the acknowledged state and that of the last upload."""

    acked: StoredVersion | None = None
    pending: StoredVersion | None = None


NOTHING = ClientLedger()


class Action(StrEnum):
    """How a client responds to a task."""

    COMPUTE = "compute"
    REPLAY = "replay"
    STALE = "stale"
    LOST = "lost"


class Decision(NamedTuple):
    """The response to a task.

    Args:
        action: how the client responds.
        ledger: the client's ledger to compute with.
        promote: whether the pending state becomes the acknowledged one first.
        forget: whether all states are deleted first, because the server restarted this client.
        reason: why nothing is computed; empty otherwise.
    """

    action: Action
    ledger: ClientLedger
    promote: bool = False
    forget: bool = False
    reason: str = ""


def decide(ledger: ClientLedger, task: Task) -> Decision:
    """Decide how a client with this ledger responds to a task."""
    stored = [one for one in ledger if one is not None]
    if any(one.run != task.run for one in stored):
        return Decision(Action.LOST, ledger, reason="the stored state belongs to another run")
    if any(one.incarnation > task.incarnation for one in stored):
        return Decision(Action.STALE, ledger, reason="the task is for an earlier incarnation")
    forget = any(one.incarnation < task.incarnation for one in stored)
    if forget:
        ledger, stored = NOTHING, []
    newest = max((one.sequence for one in stored), default=task.sequence)
    if task.sequence < newest:
        reason = f"the task has number {task.sequence}, but number {newest} was seen already"
        return Decision(Action.STALE, ledger, reason=reason)
    promote = _is(ledger.pending, task.acked_version, task.acked_digest)
    if promote:
        ledger = ClientLedger(ledger.pending, None)
    if not _is_acked(ledger.acked, task):
        own = 0 if ledger.acked is None else ledger.acked.version
        if task.acked_version < own:
            reason = (
                f"the task names version {task.acked_version}, but {own} was acknowledged already"
            )
            return Decision(Action.STALE, ledger, promote, forget, reason)
        reason = f"the server has version {task.acked_version}, but this site has version {own}"
        return Decision(Action.LOST, ledger, promote, forget, reason)
    if ledger.pending is not None and ledger.pending.task == task.id:
        return Decision(Action.REPLAY, ledger, promote, forget)
    return Decision(Action.COMPUTE, ClientLedger(ledger.acked, None), promote, forget)


def _is(stored: StoredVersion | None, version: int, digest: str) -> bool:
    return stored is not None and (stored.version, stored.digest) == (version, digest)


def _is_acked(acked: StoredVersion | None, task: Task) -> bool:
    if acked is None:
        return task.acked_version == 0
    return _is(acked, task.acked_version, task.acked_digest)


def stored_version(reply: Reply) -> StoredVersion:
    """The stored version that belongs to a reply."""
    return StoredVersion(
        reply.run, reply.incarnation, reply.version, reply.sequence, reply.task, reply.digest
    )


def reply_to(task: Task, kind: ReplyKind, reason: str = "") -> Reply:
    """Return the header of a reply; an update has the version after the acknowledged one."""
    has_update = kind in (ReplyKind.UPDATE, ReplyKind.READY, ReplyKind.MASKED)
    version = task.acked_version + 1 if has_update else task.acked_version
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


def create_task(ledger: ServerLedger, client: int, sequence: int, broadcast_digest: str) -> Task:
    """Create a task for a client, with the acknowledgement of the last aggregated version."""
    entry = ledger.entry(client)
    return Task(
        ledger.run,
        client,
        sequence,
        entry.incarnation,
        entry.version,
        entry.digest,
        broadcast_digest,
    )


def validate_reply(ledger: ServerLedger, task: Task, reply: Reply) -> None:
    """Check that a reply answers the open task and was not aggregated yet.

    Only the header is validated here; `admission` validates the content.

    Raises:
        RefusedError: the reply answers another task, or its version was aggregated already.
    """
    expected = reply_to(task, ReplyKind.UPDATE)
    for name in ("run", "client", "task", "sequence", "incarnation", "version"):
        got, wanted = getattr(reply, name), getattr(expected, name)
        if got != wanted:
            raise RefusedError(RefusalReason.PROTOCOL, f"{name}: got {got!r}, expected {wanted!r}")
    entry = ledger.entry(task.client)
    if (entry.incarnation, entry.version) != (task.incarnation, task.acked_version):
        detail = f"version {reply.version} was aggregated already"
        raise RefusedError(RefusalReason.PROTOCOL, detail)


def record_aggregated(ledger: ServerLedger, reply: Reply) -> ServerLedger:
    """The ledger after a reply was aggregated."""
    entry = LedgerEntry(reply.incarnation, reply.version, reply.digest)
    return ledger.replace(reply.client, entry)


def mark_lost(ledger: ServerLedger, client: int) -> ServerLedger:
    """Mark that a client no longer has the state that the server has aggregated."""
    return ledger.replace(client, ledger.entry(client)._replace(lost=True))


def restart(ledger: ServerLedger, client: int) -> ServerLedger:
    """Restart a client from the initial state, after its contribution was removed."""
    return ledger.replace(client, LedgerEntry(ledger.entry(client).incarnation + 1))


LONGEST_TEXT = 500
"""Characters of a text that a site may send."""


class RefusalReason(StrEnum):
    """Why a reply was refused or is missing; events are counted by these names."""

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
    """A reply cannot be used; only its sender is left out of the round."""

    def __init__(self, reason: RefusalReason, detail: str) -> None:
        self.reason = reason
        self.detail = printable(detail)
        super().__init__(f"{reason}: {self.detail}")


def by_client(why: Mapping[int, RefusedError]) -> str:
    """Return the reasons of clients as text, clients with the same reason together."""
    said: dict[str, list[int]] = {}
    for client, refused in sorted(why.items()):
        said.setdefault(str(refused), []).append(client)
    return "; ".join(
        f"client{'s' * (len(clients) > 1)} {', '.join(map(str, clients))}: {reason}"
        for reason, clients in said.items()
    )


def printable(text: str, most: int = LONGEST_TEXT) -> str:
    """Make a text of a remote site safe to log: one line without control characters."""
    letters = (x if x.isprintable() else "\N{REPLACEMENT CHARACTER}" for x in text[:most])
    return "".join(letters)
