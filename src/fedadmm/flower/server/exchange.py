"""Messages out and in over a Flower grid, without ever waiting for ever."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fedadmm.core import clock
from fedadmm.flower.protocol.refusal import printable
from fedadmm.flower.protocol.signing import Sign

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid


class Arrival(NamedTuple):
    """A message that came back, or the news that none will."""

    key: int
    """What the sender called the message: a client, or a node."""
    content: RecordDict | None
    error: str


class Seat(NamedTuple):
    """A node that is online: its registered name, and since when it has been there."""

    node: int
    name: str
    since: str
    """Changes when the node restarts: what was sent to it before will not be answered."""
    key: str = ""
    """The public key that it proved to have; empty where nodes have none."""

    @property
    def identity(self) -> str:
        """What stays the same over restarts: the key, or else the node's number."""
        return self.key or str(self.node)


class Exchange:
    """Sends messages and collects what comes back, by the sender's own key."""

    def __init__(self, grid: Grid, poll: float, sign: Sign | None = None) -> None:
        self._grid = grid
        self._sign = sign
        self._poll = poll
        self._waiting: dict[str, int] = {}
        self._copies: Counter[int] = Counter()
        self._inbox: deque[Arrival] = deque()

    def now(self) -> float:
        """Seconds on a clock that only goes forward."""
        return clock.now()

    def seats(self) -> dict[int, Seat]:
        """The nodes that are online."""
        found = [
            Seat(
                int(node.node_id),
                printable(str(node.name)),
                str(node.last_activated_at),
                bytes(getattr(node, "public_key", b"")).hex(),
            )
            for node in self._grid.get_nodes()
        ]
        return {seat.node: seat for seat in found}

    def send(
        self, kind: str, group: str, contents: Mapping[int, tuple[int, RecordDict]], ttl: float
    ) -> None:
        """Send to each key its (node, content)."""
        from flwr.app import Message

        if self._sign is not None:
            for _, content in contents.values():
                self._sign(content)
        messages = {
            key: Message(content, node, kind, group_id=group, ttl=ttl)
            for key, (node, content) in contents.items()
        }
        if not messages:
            return
        identities = list(self._grid.push_messages(list(messages.values())))
        for key, identity in zip(messages, identities, strict=False):
            if identity:
                self._waiting[identity] = key
                self._copies[key] += 1

    def arrivals(self, until: float) -> Iterator[Arrival]:
        """What comes back, until nothing is awaited any more or the time is over.

        Whoever stops early finds the rest at the next call.  An error says nothing as long as
        another copy of the message is out: a node that died answers the one that it got after its
        restart, and what was sent to it before ends in an error.
        """
        while True:
            while self._inbox:
                yield self._inbox.popleft()
            if not self._waiting:
                return
            for message in self._grid.pull_messages(list(self._waiting)):
                key = self._waiting.pop(message.metadata.reply_to_message_id, None)
                if key is None:
                    continue
                self._copies[key] -= 1
                if not (message.has_error() and self._copies[key]):
                    self._inbox.append(_arrival(key, message))
            if not self._inbox:
                if self.now() >= until:
                    return
                self.pause()

    def pause(self) -> None:
        """Let some time pass before the next look."""
        clock.sleep(self._poll)

    def forget(self) -> None:
        """Wait no longer for what is still out."""
        self._waiting.clear()
        self._copies.clear()
        self._inbox.clear()


def _arrival(key: int, message: Message) -> Arrival:
    if message.has_error():
        reason: Any = getattr(message.error, "reason", None)
        return Arrival(key, None, printable(str(reason or "an error without a reason")))
    return Arrival(key, message.content, "")
