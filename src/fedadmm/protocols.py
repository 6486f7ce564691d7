"""The roles of the house and the NamedTuples that pass between them.

Every method of the family is one local problem plus one increment:

    min_w  f_i(w) + <linear, w> + (weight / 2) ||w - centre||^2        started at `start`

An `Algorithm` says which (start, linear, weight, centre), how a client's state moves, what it
uploads and how the server folds the weighted sum of uploads.  It knows neither the solver, nor
the engine, nor where state is kept.

Shapes.  Client-side code is written once for one client and also runs on a stack of clients:
vectors are (D,) or (K, D), a client's scalars are (1,) or (K, 1), norms keep their last
dimension (`norm`), and a choice between clients is `torch.where`, never a Python `if`.

Weights.  The loop streams `total = sum over replies of a_i * message_i`, where the a_i of all n
clients add up to one.  An exact mean over everybody is therefore `total` itself, and a mean over
the replies is `total / received.weight`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedadmm.rng import Key

Server = TypeVar("Server")
Client = TypeVar("Client")
Cast = TypeVar("Cast")
Message = TypeVar("Message")


def norm(vector: Tensor) -> Tensor:
    """The Euclidean norm over the last dimension, kept, so that it broadcasts over a stack."""
    result: Tensor = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    return result


class LocalProblem(NamedTuple):
    """One client's work in one round; None stands for a zero vector."""

    start: Tensor
    linear: Tensor | None = None
    weight: Tensor | float = 0.0
    centre: Tensor | None = None


class LocalResult(NamedTuple):
    """What a solve hands to the algorithm.

    `start_gradient` is the full gradient of f_i at `start`, `mean_gradient` the mean of the
    (mini-batch) gradients of f_i over the steps made; each only when the algorithm needs it.
    """

    params: Tensor
    start_gradient: Tensor | None = None
    mean_gradient: Tensor | None = None


class SolveInfo(NamedTuple):
    """How a solve went: never part of any state."""

    steps: int
    epochs: float
    status: str
    accuracy: float
    """The norm of the local problem's full gradient at the result; NaN when nobody asked."""


class Needs(NamedTuple):
    """What an algorithm needs of the local solve."""

    local_solve: bool = True
    start_gradient: bool = False
    mean_gradient: bool = False


class SolveContext(NamedTuple):
    """The circumstances of a solve that some rules and schedules look at."""

    round_index: int = 0
    needs: Needs = Needs()
    reference: Tensor | None = None
    """The global vector, for rules that measure against it."""


IN_NO_ROUND = SolveContext()
"""The context of a solve on its own, outside any run."""


class Received(NamedTuple):
    """Which replies a server step folds: how many, their weight sum, out of how many clients."""

    replies: int
    weight: float
    clients: int


class Regularizer(Protocol):
    """A proper, closed, convex g with its proximal operator."""

    def value(self, params: Tensor) -> Tensor:
        """g(params), a scalar tensor (infinite outside the domain of an indicator)."""

    def prox(self, params: Tensor, step: float) -> Tensor:
        """argmin_u g(u) + ||u - params||^2 / (2 step)."""


class Algorithm(ABC, Generic[Server, Client, Cast, Message]):
    """One paper's method: a frozen dataclass of hyper-parameters with pure functions.

    States, broadcasts and messages are NamedTuples of tensors.  No function changes what it is
    given, and none keeps anything on `self`.
    """

    name: ClassVar[str]
    """The name in configurations and on the command line."""
    paper: ClassVar[str]
    """Authors, title, year."""
    accepts_regularizer: ClassVar[bool] = False
    """Whether the server step applies the prox of g."""
    accepts_partial: ClassVar[bool] = True
    """Whether clients may sit a round out."""
    asynchronous: ClassVar[bool] = False
    """Whether it is defined without rounds: every arriving reply is one server step."""
    baseline: ClassVar[bool] = False
    """Whether comparisons measure the others against it: a method without duals."""

    @property
    def needs(self) -> Needs:
        """What this method needs of the local solve."""
        return Needs()

    @property
    def starts_with_everyone(self) -> bool:
        """Whether an initial round with all clients precedes the first sampled one."""
        return False

    @property
    def always_sends_theta(self) -> bool:
        """Whether every broadcast carries the global vector."""
        return True

    @property
    def prox_step(self) -> float:
        """The step of prox_{step * g} in the server update; also that of the gradient mapping."""
        return 1.0

    def default_stop(self) -> StoppingRule | None:
        """The stopping rule that belongs to the method, or None."""
        return None

    @abstractmethod
    def init_server(self, params: Tensor) -> Server:
        """The server's state before the first round, from the initial vector."""

    @abstractmethod
    def init_client(self, params: Tensor) -> Client:
        """A client's state before its first round, from the initial vector."""

    @abstractmethod
    def broadcast(self, server: Server, key: Key) -> Cast:
        """What every participant receives; `key` is the round's, for methods that toss a coin."""

    @abstractmethod
    def local_problem(self, cast: Cast, client: Client) -> LocalProblem:
        """The local problem of one client (or of a stack of clients)."""

    @abstractmethod
    def client_update(
        self, cast: Cast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        """The client's next state and its upload."""

    @abstractmethod
    def server_update(
        self, server: Server, total: Message, received: Received, regularizer: Regularizer
    ) -> Server:
        """Fold the weighted sum of at least one upload."""

    def without(self, server: Server, past: Message, regularizer: Regularizer) -> Server | None:
        """The server as if a client stood at its initial state; `past` is a_i times its uploads.

        This is how a client that lost its state is taken out.  None, the default, says that the
        server holds nothing of a client beyond the model, so that there is nothing to take out.
        """
        return None

    @abstractmethod
    def global_params(self, server: Server) -> Tensor:
        """The global vector: what is broadcast and evaluated."""

    def local_params(self, client: Client) -> Tensor | None:
        """The client's own model, or None when the method keeps none between rounds."""
        return None

    def primal_dual(self, client: Client) -> PrimalDual | None:
        """The client's model, dual and penalty; None for methods without one of them."""
        return None

    def tracked_mean(self, server: Server) -> Tensor | None:
        """What the server holds as the mean of all w_i + y_i / penalty; None if it holds none."""
        return None


AnyAlgorithm = Algorithm[Any, Any, Any, Any]


class Objective(Protocol):
    """f_i on flat vectors, from one client's data."""

    @property
    def num_parameters(self) -> int:
        """D, the length of the flat vector."""

    @property
    def num_samples(self) -> int:
        """The number of rows a mini-batch is drawn from."""

    def value(self, params: Tensor) -> Tensor:
        """f_i(params) over all the client's data."""

    def gradient(self, params: Tensor, rows: Tensor | None = None) -> Tensor:
        """The gradient of f_i over the given rows, or over all data.

        The result may be a buffer that the next call overwrites.
        """

    def workspace(self, params: Tensor) -> Tensor:
        """A copy of `params` that a solver may change in place and pass to `gradient`."""


class Progress(NamedTuple):
    """What a stopping rule sees between two epochs; tensors of shape (1,) or (K, 1)."""

    gradient_norm: Tensor
    """||grad L_i(w)|| over the client's full data."""
    reference_norm: Tensor
    """The same at the rule's reference point (the start, unless the rule says otherwise)."""
    move: Tensor
    """||w - start||."""
    weight: Tensor | float
    """The weight of the local problem's quadratic term."""
    round_index: int


class StoppingRule(Protocol):
    """When a local solve ends: a budget, and for some rules a test between epochs."""

    @property
    def needs_gradient(self) -> bool:
        """Whether `reached` must be asked, with full gradients, before every epoch."""

    @property
    def reference(self) -> str:
        """Where `Progress.reference_norm` is taken: "own" (the start) or "global"."""

    def budget(self, steps_per_epoch: int, key: Key) -> int:
        """The largest number of steps of one solve."""

    def reached(self, progress: Progress) -> Tensor:
        """Whether each client may stop; boolean, elementwise over a stack."""

    def sentence(self, reached: bool) -> str:
        """Why the solve ended."""


class LocalSolver(Protocol):
    """Solves a local problem approximately."""

    @property
    def averages_gradients(self) -> bool:
        """Whether `LocalResult.mean_gradient` can be supplied."""

    def solve(
        self,
        objective: Objective,
        problem: LocalProblem,
        stop: StoppingRule,
        key: Key,
        context: SolveContext = IN_NO_ROUND,
    ) -> tuple[LocalResult, SolveInfo]:
        """Minimise the local problem."""


class Sampler(Protocol):
    """Who takes part in a round."""

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        """The ids of round `round_index`, sorted, without repetition."""

    def probabilities(self, clients: int) -> NDArray[np.float64]:
        """p_i = P(client i takes part)."""

    def check(self, clients: int, rounds: int) -> None:
        """Refuse what cannot work for this many clients and rounds, before round 0."""


class PrimalDual(NamedTuple):
    """A client's model, its dual and its penalty, whatever a method keeps them as."""

    w: Tensor
    y: Tensor
    penalty: Tensor | float


class Download(NamedTuple):
    """What goes down to a client: the algorithm's broadcast and the model's buffers, if any."""

    cast: Any
    buffers: Tensor | None = None


class Upload(NamedTuple):
    """What comes up from a client: the algorithm's message and the model's buffers, if any."""

    message: Any
    buffers: Tensor | None = None


class ClientRecord(NamedTuple):
    """What is kept for a client between rounds: the algorithm's state and its own buffers."""

    state: Any
    buffers: Tensor | None = None


class ClientInfo(NamedTuple):
    """What is known about one client's round; observers read it, algorithms never do."""

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


class Partial(NamedTuple):
    """The replies of several clients, summed where the clients are."""

    total: Upload
    """sum of a_i * upload_i over these clients."""
    weight: float
    """sum of a_i."""
    bytes_up: int
    """What the clients themselves sent."""
    infos: Sequence[ClientInfo]


class ClientStateStore(Protocol):
    """Keeps client records; a client that was never committed has none."""

    def bind(self, template: ClientRecord, primal: str | None) -> None:
        """Learn how records look, and which of their tensors is the client's own model."""

    def get(self, client: int) -> ClientRecord | None:
        """The last committed record, or None."""

    def commit(self, client: int, record: ClientRecord, round_index: int) -> None:
        """Keep a record; it replaces the client's last one."""

    def clients(self) -> Sequence[int]:
        """The ids that have a record, sorted."""

    def prefetch(self, clients: Sequence[int]) -> None:
        """Announce who will be asked for next, while others compute."""

    def mark(self) -> None:
        """Remember this point between two rounds; it replaces the last one."""

    def undo(self) -> None:
        """Go back to the marked point."""


class Engine(Protocol):
    """Runs the clients of a round."""

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo] | Partial]:
        """Each client's upload in the order of `ids`, or sums over some of them.

        The order of what is yielded is the same in every run, so that sums are reproducible.
        """

    def close(self) -> None:
        """Give back processes, files and memory."""


class EngineState(NamedTuple):
    """Work in flight between two server steps, for an engine that has some."""

    values: dict[str, Any]
    """Plain values that JSON can hold."""
    downloads: dict[int, Download]
    """The broadcasts that clients still work from, by server step."""


@runtime_checkable
class ClockedEngine(Protocol):
    """An engine with a clock of its own, and with work in flight between server steps."""

    def extras(self) -> dict[str, Any]:
        """What the last step adds to its record."""

    def snapshot(self) -> EngineState:
        """The clock and the work in flight; nothing that is done later changes it."""

    def restore(self, state: EngineState) -> None:
        """Go on from a snapshot."""


Metrics = Mapping[str, float]
Evaluator = Callable[[Tensor], Metrics]
