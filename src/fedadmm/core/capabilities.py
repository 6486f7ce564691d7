"""Optional abilities of algorithms, one small abstract mix-in each.

`Algorithm` holds what every method needs.  A method that can do more inherits the mix-in, and
engines, server and diagnostics ask `isinstance(algorithm, Capability)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from torch import Tensor

from fedadmm.core.contracts import (
    AnyAlgorithm,
    LocalNeeds,
    LocalResult,
    PrimalDual,
    Regularizer,
)
from fedadmm.core.schedules import PerWork

Server = TypeVar("Server")
Client = TypeVar("Client")
Message = TypeVar("Message")
Method = TypeVar("Method", bound=AnyAlgorithm)


class LocalModels(ABC, Generic[Client]):
    """Clients keep a model of their own between rounds.

    Such a model can be evaluated and exported per client, and local training may start from it.
    """

    @abstractmethod
    def local_params(self, client: Client) -> Tensor:
        """Return the client's local model."""


class PrimalDualStates(LocalModels[Client]):
    """Clients keep a primal and a dual vector.

    Diagnostics measure stationarity, consensus and the dual sum with them.
    """

    @abstractmethod
    def primal_dual(self, client: Client) -> PrimalDual:
        """Return the client's model, dual vector and penalty."""


class TrackedMean(ABC, Generic[Server]):
    """The server holds the mean of w_i + y_i / penalty over all clients.

    Diagnostics compare it with the mean of what the clients hold.
    """

    @abstractmethod
    def tracked_mean(self, server: Server) -> Tensor | None:
        """Return the mean; None if the options of the method rule it out."""

    def numeric_step(self, round_index: int) -> float | None:
        """Return the server's step along the participants' mean increment if it is a number."""
        return None


class ParticipantsMeanModel(ABC, Generic[Server]):
    """The server knows the mean model of the last participants and extrapolates from it.

    That mean is often the better model to evaluate and to return.
    """

    @abstractmethod
    def participants_mean(self, server: Server) -> Tensor:
        """Return the mean of the models that the last participants sent."""


class ProximalServer(ABC):
    """The server update applies the proximal operator of g."""

    @property
    @abstractmethod
    def prox_step(self) -> float:
        """Step size of that operator, which is also the one of the gradient mapping."""


class StalenessWeighting(ABC, Generic[Server, Message]):
    """The weight of an update depends on its age."""

    @abstractmethod
    def weight_update(self, server: Server, message: Message) -> Message:
        """Return the message with its weight at arrival.

        Called for every update that is aggregated on arrival.  Updates of a synchronous round have
        no age and are summed unchanged.
        """


class ClientRemoval(ABC, Generic[Server, Message]):
    """A client can be removed from the server's state exactly.

    A client that lost its state is removed and starts again.  A method without this ability holds
    nothing of a single client in its server state except through the model.
    """

    @abstractmethod
    def remove_client(
        self, server: Server, past: Message, regularizer: Regularizer
    ) -> Server | None:
        """Return the server's state as if the client were at its initial state.

        Args:
            server: the current state.
            past: a_i times the sum of everything that the client has sent.
            regularizer: g.

        Returns:
            The new state, or None if the options of the method rule the removal out.
        """


class AbsentClientAlignment(ABC, Generic[Server, Client, Message]):
    """Absent clients take virtual steps, which they learn of when they participate again.

    Every client that is not part of a server step is moved by the same vector.  The server
    accumulates these vectors, and the run sends a returning client the sum that it missed
    (`core.catch_up`).  Stale updates cannot be combined with this: their clients would take the
    same virtual step twice.
    """

    @abstractmethod
    def virtual_steps(self, server: Server) -> Tensor:
        """Return the sum of all virtual steps so far."""

    @abstractmethod
    def catch_up(self, client: Client, missed: Tensor) -> Client:
        """Return the client's state after the virtual steps that it missed."""

    def contribution(self, message: Message, virtual: Tensor) -> Message:
        """Return what a message leaves in the server's sums, for `ClientRemoval`.

        This differs from the message itself if the same server step also made a virtual step,
        which this client did not take.
        """
        return message


class InitialDuals:
    """The option `dual` initialises the duals at "zero" or at the negative "gradient".

    With "gradient" an initial round with all clients sets y_i = -grad f_i(theta^0) without a local
    solve, which moves theta by -grad f(theta^0) / penalty.
    """

    dual: str

    @property
    def initial_round(self) -> LocalNeeds | None:
        """Value of `Requirements.initial_round`."""
        gradient_only = LocalNeeds(local_solve=False, start_gradient=True)
        return gradient_only if self.dual == "gradient" else None

    @staticmethod
    def dual_after(y: Tensor, result: LocalResult) -> Tensor:
        """Return the dual after a solve; after the initial round it is the negative gradient."""
        return y if result.start_gradient is None else -result.start_gradient


def local_model(algorithm: AnyAlgorithm, client: Any) -> Tensor | None:
    """Return the client's local model, or None if the method keeps none."""
    return algorithm.local_params(client) if isinstance(algorithm, LocalModels) else None


def prox_step(algorithm: AnyAlgorithm) -> float:
    """Return the step of the server's proximal operator; 1 for a method without one."""
    return algorithm.prox_step if isinstance(algorithm, ProximalServer) else 1.0


def fit_penalties(algorithm: Method, length: Callable[[], float]) -> Method:
    """Replace every `PerWork` among the hyper-parameters by the penalty that fits the local work.

    Args:
        algorithm: the method; returned unchanged if it has no `PerWork`.  A step size `eta` becomes
            the inverse of the penalty.
        length: returns the mean over the clients of learning rate times local steps in a round.
    """
    fields = [name for name, value in vars(algorithm).items() if isinstance(value, PerWork)]
    numbers = {name: getattr(algorithm, name).penalty(length()) for name in fields}
    if "eta" in numbers:  # a proximal step size, the inverse of a penalty
        numbers["eta"] = 1 / numbers["eta"]
    return replace(algorithm, **numbers) if numbers else algorithm  # type: ignore[type-var]
