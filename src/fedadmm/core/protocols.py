"""The roles of the package and the NamedTuples that pass between them.

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
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar, cast

import torch
from torch import Tensor

from fedadmm.core.errors import ParameterError, StateError
from fedadmm.core.parts import Part, names_of, role
from fedadmm.core.rng import Key
from fedadmm.core.schedules import PerWork

if TYPE_CHECKING:
    from fedadmm.core.setup import Setup
    from fedadmm.core.stopping import StoppingRule

Start = Literal["own", "current", "global"]
"""Where local work starts: at the client's own model, there except in the client's first round, or
at theta."""
Server = TypeVar("Server")
Client = TypeVar("Client")
Cast = TypeVar("Cast")
Message = TypeVar("Message")


def norm(vector: Tensor) -> Tensor:
    """The Euclidean norm over the last dimension, kept, so that it broadcasts over a stack."""
    result: Tensor = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    return result


class Theta(NamedTuple):
    """The global vector alone: what most methods broadcast, and all that some servers hold."""

    theta: Tensor


class LocalProblem(NamedTuple):
    """One client's work in one round; None means a zero vector."""

    start: Tensor
    """Theta, or what takes its place; a run may start at the client's own model (`LocalWork`)."""
    linear: Tensor | None = None
    weight: Tensor | float = 0.0
    centre: Tensor | None = None
    steps: int | None = None
    """How many steps to make, where the method says it and not the stopping rule."""
    prox_step: Tensor | float = 0.0
    """The step of the prox of g that `start` waits for, where it is a dual state."""


class LocalResult(NamedTuple):
    """What a solve hands to the algorithm.

    `start_gradient` is the full gradient of f_i at `start`, `mean_gradient` the mean of the
    (mini-batch) gradients of f_i over the steps made, `step_sum` the sum of the weights with which
    those gradients moved the model: the steps' learning rates, and what momentum made of them.
    Each is there only when the algorithm needs it.
    """

    params: Tensor
    start_gradient: Tensor | None = None
    mean_gradient: Tensor | None = None
    step_sum: Tensor | None = None
    memory: tuple[Tensor, ...] | None = None
    """What the solver keeps for the client's next round; no algorithm looks at it."""

    @classmethod
    def like(cls, params: Tensor) -> LocalResult:
        """A result with every field, for whoever wants to know how messages look."""
        return cls(params, params, params, params.new_ones(1))


class Needs(NamedTuple):
    """What an algorithm needs of the local solve."""

    local_solve: bool = True
    start_gradient: bool = False
    mean_gradient: bool = False
    step_sum: bool = False
    local_prox: Literal["none", "primal", "dual"] = "none"
    """How g enters the local steps: not at all, by its prox after every step, or by its prox before
    every gradient, while the steps themselves add up in a dual state."""


class Round(NamedTuple):
    """Which round it is: the clock of every schedule, and the key of what is random in it."""

    round_index: int
    """Rounds of the run before this one, empty ones included; an initial round has -1."""
    key: Key


class Received(NamedTuple):
    """Which replies a server step folds: how many, their weight sum, out of how many clients."""

    replies: int
    weight: float
    clients: int
    round_index: int
    """The round's index, as in `Round`."""


@role("regularizer")
class Regularizer(Part, ABC):
    """A proper, closed, convex g with its proximal operator."""

    is_zero: ClassVar[bool] = False
    """Whether g = 0, which every method accepts."""

    def refuses(self, setup: Setup) -> Iterator[str]:
        """Nothing but a vector of the wrong length, which the prox itself refuses."""
        self.prox(setup.initial, setup.algorithm.prox_step)
        yield from super().refuses(setup)

    @abstractmethod
    def value(self, params: Tensor) -> Tensor:
        """g(params), a scalar tensor (infinite outside the domain of an indicator)."""

    @abstractmethod
    def prox(self, params: Tensor, step: float) -> Tensor:
        """argmin_u g(u) + ||u - params||^2 / (2 step)."""


@role("algorithm")
class Algorithm(Part, ABC, Generic[Server, Client, Cast, Message]):
    """One paper's method: a frozen dataclass of hyper-parameters with pure functions.

    States, broadcasts and messages are NamedTuples of tensors.  No function changes what it is
    given, and none keeps anything on `self`.
    """

    title: ClassVar[str]
    """What people call it; the name of the class, unless the class says otherwise."""
    paper: ClassVar[str] = ""
    """Authors, title, year."""
    accepts_regularizer: ClassVar[bool] = False
    """Whether it minimises f + g: the server step applies the prox of g."""
    accepts_partial: ClassVar[bool] = True
    """Whether clients may sit a round out."""
    asynchronous: ClassVar[bool] = False
    """Whether it is defined without rounds: every arriving reply is one server step."""
    usual_start: ClassVar[Start] = "global"
    """Where local work starts unless a run says otherwise: at theta, because a few steps from an
    old point solve no local problem; "own" where a paper prints it (needs `local_params`)."""
    baseline: ClassVar[bool] = False
    """Whether comparisons measure the others against it: a method without duals."""
    without_mean_gradient: ClassVar[str] = ""
    """The option to use where a solver has no gradients to average; empty where there is none."""

    def __init_subclass__(cls, **options: object) -> None:
        """Give a method its title, and the name by which a configuration reaches an own one."""
        super().__init_subclass__(**options)
        cls.name = f"{cls.__module__}:{cls.__qualname__}"
        if "title" not in cls.__dict__:
            cls.title = cls.__name__

    @property
    def needs(self) -> Needs:
        """What this method needs of the local solve."""
        return Needs()

    def refuses(self, setup: Setup) -> Iterator[str]:
        """Clients that sit out, a regulariser, or a solver that it is not made for."""
        yield from super().refuses(setup)
        yield from setup.method_refusals()

    def no_late_replies(self) -> str:
        """Why a method that is not `tolerates_stale` is refused where replies arrive late."""
        given = " with a fixed step" if self.fixed_step(0) is not None else ""
        return (
            f"{type(self).__name__}{given} does not tolerate late replies (tolerates_stale is "
            "False): each moves the whole model, they pile up and the run explodes; use FedADMM "
            f"with step='tracking', FedDR, {names_of('algorithm', lambda k: k.asynchronous)}"
        )

    def resolve_penalty(self, length: Callable[[], float]) -> Self:
        """The method with a number for every `PerWork`; itself where there is none.

        `length` returns the mean over the clients of learning rate * local steps in a round.
        """
        fields = [name for name, value in vars(self).items() if isinstance(value, PerWork)]
        numbers = {name: getattr(self, name).penalty(length()) for name in fields}
        return replace(self, **numbers) if numbers else self  # type: ignore[type-var]

    @property
    def tolerates_stale(self) -> bool:
        """Whether replies may be folded one by one, from models that others have moved since.

        Where each reply moves the model in full, as a mean over a few replies does, late ones pile
        up and the run explodes.  A method is taken to be like that unless it says otherwise.
        """
        return self.asynchronous

    @property
    def relaxation(self) -> float:
        """Alpha of the Douglas-Rachford step that the method makes; 1 is no relaxation."""
        return 1.0

    @property
    def bias(self) -> str | None:
        """Why a run does not come to rest at the optimum; None for a method that does.

        On strongly convex problems, with accurate local solves and every client taking part again
        and again.
        """
        return None

    @property
    def increments(self) -> tuple[str, ...]:
        """The fields of a message whose vectors add up on the server, client by client.

        What a stage of the upload cuts away of them is sent later.
        """
        return ()

    @property
    def moves(self) -> tuple[str, ...]:
        """The fields of a message whose vectors are fresh in every round, such as w - theta.

        A vector in neither of these is taken as it is: no stage of the upload may cut it.
        """
        return ()

    @property
    def starts_with_everyone(self) -> bool:
        """Whether an initial round with all clients precedes the first sampled one."""
        return False

    def needs_in(self, round_index: int) -> Needs:
        """What it needs of the local work in a round; -1 is the initial round with all clients."""
        return self.needs

    @property
    def always_sends_theta(self) -> bool:
        """Whether every broadcast carries the global vector."""
        return True

    @property
    def prox_step(self) -> float:
        """The step of prox_{step * g} in the server update; also that of the gradient mapping."""
        return 1.0

    def fixed_step(self, round_index: int) -> float | None:
        """The server's step along the participants' mean increment, if it is a given number."""
        return None

    def default_stop(self) -> StoppingRule | None:
        """The stopping rule that belongs to the method, or None."""
        return None

    def init_server(self, params: Tensor) -> Server:
        """The server's state before the first round: the initial vector, and what else it holds."""
        return cast(Server, Theta(params))

    @abstractmethod
    def init_client(self, params: Tensor) -> Client:
        """A client's state before its first round, from the initial vector."""

    def broadcast(self, server: Server, round: Round) -> Cast:
        """What every participant of the round receives: the global vector, unless it is more."""
        return cast(Cast, Theta(self.global_params(server)))

    @abstractmethod
    def local_problem(self, cast: Cast, client: Client) -> LocalProblem:
        """The local problem of one client (or of a stack of clients)."""

    @abstractmethod
    def client_update(
        self, cast: Cast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        """The client's next state and its upload."""

    def arrived(self, server: Server, message: Message) -> Message:
        """A message as it counts when it arrives, for methods in which its age matters.

        It is asked for every reply that is folded as it arrives; the replies of a round have no
        age, and are summed up as they are.
        """
        return message

    @abstractmethod
    def server_update(
        self, server: Server, total: Message, received: Received, regularizer: Regularizer
    ) -> Server:
        """Fold the weighted sum of at least one upload."""

    def remove_client(
        self, server: Server, past: Message, regularizer: Regularizer
    ) -> Server | None:
        """The server as if a client were at its initial state; `past` is a_i times its uploads.

        This is how a client that lost its state is taken out.  None, the default, says that the
        server holds nothing of a client beyond the model, so that there is nothing to take out.
        """
        return None

    def virtual_steps(self, server: Server) -> Tensor | None:
        """The sum of all steps so far that absent clients are moved by; None if they stay.

        Who is not part of a server step is moved by the same vector as all others who are not.
        Whoever runs the method tells a client that takes part again what it missed.  Such a method
        does not tolerate late replies.
        """
        return None

    def catch_up(self, client: Client, missed: Tensor) -> Client:
        """A client's state after the virtual steps that it missed."""
        raise StateError(
            f"{type(self).__name__}: it makes virtual steps, but does not say what they do to a "
            "client that comes back"
        )

    def contribution(self, message: Message, virtual: Tensor) -> Message:
        """What a folded upload leaves in the server's sums, as `remove_client` takes it out.

        That is the upload itself, except where the same server step also made a virtual one, which
        this client did not get.
        """
        return message

    def global_params(self, server: Server) -> Tensor:
        """The global vector, which is broadcast and evaluated: `theta` of the server's state."""
        theta = _theta(server)
        if theta is None:
            raise ParameterError(
                f"{type(self).__name__}: its server's state is a {type(server).__name__} without a "
                "field theta, but must have one, or the method its own global_params"
            )
        return theta

    def participants_mean(self, server: Server) -> Tensor | None:
        """The mean model of the last participants, where the server carries it on to theta.

        None where theta is the best that there is: it is that mean, or the mean is not known.
        """
        return None

    def broadcast_params(self, cast: Cast) -> Tensor | None:
        """The global vector that a broadcast carries: its field `theta`, or None without one."""
        return _theta(cast)

    def local_params(self, client: Client) -> Tensor | None:
        """The client's own model, where local work may start; None if the method keeps none."""
        return None

    def primal_dual(self, client: Client) -> PrimalDual | None:
        """The client's model, dual and penalty; None for methods without one of them."""
        return None

    def tracked_mean(self, server: Server) -> Tensor | None:
        """What the server holds as the mean of all w_i + y_i / penalty; None if it holds none."""
        return None


def _theta(tree: Any) -> Tensor | None:
    theta: Tensor | None = tree.theta if "theta" in getattr(tree, "_fields", ()) else None
    return theta


class FirstDuals:
    """For methods whose option `dual` says where the duals begin: at "zero" or at the "gradient".

    With "gradient" an initial round asks everybody.  It solves nothing and sets
    y_i = -grad f_i(theta^0), which moves theta by -grad f(theta^0) / penalty.
    """

    dual: str
    needs: Needs

    @property
    def starts_with_everyone(self) -> bool:
        return self.dual == "gradient"

    def needs_in(self, round_index: int) -> Needs:
        initial = self.starts_with_everyone and round_index < 0
        return Needs(local_solve=False, start_gradient=True) if initial else self.needs

    @staticmethod
    def dual_after(y: Tensor, result: LocalResult) -> Tensor:
        """The dual after a solve; in the initial round, which makes none, minus the gradient."""
        return y if result.start_gradient is None else -result.start_gradient


AnyAlgorithm = Algorithm[Any, Any, Any, Any]


class PrimalDual(NamedTuple):
    """A client's model, its dual and its penalty, whatever a method keeps them as."""

    w: Tensor
    y: Tensor
    penalty: Tensor | float
