"""Which node is which client.

A node that authenticates itself with a key keeps its identity and its registered name; one that
does not gets a new identity at every start.  Either way the client is a number that stays.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from fedadmm.errors import EngineError, StateError
from fedadmm.flower import queries
from fedadmm.flower.exchange import Exchange, Seat
from fedadmm.flower.federation import Patience

_logger = logging.getLogger("fedadmm")
_HELLO = 60.0
"""Seconds a node has to say who it is."""


class Roster:
    """The nodes that are known, and the clients they are."""

    def __init__(
        self,
        exchange: Exchange,
        clients: int,
        names: Sequence[str] | None,
        known: Mapping[int, int],
        patience: Patience,
    ) -> None:
        self._exchange = exchange
        self._clients = clients
        self._names = names
        self._known = dict(known)
        self._patience = patience
        self._seats: dict[int, Seat] = {}
        self._refused: set[int] = set()

    @property
    def known(self) -> dict[int, int]:
        """Node id -> client, for the checkpoint."""
        return dict(self._known)

    def online(self) -> dict[int, Seat]:
        """The clients that are there, and their nodes."""
        known = self._known.items()
        return {client: self._seats[node] for node, client in known if node in self._seats}

    def refresh(self) -> None:
        """Look who is online; unknown nodes are placed by name, or asked who they are."""
        self._seats = nodes = self._exchange.seats()
        strangers = [
            node for node in nodes if node not in self._known | dict.fromkeys(self._refused)
        ]
        if self._names is not None:
            for node in strangers:
                self._by_name(node, nodes[node].name)
        elif strangers:
            self._ask(strangers)

    def wait_for(self, wanted: int) -> None:
        """Wait until so many clients are online; an EngineError when they do not come."""
        until = self._exchange.now() + self._patience.start
        while True:
            self.refresh()
            if len(self.online()) >= wanted:
                return
            if self._exchange.now() >= until:
                raise EngineError(
                    f"{len(self.online())} of {wanted} clients came within "
                    f"{self._patience.start:g} s; start their SuperNodes and run again"
                )
            self._exchange.pause()

    def _by_name(self, node: int, name: str) -> None:
        assert self._names is not None
        if name in self._names:
            self._known[node] = list(self._names).index(name)
        else:
            self._refuse(node, f"its name {name!r} is not in this federation")

    def _ask(self, nodes: Sequence[int]) -> None:
        questions = {node: (node, queries.hello()) for node in nodes}
        self._exchange.send("train", "hello", questions, _HELLO)
        for arrival in self._exchange.arrivals(self._exchange.now() + _HELLO):
            if arrival.content is None:
                _logger.warning("node %d does not say who it is: %s", arrival.key, arrival.error)
                continue
            try:
                client = queries.who(arrival.content, self._clients)
            except StateError as error:
                self._refuse(arrival.key, str(error))
                continue
            self._place(arrival.key, client)
        self._exchange.forget()

    def _place(self, node: int, client: int) -> None:
        """The latest node wins: without a key, a node that restarts comes as another one."""
        former = self.online().get(client)
        if former is not None:
            self._refuse(former.node, f"client {client} is node {node} now")
        self._known = {n: c for n, c in self._known.items() if c != client} | {node: client}

    def _refuse(self, node: int, why: str) -> None:
        self._refused.add(node)
        _logger.warning("node %d takes no part: %s", node, why)
