"""What server and clients exchange, what is kept of a client, and the contract of engines."""

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
    """What a participant receives: the algorithm's broadcast, the model's buffers, and more."""

    broadcast: Any
    buffers: Tensor | None = None
    missed: CatchUp | None = None
    """Virtual steps that returning clients have missed, for methods that align absent clients."""
    pipeline: Tensor | None = None
    """What the server sides of the update pipeline broadcast, one number each."""


class Upload(NamedTuple):
    """What comes up from a client: the algorithm's message and the model's buffers, if any."""

    message: Any
    buffers: Tensor | None = None
    statistics: Tensor | None = None
    """What a postprocessor of the update pipeline reports to its server side."""
    encoded_bytes: int | None = None
    """Bytes of the encoded message; None if the message is sent unencoded."""

    @property
    def num_bytes(self) -> int:
        """Bytes that the client sends."""
        if self.encoded_bytes is None:
            return trees.num_bytes(self)
        return self.encoded_bytes + trees.num_bytes((self.buffers, self.statistics))


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


class PartialSum(NamedTuple):
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
    ) -> Iterator[tuple[int, Upload, ClientInfo] | PartialSum]:
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
