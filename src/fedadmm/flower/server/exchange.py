"""Exchange of messages with nodes, and the roster that maps nodes to clients.

A node that authenticates with a key keeps its identity and its registered name; one without a key
gets a new identity at every start.  The number of a client never changes.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedadmm.core import clock
from fedadmm.core.errors import EngineError
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import RefusalReason, RefusedError, printable
from fedadmm.flower.protocol.wire import Sign

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid


class Arrival(NamedTuple):
    """A reply to a message, or the error in its place."""

    key: int
    """The sender's key of the message: a client or a node."""
    content: RecordDict | None
    error: str

    def read(self) -> RecordDict:
        """Return the content, or raise a RefusedError for an error."""
        if self.content is None:
            raise RefusedError(RefusalReason.ERROR, self.error)
        return self.content


class OnlineNode(NamedTuple):
    """A node that is online: its registered name, and when it connected."""

    node: int
    name: str
    since: str
    """Changes when the node restarts; messages from before are not answered."""
    key: str = ""
    """Its authenticated public key; empty without authentication."""

    @property
    def identity(self) -> str:
        """The identity across restarts: the key, or the number of a node without one."""
        return self.key or str(self.node)


class Exchange:
    """Sends messages and collects the replies by the keys of the sender."""

    def __init__(self, grid: Grid, poll: float, sign: Sign | None = None) -> None:
        self._grid = grid
        self._sign = sign
        self._poll = poll
        self._waiting: dict[str, int] = {}
        self._copies: Counter[int] = Counter()
        self._inbox: deque[Arrival] = deque()

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
        return clock.now()

    def seats(self) -> dict[int, OnlineNode]:
        """Return the nodes that are online."""
        found = [
            OnlineNode(
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
        """Send a message per key, given as (node, content)."""
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
        """Yield replies until all messages are answered or the time is over.

        A caller that stops early receives the rest at the next call.  An error is ignored while
        another copy of the message is unanswered: a restarted node answers the copy that it
        received after its restart, and earlier copies end in errors.
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
        """Wait before the next poll."""
        clock.sleep(self._poll)

    def forget(self) -> None:
        """Stop waiting for unanswered messages."""
        self._waiting.clear()
        self._copies.clear()
        self._inbox.clear()


def _arrival(key: int, message: Message) -> Arrival:
    if message.has_error():
        reason: Any = getattr(message.error, "reason", None)
        return Arrival(key, None, printable(str(reason or "an error without a reason")))
    return Arrival(key, message.content, "")


_logger = logging.getLogger("fedadmm")
_HELLO = 60.0
"""Seconds that a round waits for the client numbers of new nodes."""


_SILENCE = 10.0
"""Seconds after which the log reports missing clients."""
_ABSENT = (
    "their SuperNodes must run, and in an app with DropIn its ClientApp needs mods=[….mod]: "
    "without it the train function fails on our first message"
)


class Roster:
    """Maps the known nodes to their clients."""

    def __init__(
        self,
        exchange: Exchange,
        federation: Federation,
        known: Mapping[int, int] = {},
        holders: Mapping[int, str] = {},
    ) -> None:
        self._exchange = exchange
        self._clients = federation.clients
        self._names = federation.names
        self.known = known
        """Node id -> client, for the checkpoint."""
        self._patience = federation.patience
        self.holders = holders
        """Client -> identity of its node, for the checkpoint."""
        self._accept_nodes = federation.accept_nodes
        self._left_out = {*federation.leave_out, *federation.take_out}
        self._seats: dict[int, OnlineNode] = {}
        self._refused: dict[int, str] = {}
        self._asked: dict[OnlineNode, float] = {}
        """When the request for the client number of a node expires."""

    @property
    def nodes(self) -> int:
        """Number of nodes that are online."""
        return len(self._seats)

    def online(self) -> dict[int, OnlineNode]:
        """Return the clients that are online, with their nodes."""
        here = {c: self._seats[node] for node, c in self.known.items() if node in self._seats}
        return {client: seat for client, seat in here.items() if client not in self._left_out}

    def refresh(self) -> None:
        """Update the nodes that are online; map unknown ones by name, or ask for their number."""
        self._seats = nodes = self._exchange.seats()
        strangers = [node for node in nodes if node not in self.known]
        if self._names is not None:
            for node in strangers:
                self._by_name(node, nodes[node].name)
        elif fresh := [node for node in strangers if node not in self._refused]:
            self._ask(fresh)

    def wait_for(self, wanted: int) -> None:
        """Wait until this many clients are online, or raise an EngineError."""
        begin, said = self._exchange.now(), False
        while True:
            self.refresh()
            if (here := len(self.online())) >= wanted:
                return
            waited = self._exchange.now() - begin
            if waited >= self._patience.start:
                raise EngineError(
                    f"{here} of {wanted} clients came within {self._patience.start:g} s; {_ABSENT}"
                )
            if waited >= _SILENCE and not said:
                said = True
                _logger.warning("waiting: %d of %d clients are here; %s", here, wanted, _ABSENT)
            self._exchange.pause()

    def _by_name(self, node: int, name: str) -> None:
        """Map a node by name; a client belongs to its first key, also while its node is offline."""
        assert self._names is not None
        if name not in self._names:
            self._refuse(node, f"its name {name!r} is not in this federation")
            return
        client = list(self._names).index(name)
        former = self.online().get(client)
        if former is not None:
            self._refuse(node, f"node {former.node} is registered as {name!r} too, and was first")
            return
        holder, own = self.holders.get(client), self._seats[node].identity
        if holder in (None, own) or self._accept_nodes:
            self._seat(node, client)
            return
        self._refuse(
            node,
            f"the seat of {name!r} belongs to another key in this run ({holder[:16]}…, and this is "
            f"{own[:16]}…); if the site has a new key, start the run again with accept-nodes=true "
            "in its --run-config",
        )

    def _ask(self, nodes: Sequence[int]) -> None:
        """Ask nodes for their client numbers, once until the request expires."""
        now, life = self._exchange.now(), max(_HELLO, self._patience.start)
        fresh = {node for node in nodes if self._asked.get(self._seats[node], now) <= now}
        questions = {node: (node, wire.identity_request()) for node in fresh}
        self._exchange.send("train", "hello", questions, life)
        self._asked |= {self._seats[node]: now + life for node in fresh}
        for arrival in self._exchange.arrivals(now + _HELLO if fresh else now):
            self._hear(arrival)
            fresh.discard(arrival.key)
            if questions and not fresh:
                return

    def _hear(self, arrival: Arrival) -> None:
        node = arrival.key
        if node not in self._seats:
            return  # it disconnected after its answer, and is asked again when it returns
        if arrival.content is None:
            _logger.warning("node %d did not send its client number: %s", node, arrival.error)
            self._asked = {seat: at for seat, at in self._asked.items() if seat.node != node}
            return
        try:
            client = wire.read_client(arrival.content, self._clients)
        except RefusedError as error:
            self._refuse(node, error.detail)
            return
        self._place(node, client)

    def _place(self, node: int, client: int) -> None:
        """Map the latest node: without a key, a restarted node has a new identity."""
        former = self.online().get(client)
        if former is not None:
            self._refuse(former.node, f"client {client} is node {node} now")
        self._seat(node, client)

    def _seat(self, node: int, client: int) -> None:
        holder, own = self.holders.get(client), self._seats[node].identity
        if holder not in (None, own):
            _logger.warning("client %d is %s now; it was %s", client, own[:16], holder[:16])
        self.holders = {**self.holders, client: own}
        self.known = {n: c for n, c in self.known.items() if c != client} | {node: client}
        self._refused.pop(node, None)

    def _refuse(self, node: int, why: str) -> None:
        if self._refused.get(node) != why:  # logged once
            _logger.warning("node %d takes no part: %s", node, why)
        self._refused[node] = why
