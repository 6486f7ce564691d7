"""What travels between the server and its clients, what is kept of a client, and who runs them.

Methods in which absent clients move along make *virtual steps*: in every server step one vector is
added to the state of each client that is not part of it.  The absent ones do not hear of it.  The
server keeps the sum of all virtual steps so far, and sends a client that comes back what it missed:

    missed = total now - total after the step that folded its last reply

It does not get the virtual part of its own step.  Replies are never late here: a method with
virtual steps does not tolerate them (`Algorithm.tolerates_stale`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.capabilities import AbsentClientAlignment
from fedadmm.core.errors import StateError
from fedadmm.core.local_work import SolveInfo
from fedadmm.core.protocols import AnyAlgorithm

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
        sums, visits = {**self.sums, step: total}, {**self.visits, **dict.fromkeys(clients, step)}
        return replace(self, total=total, sums=sums, visits=visits).of(visits)

    def of(self, clients: Collection[int]) -> Missed:
        """What concerns these clients, to be sent elsewhere."""
        visits = {client: self.visits[client] for client in clients if client in self.visits}
        return replace(
            self, sums={at: self.sums[at] for at in sorted({*visits.values()})}, visits=visits
        )

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


def first_missed(algorithm: AnyAlgorithm, server: Any) -> Missed | None:
    """What clients have missed before the first round; None for a method without virtual steps."""
    if not isinstance(algorithm, AbsentClientAlignment):
        return None
    return Missed(algorithm.virtual_steps(server))


def restored(
    before: Missed, rows: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device
) -> Missed:
    """The inverse of `Missed.tensors` and `Missed.rows`, for a run that began with `before`."""
    # Clones, so that a sum which is no longer needed does not keep all of them.
    total, *sums = [total.clone() for total in tensors[_NAME].to(device)]
    kept = dict(zip(rows["steps"], sums, strict=True))
    return replace(before, total=total, sums=kept, visits=dict(rows["visits"]))


class Download(NamedTuple):
    """What goes down to a client: the algorithm's broadcast and the model's buffers, if any."""

    cast: Any
    buffers: Tensor | None = None
    missed: Missed | None = None
    """Where every client's one vector of missed virtual steps comes from, for methods with them."""
    clip_bound: Tensor | None = None
    """The norm that an adaptive clip cuts uploads to in this round; None for others."""


class Upload(NamedTuple):
    """What comes up from a client: the algorithm's message and the model's buffers, if any."""

    message: Any
    buffers: Tensor | None = None
    within: Tensor | None = None
    """For an adaptive clip: whether the norm was within the bound, 1/2 or -1/2."""
    encoded_bytes: int | None = None
    """The bytes of the message as it travels; None where it travels as it is."""

    @property
    def num_bytes(self) -> int:
        """The bytes that a client sends."""
        if self.encoded_bytes is None:
            return trees.num_bytes(self)
        return self.encoded_bytes + trees.num_bytes((self.buffers, self.within))


class ClientRecord(NamedTuple):
    """What is kept for a client between rounds: the algorithm's state and its own buffers."""

    state: Any
    buffers: Tensor | None = None
    error_feedback: tuple[Tensor, ...] | None = None
    """What the upload's stages cut away so far, in the order of the message's vectors."""
    memory: tuple[Tensor, ...] | None = None
    """What the client's solver keeps between rounds."""


class ClientInfo(NamedTuple):
    """What is known about one client's round; callbacks read it, algorithms never do."""

    client: int
    solve: SolveInfo
    weight: float
    """The weight of the local problem's quadratic term (rho, beta_i, 1/eta)."""
    move: float
    """||w_new - start||."""
    drift: float
    """||w_new - theta||: the client's part of the primal residual."""
    finite: bool
    """False when the client produced a NaN or an infinity."""
    noised: int = 0
    """All noised steps that the client made in this run, where it counts them itself because
    replies may get lost; 0 where the loop does."""


class Partial(NamedTuple):
    """The replies of several clients, summed where the clients are."""

    total: Upload
    """sum of a_i * upload_i over these clients."""
    weight: float
    """sum of a_i."""
    bytes_up: int
    """What the clients themselves sent."""
    infos: Sequence[ClientInfo]


class ClientRecords(Protocol):
    """Gives an engine a client's record, and keeps the new one."""

    def get(self, client: int) -> ClientRecord | None:
        """The last committed record, or None."""

    def commit(self, client: int, record: ClientRecord, round_index: int) -> None:
        """Keep a record; it replaces the client's last one."""


class ClientStateStore(ClientRecords, Protocol):
    """Keeps client records; a client that was never committed has none."""

    def bind(self, template: ClientRecord, primal: str | None) -> None:
        """Learn how records look, and which of their tensors is the client's own model."""

    def clients(self) -> Sequence[int]:
        """The ids that have a record, sorted."""

    def prefetch(self, clients: Sequence[int]) -> None:
        """Announce who will be asked for next, while others compute."""

    def mark(self) -> None:
        """Remember this point between two rounds; it replaces the last one."""

    def undo(self) -> None:
        """Go back to the marked point."""


class Engine(ABC):
    """Runs the clients of a round.

    An engine may have a clock of its own and work in flight between two server steps: it then says
    so in `extras`, and goes on from its `snapshot`.
    """

    is_asynchronous: bool = False
    """Whether a step folds the replies that happen to arrive, not those of a whole cohort."""

    @abstractmethod
    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo] | Partial]:
        """Each client's upload in the order of `ids`, or sums over some of them.

        The order of what is yielded is the same in every run, so that sums are reproducible.
        """

    def broadcasts(self, ids: Sequence[int]) -> int:
        """How often the last step's download was sent, with or without a reply to it.

        That is once to each of `ids`, unless the engine leaves some out or sends again.
        """
        return len(ids)

    def extras(self) -> dict[str, Any]:
        """What the last step adds to its record."""
        return {}

    def snapshot(self) -> EngineState | None:
        """The clock and the work in flight, if any; nothing that is done later changes it."""
        return None

    def restore(self, state: EngineState) -> None:
        """Go on from a snapshot; an engine without a clock cannot bring in work in flight."""
        if state.downloads:
            raise StateError(
                f"the run has replies under way to broadcasts of {len(state.downloads)} steps, but "
                f"{type(self).__name__} has no clock to wait for them with; resume it with the "
                "engine that it began with"
            )

    def each(
        self, piece: Any, shared: Any, numbers: Sequence[int], given: Callable[[int], Any]
    ) -> Iterator[Any] | None:
        """`piece(job, shared, number, given(number))` of each number, in order.

        None, unless the engine has processes of its own that share the work.
        """
        return None

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Give back processes, files and memory."""


class EngineState(NamedTuple):
    """Work in flight between two server steps, for an engine that has some."""

    values: dict[str, Any]
    """Plain values that JSON can hold."""
    downloads: dict[int, Download]
    """The broadcasts that clients still work from, by server step."""
