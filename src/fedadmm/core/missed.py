"""What absent clients miss when their method moves them along with the others.

Such a method makes *virtual steps*: in every server step one vector is added to the state of each
client that is not part of it.  Nobody tells the absent ones.  The server keeps the sum of all
virtual steps so far, and a client that comes back is told how much of it belongs to it.

The trap is the client's own step: it does not get that step's virtual part, which nobody knows
while it works.  So what it missed counts from *after* the step that folded its last reply, and with
stale replies also from the step that it began in:

    missed = total now - (total at its beginning + what the step that folded it added)

which is `total now - total after its last step` when a client begins and is folded in one step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

_NAME = "missed"


class Visit(NamedTuple):
    """A client's last counted reply: the step it began in, and the step that folded it."""

    begun: int
    folded: int

    @property
    def needed(self) -> tuple[int, ...]:
        """Before which steps the total must be known as long as this visit is the last one."""
        after = self.folded + 1
        return (after,) if self.begun == self.folded else (self.begun, self.folded, after)


@dataclass(frozen=True)
class Missed:
    """The sums of the virtual steps that still matter, and every client's last visit.

    `totals` holds the sum before a step, by the step's index: one vector for each distinct last
    visit, however many clients share it.  A client that was never folded missed everything.
    """

    totals: Mapping[int, Tensor]
    visits: Mapping[int, Visit] = field(default_factory=dict)

    @classmethod
    def nothing(cls, total: Tensor) -> Missed:
        """Before the first step, which is the initial round (-1) or the first one (0)."""
        return cls({-1: total, 0: total})

    def change(self, client: int, step: int) -> Tensor:
        """The sum of what a client missed that begins in this step."""
        now, visit = self.totals[step], self.visits.get(client)
        if visit is None:
            return now
        if visit.begun == visit.folded:
            return now - self.totals[visit.folded + 1]
        added = self.totals[visit.folded + 1] - self.totals[visit.folded]
        return now - (self.totals[visit.begun] + added)

    def after(
        self, step: int, total: Tensor, begun: Mapping[int, int], in_work: Collection[int]
    ) -> Missed:
        """After a step: its sum, in which step each folded client began, and the steps in work."""
        visits = dict(self.visits)
        visits |= {client: Visit(begin, step) for client, begin in begun.items()}
        needed = {step + 1, *in_work}
        for visit in set(visits.values()):
            needed.update(visit.needed)
        known = {**self.totals, step + 1: total}
        return Missed({at: known[at] for at in sorted(needed)}, visits)

    def of(self, clients: Iterable[int], step: int) -> Missed:
        """What concerns these clients when they begin in this step, to be sent elsewhere."""
        visits = {client: self.visits[client] for client in clients if client in self.visits}
        needed = {step, *(at for visit in visits.values() for at in visit.needed)}
        return Missed({at: self.totals[at] for at in sorted(needed)}, visits)

    def remove_client(self, client: int) -> Missed:
        """As if a client had never been folded: it starts again."""
        visits = {other: visit for other, visit in self.visits.items() if other != client}
        return replace(self, visits=visits)

    @property
    def bytes_each(self) -> int:
        """What a client is sent."""
        total = next(iter(self.totals.values()))
        return total.numel() * total.element_size()

    def tensors(self) -> dict[str, Tensor]:
        """The sums as one tensor with its name, for a checkpoint."""
        return {_NAME: torch.stack(list(self.totals.values()))}

    def rows(self) -> dict[str, list[list[int]] | list[int]]:
        """The rest as JSON can hold it."""
        visits = [[client, *visit] for client, visit in self.visits.items()]
        return {"steps": list(self.totals), "visits": visits}


def restored(
    rows: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device
) -> Missed:
    """The inverse of `Missed.tensors` and `Missed.rows`."""
    # Clones, so that a total which is no longer needed does not keep all of them.
    totals = [total.clone() for total in tensors[_NAME].to(device)]
    named = dict(zip(rows["steps"], totals, strict=True))
    return Missed(named, {client: Visit(*visit) for client, *visit in rows["visits"]})
