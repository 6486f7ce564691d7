"""Messages between server and clients, client records, and the base class of engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.catch_up import CatchUp
from fedadmm.core.errors import StateError
from fedadmm.core.local_work import SolveInfo


class Download(NamedTuple):
    """Message to a participant: the method's broadcast, the model's buffers, and options."""

    broadcast: Any
    buffers: Tensor | None = None
    missed: CatchUp | None = None
    """Virtual steps that returning clients have missed, for methods that align absent clients."""
    pipeline: Tensor | None = None
    """Broadcast of the server sides of the update pipeline, one number each."""


class Upload(NamedTuple):
    """Update of a client: the method's message and the model's buffers, if any."""

    message: Any
    buffers: Tensor | None = None
    statistics: Tensor | None = None
    """Statistics that a postprocessor of the update pipeline reports to its server side."""
    encoded_bytes: int | None = None
    """Bytes of the encoded message; None if the message is sent unencoded."""

    @property
    def num_bytes(self) -> int:
        """Number of bytes that the client sends."""
        if self.encoded_bytes is None:
            return trees.num_bytes(self)
        return self.encoded_bytes + trees.num_bytes((self.buffers, self.statistics))


class ClientRecord(NamedTuple):
    """State of a client between rounds."""

    state: Any
    """The method's state."""
    buffers: Tensor | None = None
    """The model's buffers, such as BatchNorm statistics."""
    error_feedback: tuple[Tensor, ...] | None = None
    """Error of the compression so far, in the order of the message's vectors."""
    memory: tuple[Tensor, ...] | None = None
    """State of personalisation and solver."""


class ClientInfo(NamedTuple):
    """Statistics of a client's round for records and callbacks, which methods do not use."""

    client: int
    solve: SolveInfo
    weight: float
    """Weight of the quadratic term of the local problem (rho, beta_i, 1/eta)."""
    move: float
    """||w_new - start||."""
    drift: float
    """||w_new - theta||, the client's contribution to the primal residual."""
    finite: bool
    """Whether the client's result is finite."""
    noised: int = 0
    """Number of noised steps of the client in this run, if the client counts them because updates
    may be lost; 0 if the training loop counts them."""


class PartialSum(NamedTuple):
    """Sum of the updates of several clients, computed where the clients are run."""

    total: Upload
    """sum of a_i * upload_i over these clients."""
    weight: float
    """sum of a_i."""
    bytes_up: int
    """Number of bytes that these clients sent."""
    infos: Sequence[ClientInfo]


class ClientRecords(Protocol):
    """Access of an engine to client records."""

    def get(self, client: int) -> ClientRecord | None:
        """Return the last committed record, or None."""

    def commit(self, client: int, record: ClientRecord, round_index: int) -> None:
        """Replace a client's record."""


class ClientStateStore(ClientRecords, Protocol):
    """Store of client records; a client that has not participated has none."""

    def bind(self, template: ClientRecord, primal: str | None) -> None:
        """Set the structure of records, and the name of the tensor that is the local model."""

    def clients(self) -> Sequence[int]:
        """Return the ids that have a record, sorted."""

    def prefetch(self, clients: Sequence[int]) -> None:
        """Load the records of the next round's participants in the background."""

    def mark(self) -> None:
        """Mark the current state, between two rounds, for `undo`."""

    def undo(self) -> None:
        """Return to the marked state."""


class Engine(ABC):
    """Base class of engines, which run the clients of a round.

    An engine can have a clock of its own and work in flight between two server steps, which it
    reports in `extras` and stores in `snapshot`.
    """

    is_asynchronous: bool = False
    """Whether a server step aggregates updates on arrival instead of those of a cohort."""

    @abstractmethod
    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo] | PartialSum]:
        """Yield the update of each client in the order of `ids`, or sums over some of them.

        The order is the same in every run, so that sums are reproducible.
        """

    def broadcasts(self, ids: Sequence[int]) -> int:
        """Return how many times the download of the last step was sent.

        That is once per participant, unless the engine skips some or sends again.
        """
        return len(ids)

    def extras(self) -> dict[str, Any]:
        """Return additional entries for the record of the last step."""
        return {}

    def snapshot(self) -> EngineState | None:
        """Return an immutable copy of the clock and the work in flight, or None without any."""
        return None

    def restore(self, state: EngineState) -> None:
        """Continue from a snapshot; an engine without a clock rejects work in flight."""
        if state.downloads:
            raise StateError(
                f"the run has updates in flight of {len(state.downloads)} server steps, but "
                f"{type(self).__name__} has no clock to wait for them with; resume it with the "
                "engine that it began with"
            )

    def each(
        self, piece: Any, shared: Any, numbers: Sequence[int], given: Callable[[int], Any]
    ) -> Iterator[Any] | None:
        """Yield `piece(job, shared, number, given(number))` of each number, in order.

        Returns None unless the engine has processes of its own that share the work.
        """
        return None

    def close(self) -> None:  # noqa: B027 - most engines hold no resources
        """Release processes, files and memory."""


class EngineState(NamedTuple):
    """Clock and work in flight of an engine between two server steps."""

    values: dict[str, Any]
    """Plain values that JSON can hold."""
    downloads: dict[int, Download]
    """The downloads from which clients are still training, by server step."""
