"""Statistics of the delays of asynchronous updates, in server steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any


class Staleness:
    """Delays of the updates so far and absences of the clients, in server steps.

    `values` returns a snapshot of plain values.
    """

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._delays: list[int] = []
        """Delays in the last step."""
        self._counts: Counter[int] = Counter()
        self._heard: dict[int, int] = {}
        """The last step with an update of each client, least recent first."""
        self._longest = 0
        """The longest absence that has ended."""
        self._step = -1

    def note(self, clients: Sequence[int], delays: Sequence[int], step: int) -> None:
        """Add the updates of a server step; those of an initial round, -1, are not counted."""
        self._delays = list(delays)
        if step < 0:
            return
        self._step = step
        self._counts.update(delays)
        for client in clients:
            self._longest = max(self._longest, self.absence(client, step))
            self._heard.pop(client, None)
            self._heard[client] = step

    def absence(self, client: int, step: int) -> int:
        """Return the number of steps before this one without an update of the client."""
        return step - self._heard.get(client, -1) - 1

    def extras(self) -> dict[str, Any]:
        """Return the entries for the record of the last step."""
        delays = self._delays
        return {
            "delays": list(delays),
            "staleness_mean": sum(delays) / len(delays) if delays else 0.0,
            "staleness_max": max(delays, default=0),
            "staleness_quantiles": self._quantiles(),
            "longest_absence": self._longest_so_far(),
        }

    def values(self) -> list[Any]:
        """Return the state as plain values."""
        counts, heard = sorted(self._counts.items()), list(self._heard.items())
        return [counts, heard, self._longest, self._step]

    def restore(self, values: list[Any]) -> None:
        """Restore the state from plain values."""
        counts, heard, self._longest, self._step = values
        self._counts, self._heard = Counter(dict(counts)), dict(heard)

    def _longest_so_far(self) -> int:
        """The longest absence, those that still last among them: T of the asynchronous theorem."""
        all_seen = len(self._heard) == self._clients
        oldest = next(iter(self._heard.values()), -1) if all_seen else -1
        return max(self._longest, self._step - oldest)

    def _quantiles(self) -> list[int]:
        """Return the median, the 90 % quantile and the largest delay of all updates so far."""
        total, seen = sum(self._counts.values()), 0
        shares = [0.5, 0.9, 1.0]
        found: list[int] = []
        for delay in sorted(self._counts):
            seen += self._counts[delay]
            while len(found) < len(shares) and seen >= shares[len(found)] * total:
                found.append(delay)
        return found
