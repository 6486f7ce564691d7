"""What absent clients miss when their method moves them along with the others.

Such a method makes *virtual steps*: in every server step one vector is added to the state of each
client that is not part of it.  The absent ones do not hear of it.  The server keeps the sum of all
virtual steps so far, and sends a client that comes back what it missed of it:

    missed = total now - total after the step that folded its last reply

It does not get the virtual part of its own step.  Replies are never late here: a method with
virtual steps does not tolerate them (`Algorithm.tolerates_stale`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

_NAME = "missed"


@dataclass(frozen=True)
class Missed:
    """The sum of all virtual steps, and what it was after every client's last step.

    `sums` holds one vector for each distinct last step, however many clients share it.  A client
    that was never folded missed everything.
    """

    total: Tensor
    sums: Mapping[int, Tensor] = field(default_factory=dict)
    """The sum after a step, by the step's index."""
    visits: Mapping[int, int] = field(default_factory=dict)
    """The step that folded a client's last reply."""

    def change(self, client: int) -> Tensor:
        """The sum of what a client missed that begins now."""
        step = self.visits.get(client)
        return self.total if step is None else self.total - self.sums[step]

    def after(self, step: int, total: Tensor, clients: Collection[int]) -> Missed:
        """After a step that folded these clients, with the new sum."""
        made = Missed(
            total, {**self.sums, step: total}, {**self.visits, **dict.fromkeys(clients, step)}
        )
        return made.of(made.visits)

    def of(self, clients: Collection[int]) -> Missed:
        """What concerns these clients, to be sent elsewhere."""
        visits = {client: self.visits[client] for client in clients if client in self.visits}
        return Missed(self.total, {at: self.sums[at] for at in sorted({*visits.values()})}, visits)

    def remove_client(self, client: int) -> Missed:
        """As if a client had never been folded: it starts again."""
        visits = {other: step for other, step in self.visits.items() if other != client}
        return replace(self, visits=visits)

    @property
    def bytes_each(self) -> int:
        """What a client is sent."""
        return self.total.numel() * self.total.element_size()

    def tensors(self) -> dict[str, Tensor]:
        """The sums as one tensor with its name, for a checkpoint."""
        return {_NAME: torch.stack([self.total, *self.sums.values()])}

    def rows(self) -> dict[str, list[Any]]:
        """The rest as JSON can hold it."""
        return {"steps": list(self.sums), "visits": list(self.visits.items())}


def restored(
    rows: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device
) -> Missed:
    """The inverse of `Missed.tensors` and `Missed.rows`."""
    # Clones, so that a sum which is no longer needed does not keep all of them.
    total, *sums = [total.clone() for total in tensors[_NAME].to(device)]
    return Missed(total, dict(zip(rows["steps"], sums, strict=True)), dict(rows["visits"]))
