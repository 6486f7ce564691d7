"""Client state in memory; only clients that took part occupy any."""

from __future__ import annotations

from collections.abc import Sequence

from fedadmm.protocols import ClientRecord


class MemoryStore:
    """A dictionary of records."""

    def __init__(self) -> None:
        self._records: dict[int, ClientRecord] = {}

    def get(self, client: int) -> ClientRecord | None:
        """The last committed record, or None."""
        return self._records.get(client)

    def commit(self, client: int, record: ClientRecord, round_index: int) -> None:
        """Keep a record."""
        self._records[client] = record

    def clients(self) -> Sequence[int]:
        """The ids that have a record, sorted."""
        return sorted(self._records)
