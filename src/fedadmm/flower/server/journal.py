"""What people should be able to see about the network: counted, written down, logged."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fedadmm.flower.protocol.refusal import RefusedError, Word

_logger = logging.getLogger("fedadmm")


class Event(NamedTuple):
    """Something that happened to a client."""

    sequence: int
    client: int
    word: str
    detail: str


class Journal:
    """Counts and remembers what was refused, missing, lost or repaired."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._fresh: list[Event] = []

    def note(self, sequence: int, client: int, why: RefusedError) -> None:
        """Count an event and say it."""
        self.counts[str(why.word)] += 1
        self._fresh.append(Event(sequence, client, str(why.word), why.detail))
        _logger.warning("round %d, client %d: %s", sequence + 1, client, why)

    def count(self, word: Word) -> None:
        """Count what is nobody's fault."""
        self.counts[str(word)] += 1

    def take(self) -> Sequence[Event]:
        """The events since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh
