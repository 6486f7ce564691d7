"""Catching up with virtual steps, for methods that align absent clients.

In every server step of such a method one vector is added to the state of each absent client.
Absent clients do not communicate, so that the server keeps the sum of all virtual steps and sends a
client that participates again what it missed:

    missed = sum now - sum after the last step that included the client

A client does not take the virtual step of a round in which it participates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from fedadmm.core.capabilities import AbsentClientAlignment
from fedadmm.core.contracts import AnyAlgorithm


class CatchUp(NamedTuple):
    """The sum of all virtual steps, now and after the last step of every client.

    `sums` holds one vector per distinct last step, however many clients share it.  A client that
    never participated missed all virtual steps.
    """

    total: Tensor
    sums: Mapping[int, Tensor] = {}
    """The sum after a server step, by the index of the step."""
    visits: Mapping[int, int] = {}
    """The last server step that included a client, by client."""

    def missed(self, client: int) -> Tensor:
        """Return the sum of the virtual steps that a client has missed before its next round."""
        step = self.visits.get(client)
        return self.total if step is None else self.total - self.sums[step]

    def after_step(self, step: int, total: Tensor, clients: Collection[int]) -> CatchUp:
        """Return the state after a server step that included these clients."""
        sums, visits = {**self.sums, step: total}, {**self.visits, **dict.fromkeys(clients, step)}
        return CatchUp(total, sums, visits).restrict(visits)

    def restrict(self, clients: Collection[int]) -> CatchUp:
        """Return what concerns these clients."""
        visits = {client: self.visits[client] for client in clients if client in self.visits}
        sums = {step: self.sums[step] for step in sorted({*visits.values()})}
        return CatchUp(self.total, sums, visits)

    def remove_client(self, client: int) -> CatchUp:
        """Return the state as if a client had never participated."""
        visits = {other: step for other, step in self.visits.items() if other != client}
        return self._replace(visits=visits)

    @property
    def num_bytes(self) -> int:
        """Bytes that one client is sent."""
        return self.total.nbytes


def initial_catch_up(algorithm: AnyAlgorithm, server: Any) -> CatchUp | None:
    """Return the state before the first round; None for a method without virtual steps."""
    if not isinstance(algorithm, AbsentClientAlignment):
        return None
    return CatchUp(algorithm.virtual_steps(server))
