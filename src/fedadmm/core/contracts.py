"""The contracts of the package and the NamedTuples that pass between components.

Every method of the family solves one local problem per client and adds one increment per client:

    min_w  f_i(w) + <linear, w> + (weight / 2) ||w - centre||^2        started at `start`

An `Algorithm` specifies (start, linear, weight, centre), how a client's state changes, what the
client uploads, and how the server uses the weighted sum of the uploads.  It depends neither on the
solver nor on the engine nor on the place where states are stored.  Optional abilities of a method
are mix-ins in `capabilities`.

Shapes.  Client-side code is written once for one client and also runs on a stack of K clients:
vectors are (D,) or (K, D), scalars of a client are (1,) or (K, 1), norms keep their last dimension
(`norm`), and a choice between clients is `torch.where`, never a Python `if`.

Weights.  The aggregate is `total = sum over participants of a_i * message_i`, where the a_i of all
n clients sum to one.  The mean over all clients is therefore `total` itself, and the mean over the
participants is `total / cohort.weight`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Part, role
from fedadmm.core.rng import Key

if TYPE_CHECKING:
    from fedadmm.core.stopping import StoppingRule

Start = Literal["own", "current", "global"]
"""Initial point of local training: the client's previous local model ("own"), the same except in
its first round ("current"), or the global model ("global")."""
Server = TypeVar("Server")
Client = TypeVar("Client")
BroadcastType = TypeVar("BroadcastType")
Message = TypeVar("Message")


def norm(vector: Tensor) -> Tensor:
    """Return the Euclidean norm over the last dimension, which is kept for broadcasting."""
    result: Tensor = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    return result


class Theta(NamedTuple):
    """The global vector: the broadcast of most methods and the state of some servers."""

    theta: Tensor


class LocalProblem(NamedTuple):
    """The local problem of one client in one round; None stands for a zero vector."""

    start: Tensor
    """Initial point: theta, unless `LocalWork.start` selects the client's local model."""
    linear: Tensor | None = None
    weight: Tensor | float = 0.0
    centre: Tensor | None = None
    steps: int | None = None
    """Number of local steps if the method prescribes it instead of the stopping rule."""
    prox_step: Tensor | float = 0.0
    """Step size of the proximal operator applied to `start` when `start` is a dual vector."""


class LocalResult(NamedTuple):
    """Result of a local solve; a field that the algorithm does not require is None."""

    params: Tensor
    start_gradient: Tensor | None = None
    """Full gradient of f_i at `start`."""
    mean_gradient: Tensor | None = None
    """Mean of the mini-batch gradients of f_i over all local steps."""
    step_sum: Tensor | None = None
    """Sum of the weights with which the gradients moved the model: the learning rates of all
    steps, including the effect of momentum."""
    memory: tuple[Tensor, ...] | None = None
    """State of the solver for the client's next round; algorithms do not read it."""

    @classmethod
    def like(cls, params: Tensor) -> LocalResult:
        """Return a result with every field set, to find out the shapes of messages."""
        return cls(params, params, params, params.new_ones(1))


class LocalNeeds(NamedTuple):
    """What an algorithm requires of the local solve of a round."""

    local_solve: bool = True
    start_gradient: bool = False
    mean_gradient: bool = False
    step_sum: bool = False
    local_prox: Literal["none", "primal", "dual"] = "none"
    """How g enters the local steps: not at all, by its prox after every step, or by its prox
    before every gradient while the steps are accumulated in a dual vector."""


class Requirements(NamedTuple):
    """What a method requires of the other components of a run, and what it tolerates.

    `core.compatibility` compares these declarations with the components of a run.
    """

    local: LocalNeeds = LocalNeeds()
    """Required of the local solve in every sampled round."""
    initial_round: LocalNeeds | None = None
    """Required of the local solve in an initial round with all clients; None if there is none."""
    full_participation: bool = False
    """Whether all clients must participate in every round."""
    regularizer: bool = False
    """Whether the method minimises f + g for any convex g."""
    asynchronous: bool = False
    """Whether the method is defined without rounds: every arriving update is one server step."""
    stale_updates: bool = False
    """Whether single updates may be aggregated on arrival although they were computed from an
    older model.  False where each update moves the whole model, as a mean over a few participants
    does: stale updates then accumulate and the run diverges."""
    broadcasts_theta: bool = True
    """Whether every broadcast contains the global vector."""
    default_start: Start = "global"
    """Initial point of local training unless the run specifies one."""
    default_stop: StoppingRule | None = None
    """Stopping rule of the local solve unless the run specifies one; None is one epoch."""

    def local_in(self, round_index: int) -> LocalNeeds:
        """Return what the local solve of a round must provide; -1 is the initial round."""
        initial = round_index < 0 and self.initial_round is not None
        return cast(LocalNeeds, self.initial_round) if initial else self.local


class Round(NamedTuple):
    """Index and random key of a round."""

    round_index: int
    """Number of earlier rounds of the run, rounds without participants included; -1 for an
    initial round."""
    key: Key


class Cohort(NamedTuple):
    """Size of the cohort whose updates were aggregated."""

    size: int
    """Number of participants."""
    weight: float
    """Sum of the participants' weights a_i."""
    clients: int
    """Number of all clients."""
    round_index: int
    """Index of the round, as in `Round`."""


@role("regularizer")
class Regularizer(Part, ABC):
    """Base class of proper, closed, convex functions g with a proximal operator.

    A subclass is a frozen dataclass that defines `value` and `prox`; see `fedadmm.regularizers`.

    Example:
        >>> import torch, fedadmm as fa
        >>> isinstance(fa.L1(1.0), fa.Regularizer)
        True
        >>> fa.L1(1.0).prox(torch.tensor([3.0, 1.0]), step=2.0)
        tensor([1., 0.])
    """

    is_zero: ClassVar[bool] = False
    """Whether g = 0, which every method accepts."""

    @abstractmethod
    def value(self, params: Tensor) -> Tensor:
        """Return g(params) as a scalar tensor; infinite outside the domain of an indicator."""

    @abstractmethod
    def prox(self, params: Tensor, step: float) -> Tensor:
        """Return argmin_u g(u) + ||u - params||^2 / (2 step)."""


@role("algorithm")
class Algorithm(Part, ABC, Generic[Server, Client, BroadcastType, Message]):
    """A federated method: a frozen dataclass of hyper-parameters with pure functions.

    States, broadcasts and messages are NamedTuples of tensors.  No function modifies its arguments
    or keeps anything on `self`.  A new method defines the four abstract functions; everything else
    has a default.

    Example:
        Every function of a method can be called by itself:

        >>> import torch, fedadmm as fa
        >>> method = fa.FedProx(rho=0.5)
        >>> server = method.init_server(torch.zeros(2))
        >>> method.local_problem(server, method.init_client(torch.zeros(2))).weight
        0.5
    """

    title: ClassVar[str]
    """Name in tables and figures; the name of the class by default."""
    paper: ClassVar[str] = ""
    """Authors, title, venue and year."""

    def __init_subclass__(cls, **options: object) -> None:
        """Set the default title, and the name by which a configuration refers to the class."""
        super().__init_subclass__(**options)
        cls.name = f"{cls.__module__}:{cls.__qualname__}"
        if "title" not in cls.__dict__:
            cls.title = cls.__name__

    @property
    def requirements(self) -> Requirements:
        """What the method requires of the other components of a run."""
        return Requirements()

    @property
    def bias(self) -> str | None:
        """Why the method converges to a biased point; None if it converges to the optimum.

        This refers to strongly convex problems with accurate local solves in which every client
        participates infinitely often.
        """
        return None

    @property
    def increments(self) -> tuple[str, ...]:
        """Message fields whose vectors the server accumulates client by client.

        What the update pipeline removes from such a field is sent in a later round.
        """
        return ()

    @property
    def deltas(self) -> tuple[str, ...]:
        """Message fields whose vectors are computed anew in every round, such as w - theta.

        A vector that is neither an increment nor a delta is sent unchanged: the update pipeline
        must not modify it.
        """
        return ()

    def init_server(self, params: Tensor) -> Server:
        """Return the server's state before the first round from the initial model."""
        return cast(Server, Theta(params))

    @abstractmethod
    def init_client(self, params: Tensor) -> Client:
        """Return a client's state before its first round from the initial model."""

    def broadcast(self, server: Server, round: Round) -> BroadcastType:
        """Return what every participant of the round receives; the global vector by default."""
        return cast(BroadcastType, Theta(self.global_params(server)))

    @abstractmethod
    def local_problem(self, broadcast: BroadcastType, client: Client) -> LocalProblem:
        """Return the local problem of one client, or of a stack of clients."""

    @abstractmethod
    def client_update(
        self, broadcast: BroadcastType, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        """Return the client's next state and its message."""

    @abstractmethod
    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        """Return the server's next state from the weighted sum of at least one message."""

    def global_params(self, server: Server) -> Tensor:
        """Return the global vector, which is broadcast and evaluated; `theta` by default."""
        theta = theta_of(server)
        if theta is None:
            raise ParameterError(
                f"{type(self).__name__}.global_params: got a server state {type(server).__name__} "
                "without a field theta, expected that field or an override of global_params."
            )
        return theta


def theta_of(tree: Any) -> Tensor | None:
    """Return the field `theta` of a state or broadcast, or None if it has none."""
    theta: Tensor | None = tree.theta if "theta" in getattr(tree, "_fields", ()) else None
    return theta


AnyAlgorithm = Algorithm[Any, Any, Any, Any]


class PrimalDual(NamedTuple):
    """A client's model, dual vector and penalty, however a method stores them."""

    w: Tensor
    y: Tensor
    penalty: Tensor | float
