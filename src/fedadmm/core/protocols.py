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

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    cast,
)

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.errors import DataError, ParameterError, StateError
from fedadmm.core.missed import Missed
from fedadmm.core.parts import Part, names_of, role
from fedadmm.core.rng import Key, permutation
from fedadmm.core.schedules import PerWork, check_one_each

if TYPE_CHECKING:
    from fedadmm.core.objectives.flat import FlatModule
    from fedadmm.core.setup import Setup

Pull = Callable[[Tensor, int, int], None]
"""Moves the entries from one index to another by a local problem's own terms, in place."""
Start = Literal["own", "current", "global"]
"""Where local work starts: at the client's own model, there except in the client's first round, or
at theta."""
Rows = Any
"""A mini-batch, as `Objective.mini_batches` yields it and `Objective.gradient` takes it.

Row numbers, unless the objective says otherwise; nobody in between looks inside.
"""
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

    @classmethod
    def like(cls, params: Tensor) -> LocalResult:
        """A result with every field, for whoever wants to know how messages look."""
        return cls(params, params, params, params.new_ones(1))


class SolveInfo(NamedTuple):
    """How a solve went: never part of any state."""

    steps: int
    epochs: float
    """Steps as shares of a pass over the client's data: what the method asked for."""
    passes: float
    """Gradients evaluated, in passes over the client's data: what the solve cost.

    The rows of all steps, and every full gradient that the stopping rule, the method or the solver
    itself took besides.
    """
    status: str
    accuracy: float
    """The norm of the local problem's full gradient at the result; NaN when nobody asked."""


class Needs(NamedTuple):
    """What an algorithm needs of the local solve."""

    local_solve: bool = True
    start_gradient: bool = False
    mean_gradient: bool = False
    step_sum: bool = False
    local_prox: Literal["none", "primal", "dual"] = "none"
    """How g enters the local steps: not at all, by its prox after every step, or by its prox before
    every gradient, while the steps themselves add up in a dual state."""


class SolveContext(NamedTuple):
    """The circumstances of a solve that some rules and schedules look at."""

    round_index: int = 0
    needs: Needs = Needs()
    theta: Tensor | None = None
    """The global vector; None when it was not sent."""
    own: Tensor | None = None
    """The client's own model, wherever the solve starts; None when its method keeps none."""
    clients: Sequence[int] = (0,)
    """Who works: one client, or those of a stack in the order of its rows."""
    regularizer: Regularizer | None = None
    """g, for methods whose local steps take its prox."""
    deployed: bool = False
    """Whether noise must come from the machine's entropy, and not from the seed."""


IN_NO_ROUND = SolveContext()
"""The context of a solve on its own, outside any run."""


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
        method, needs, solver = type(self).__name__, self.needs, setup.local.solver
        if self.tolerates_stale and self.virtual_steps(self.init_server(setup.initial)) is not None:
            raise ParameterError(
                f"{method}: tolerates_stale is True, but must be False for a method with virtual "
                "steps, which the clients of late replies would get twice"
            )
        if not self.accepts_partial and not setup.sampler.takes_everybody:
            yield (
                f"{method} needs all clients in every round, but the sampler is "
                f"{type(setup.sampler).__name__}; use FullParticipation"
            )
        if not self.accepts_regularizer and not setup.problem.regularizer.is_zero:
            yield (
                f"{method} has no proximal server step, but the problem's regularizer is "
                f"{type(setup.problem.regularizer).__name__}; use "
                f"{names_of('algorithm', lambda kind: kind.accepts_regularizer)}"
            )
        if not needs.local_solve:
            return
        if solver is None:
            yield (
                f"{method} needs a local solver, but solver is None; choose one, such as "
                "SGD(lr=0.1)"
            )
        elif needs.mean_gradient and not solver.averages_gradients:
            yield (
                f"{method} averages the gradients of its local steps, but "
                f"{type(solver).__name__} has none to average; use "
                f"{names_of('solver', lambda kind: kind.averages_gradients)}"
                + f", or {self.without_mean_gradient}"
                * bool(self.without_mean_gradient)
            )
        elif needs.step_sum and not solver.sums_steps:
            yield (
                f"{method} must know the size of every local step, but {type(solver).__name__} "
                f"does not tell; use {names_of('solver', lambda kind: kind.sums_steps)}"
            )

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
        """The server as if a client stood at its initial state; `past` is a_i times its uploads.

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


AnyAlgorithm = Algorithm[Any, Any, Any, Any]


class Objective(ABC):
    """f_i on flat vectors, from one client's data."""

    flat: FlatModule | None = None
    """The module behind the vector, whose buffers have a policy; None without a module."""
    descends: ClassVar[bool] = False
    """Whether `descend` makes a step faster than `gradient` and an addition."""

    @property
    @abstractmethod
    def num_parameters(self) -> int:
        """D, the length of the flat vector."""

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """The number of rows a mini-batch is drawn from."""

    @abstractmethod
    def value(self, params: Tensor) -> Tensor:
        """f_i(params) over all the client's data."""

    def mini_batches(self, key: Key, epoch: int, batch_size: int) -> Iterator[Rows]:
        """The mini-batches of one epoch of a solve: all rows, in an order drawn from the key."""
        yield from torch.split(permutation(key, epoch, self.num_samples), batch_size)

    @abstractmethod
    def gradient(self, params: Tensor, rows: Rows = None) -> Tensor:
        """The gradient of f_i over a mini-batch, or over all data.

        The result may be a buffer that the next call overwrites.
        """

    @abstractmethod
    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Objective:
        """The same objective in another precision or on another device."""

    def check(self) -> None:  # noqa: B027 - most have nothing to refuse
        """Refuse data that do not fit the model or the loss, before the first round."""

    def needs_two_rows(self) -> str | None:
        """The layer that cannot train on a batch of one row; None where every batch will do."""
        return None

    @property
    def is_random(self) -> bool:
        """Whether a gradient draws random numbers of its own (dropout)."""
        return False

    def evaluation_gradient(self, params: Tensor) -> Tensor:
        """The gradient of `value`, which measures and never trains; maybe in a buffer as above.

        It differs from `gradient` where training does, as by dropout and BatchNorm.
        """
        return self.gradient(params)

    def descend(self, params: Tensor, rows: Rows, lr: float, pull: Pull | None = None) -> None:
        """`pull`, then params -= lr * gradient, in place on the workspace; where `descends`."""
        raise DataError(f"{type(self).__name__}: it has no step of its own, but one is asked for")

    def workspace(self, params: Tensor) -> Tensor:
        """A copy of `params` that a solver may change in place and pass to `gradient`."""
        return params.clone()

    @property
    def has_classes(self) -> bool:
        """Whether every row has a class that a model gets right or wrong."""
        return False

    def value_and_correct(self, params: Tensor) -> tuple[Tensor, int]:
        """`value`, and how many rows get their class right, from one pass over the data."""
        raise DataError(f"{type(self).__name__}: its rows have no classes, but they are asked for")

    def row_refusal(self, params: Tensor) -> str | None:
        """Why `row_gradients` cannot be had, asked before round 0; None when it can."""
        return f"the clients' objectives are {type(self).__name__}, which has no gradients of rows"

    def row_gradients(self, params: Tensor, rows: Tensor) -> Tensor:
        """What `gradient` is over each of these rows alone: a new (rows, D) tensor."""
        raise DataError(
            f"{type(self).__name__}: {self.row_refusal(params)}, but they are asked for"
        )

    def work(self, rows: int) -> float:
        """About how many multiplications a gradient over this many rows takes, forwards."""
        return float(self.num_parameters * rows)


class Progress(NamedTuple):
    """What a stopping rule sees between two epochs; tensors of shape (1,) or (K, 1)."""

    gradient_norm: Tensor
    """||grad L_i(w)|| over the client's full data."""
    reference_norm: Tensor
    """The same at the rule's reference point; at the start for a rule without one."""
    move: Tensor
    """||w - origin||, with the rule's `origin`."""
    weight: Tensor | float
    """The weight of the local problem's quadratic term."""
    round_index: int
    clients: Sequence[int]
    """Whose progress it is, in the order of the tensors' rows."""


@role("stop")
class StoppingRule(Part, ABC):
    """When a local solve ends: a budget, and for some rules a test between epochs."""

    needs_gradient: ClassVar[bool] = False
    """Whether `reached` must be asked, with full gradients, before every epoch."""
    per_client: ClassVar[tuple[str, ...]] = ()
    """The fields that may hold a sequence with one entry per client; its length is checked."""

    def refuses(self, setup: Setup) -> Iterator[str]:
        """For a rule that measures gradients: a method in which they do not tell the accuracy."""
        check_per_client(self, setup.problem.num_clients)
        if not setup.algorithm.needs.local_solve or not self.needs_gradient:
            return
        method, rule = type(setup.algorithm).__name__, type(self).__name__
        others = names_of("stop", lambda kind: not kind.needs_gradient)
        if self.reference == "global" and not setup.algorithm.always_sends_theta:
            yield (
                f"{rule} with reference='global' measures against theta, but {method} does not "
                "send it in every round; use reference='own'"
            )
        if setup.algorithm.needs.local_prox != "none":
            yield (
                f"{rule} measures the gradient of a smooth local problem, but {method} takes the "
                f"prox of g in its local steps; use {others}"
            )
        if setup.first_problem.steps is not None:
            yield (
                f"{rule} ends a local solve by what it measures, but {method} says how many steps "
                f"a round has; use {others}, which it does not ask"
            )
        zero = setup.initial.new_zeros(1)
        # A rule that certifies an accuracy refuses a penalty that is too small for it.
        self.reached(Progress(zero, zero, zero, setup.first_problem.weight, 0, (0,)))

    @property
    def reference(self) -> str | None:
        """Where `Progress.reference_norm` is taken: "own", "global" (theta), or None: not needed.

        "own" is the client's own model; where its method keeps none, it is the start.
        """
        return None

    @property
    def origin(self) -> str:
        """Where `Progress.move` is measured from: "own", or "argument".

        "own" is the client's own model as above; "argument" is centre - linear / weight, whose
        prox the solve computes.
        """
        return "own"

    @abstractmethod
    def budget(self, steps_per_epoch: int, key: Key, client: int) -> int:
        """The largest number of steps of one solve."""

    def largest_budget(self, steps_per_epoch: int, client: int) -> int:
        """The largest `budget` of a client, for a rule that draws it."""
        return self.budget(steps_per_epoch, 0, client)

    def reached(self, progress: Progress) -> Tensor:
        """Whether each client may stop; boolean, elementwise over a stack.  Never by default."""
        return torch.zeros_like(progress.gradient_norm, dtype=torch.bool)

    @abstractmethod
    def sentence(self, reached: bool) -> str:
        """Why the solve ended."""


class RecordNoise(NamedTuple):
    """How a solver hides the single rows of its client, and what of that may be spent."""

    multiplier: float
    """The noise's standard deviation, in units of what a row can change."""
    clip: float
    delta: float
    budget: float | None

    def refuses(self, setup: Setup, solver: str) -> Iterator[str]:
        """What tells of rows and has no noise."""
        method, needs = type(setup.algorithm).__name__, setup.algorithm.needs
        if needs.start_gradient or not needs.local_solve:
            yield (
                f"{method} takes the gradient over all of a client's rows, which {solver} does not "
                "noise; use a method that sends where its local steps lead"
            )
        assert setup.local.stop is not None
        if setup.local.stop.needs_gradient:
            yield (
                f"{type(setup.local.stop).__name__} looks at gradients without the noise of "
                f"{solver}; use {names_of('stop', lambda kind: not kind.needs_gradient)}"
            )
        if setup.first_problem.steps is not None:
            yield (
                f"{method} draws how many steps a round has, but noise is accounted for by those "
                "of the stopping rule; use another method"
            )
        if setup.sampler.asks_losses:
            yield (
                f"{type(setup.sampler).__name__} asks for losses, which {solver} does not noise; "
                "use another sampler"
            )
        if setup.uploads.noise is not None:
            yield (
                f"{solver} hides the rows of clients and the upload's noise hides clients, but a "
                "run accounts for one of them; leave out the other"
            )
        if (reason := setup.problem.clients[0].row_refusal(setup.initial)) is not None:
            yield f"{solver}: {reason}"
        for client, objective in enumerate(setup.problem.clients):
            if (rows := objective.num_samples) >= 1 / self.delta:
                raise ParameterError(
                    f"{solver}: delta is {self.delta:g}, but must be below one over the number of "
                    f"rows of every client, {1 / rows:.4g} at client {client}: otherwise giving "
                    "one row away would be allowed"
                )


def check_per_client(part: LocalSolver | StoppingRule, clients: int) -> None:
    """Refuse a sequence per client that is not one entry for each of them."""
    for field in part.per_client:
        check_one_each(part, field, getattr(part, field), clients)


@role("solver")
class LocalSolver(Part, ABC):
    """Solves a local problem approximately."""

    averages_gradients: ClassVar[bool] = False
    """Whether `LocalResult.mean_gradient` can be supplied."""
    sums_steps: ClassVar[bool] = False
    """Whether it makes plain steps: it supplies `LocalResult.step_sum`, and takes the prox of g."""
    batch_size: int | None = None
    """The rows of a step; None for all."""
    per_client: ClassVar[tuple[str, ...]] = ()
    """The fields that may hold a sequence with one entry per client; its length is checked."""

    def refuses(self, setup: Setup) -> Iterator[str]:
        """A wrong number of entries per client, and what its noise does not hide."""
        check_per_client(self, setup.problem.num_clients)
        if self.noise is not None:
            yield from self.noise.refuses(setup, type(self).__name__)

    @property
    def noise(self) -> RecordNoise | None:
        """How it hides the rows of its client; None for a solver that does not."""
        return None

    def without_noise(self) -> LocalSolver:
        """The solver that makes the same steps on gradients as they are; itself without noise."""
        return self

    def rate_of(self, client: int, round_index: int) -> float | None:
        """The length of a client's gradient steps; None for a solver that finds its own."""
        return None

    def length(self, steps: int, client: int) -> float | None:
        """The sum of the sizes of this many steps of a first round; None where nobody can tell."""
        return None

    @abstractmethod
    def solve(
        self,
        objective: Objective,
        problem: LocalProblem,
        stop: StoppingRule,
        key: Key,
        context: SolveContext = IN_NO_ROUND,
    ) -> tuple[LocalResult, SolveInfo]:
        """Minimise the local problem."""


class Seen(NamedTuple):
    """What the server knows of one client: nothing that its replies do not tell anyway."""

    asked: int
    """The last round it was asked to take part in; -1 is the initial round with everybody."""
    heard: int | None = None
    """The last round that its reply counted in; None before the first."""
    drift: float = float("nan")
    """||w_i - theta|| in that round."""
    loss: float = float("nan")
    """f_i(theta) in that round, for a sampler that asks for losses."""


Known = Mapping[int, Seen]
"""What the server knows of every client that was ever asked, by its id."""


@role("sampler")
class Sampler(Part, ABC):
    """Who takes part in a round: a function of the seed, the round, and what is known."""

    looks_back: ClassVar[bool] = False
    """Whether `sample` needs `known`; the loop can then not prepare the next round early."""
    asks_losses: ClassVar[bool] = False
    """Whether clients report f_i(theta) with their reply, a pass over their data without gradient;
    only what is `known` holds it."""
    is_random: ClassVar[bool] = True
    """Whether rounds are drawn, as the theorems want it, and not planned."""
    takes_everybody: ClassVar[bool] = False
    """Whether every client takes part in every round, as some methods need it."""

    def refuses(self, setup: Setup) -> Iterator[str]:
        """What `check` refuses, and a `sample` that forgot what it is called with."""
        signature = inspect.signature(self.sample)
        try:
            signature.bind(0, 0, 1, None)
        except TypeError:
            raise ParameterError(
                f"{type(self).__name__}: sample takes {signature}, but must take "
                "(seed, round_index, clients, known=None)"
            ) from None
        self.check(setup.problem.num_clients, setup.rounds)
        yield from super().refuses(setup)

    @abstractmethod
    def sample(
        self, seed: Key, round_index: int, clients: int, known: Known | None = None
    ) -> Sequence[int]:
        """The ids of round `round_index`, sorted, without repetition.

        `known` is what the server knows when the round begins, for a sampler that looks back, and
        None for others.
        """

    def probabilities(self, clients: int) -> NDArray[np.float64] | None:
        """p_i = P(client i takes part), if it is the same in every round; else None."""
        return None

    def check(self, clients: int, rounds: int) -> None:
        """Refuse what cannot work for this many clients and rounds, before round 0.

        By default a scheme that never takes some client, as far as its probabilities tell.
        """
        probabilities = self.probabilities(clients)
        if probabilities is not None and (probabilities <= 0).any():
            raise ParameterError(
                f"{type(self).__name__}: client {int(np.argmax(probabilities <= 0))} takes part "
                "with probability 0, but a proper scheme gives every client a chance"
            )


class PrimalDual(NamedTuple):
    """A client's model, its dual and its penalty, whatever a method keeps them as."""

    w: Tensor
    y: Tensor
    penalty: Tensor | float


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
    loss: float = float("nan")
    """f_i(theta) before the solve; NaN when nobody asked."""
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
    """Where the one who runs a client finds and leaves its record."""

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
        """How often the last step's download was handed out, with or without a reply to it.

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

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Give back processes, files and memory."""


class EngineState(NamedTuple):
    """Work in flight between two server steps, for an engine that has some."""

    values: dict[str, Any]
    """Plain values that JSON can hold."""
    downloads: dict[int, Download]
    """The broadcasts that clients still work from, by server step."""


Metrics = Mapping[str, float]
Evaluator = Callable[[Tensor], Metrics]
