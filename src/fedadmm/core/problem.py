"""Federated problems: minimise F(x) = sum_i a_i f_i(x) + g(x) over the clients."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    runtime_checkable,
)

import torch
from torch import Tensor

from fedadmm.core.contracts import Regularizer
from fedadmm.core.errors import DataError, ParameterError
from fedadmm.core.objectives import Objective
from fedadmm.core.parts import Part, role
from fedadmm.core.regularizers import Zero
from fedadmm.core.validation import check

if TYPE_CHECKING:
    from fedadmm.core.setup import Setup

Metrics = Mapping[str, float]
Evaluator = Callable[[Tensor], Metrics]


class EvaluatorInParts(ABC):
    """Base class of evaluators whose work can be divided among processes."""

    @property
    @abstractmethod
    def num_parts(self) -> int:
        """Number of parts."""

    @abstractmethod
    def part(self, params: Tensor, index: int) -> tuple[float, ...]:
        """Return the contribution of one part."""

    @abstractmethod
    def joined(self, parts: Iterable[tuple[float, ...]]) -> Metrics:
        """Return the metrics from the contributions of all parts, in order."""

    def __call__(self, params: Tensor) -> Metrics:
        """Return the metrics of a parameter vector."""
        return self.joined(self.part(params, index) for index in range(self.num_parts))


Buffers = Literal["keep-local", "average"]
Item = TypeVar("Item")


class Facts(NamedTuple):
    """Known constants of a problem, which theorems need; None if unknown.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> facts = fa.Facts(smoothness=3.0, optimum=torch.tensor([2.0]), weak_convexity=0.0)
        >>> fa.Problem(clients, facts=facts).facts.smoothness
        3.0
    """

    smoothness: float | None = None
    """L such that every f_i is L-smooth."""
    infimum: float | None = None
    """F*, the infimum of F."""
    optimum: Tensor | None = None
    """A minimiser of F."""
    weak_convexity: float | None = None
    """Modulus m such that every f_i + (m/2) ||x||² is convex: 0 for convex f_i, at most L."""


NOTHING_KNOWN = Facts()

_COUNTED = 10_000
"""Largest number of clients that are checked for a batch of one sample."""


@dataclass(frozen=True, eq=False)
class Problem(Part):
    """A federated problem: minimise F(x) = sum_i a_i f_i(x) + g(x).

    Args:
        clients: Objectives f_i in any sequence; `LazyClients` builds them on demand.
        regularizer: g; none by default.
        weights: a_i up to a common factor; None for 1/n each.
        test: Function from a parameter vector to metrics on held-out data, or None.
        client_tests: One such function per client, or None.
        initial: Initial vector, or a function from the seed to one; None if `simulate` is given
            one.
        buffers: BatchNorm statistics: "keep-local" leaves them with each client, "average" sends
            them and uses the participants' weighted mean.  If updates are aggregated on arrival, an
            update changes the mean by its client's weight a_i.  None if the model has none.
        facts: Known constants, which theorems need.
        name: Name in reports.
        data: How samples were divided among the clients (a `fedadmm.data.FederatedData`), for
            reports; None if the clients were not made from one data set.

    Raises:
        DataError: There is no client, or clients differ in the number of parameters.
        ParameterError: A weight is not positive and finite.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic(torch.eye(1), torch.tensor([b])) for b in (6.0, 3.0, 0.0)]
        >>> problem = fa.Problem(clients, weights=[2.0, 1.0, 1.0])
        >>> problem.weight(0), problem.gradient(torch.zeros(1))
        (0.5, tensor([-3.7500]))
    """

    clients: Sequence[Objective]
    regularizer: Regularizer = field(default_factory=Zero)
    weights: Sequence[float] | Tensor | None = None
    test: Evaluator | None = None
    client_tests: Sequence[Evaluator] | None = None
    initial: Tensor | Callable[[int], Tensor] | None = None
    buffers: Buffers | None = None
    facts: Facts = NOTHING_KNOWN
    name: str = "problem"
    data: Any = None

    def __post_init__(self) -> None:
        if len(self.clients) == 0:
            raise DataError("Problem: clients is empty, but at least one is needed")
        if isinstance(self.clients, list | tuple):
            for index, client in enumerate(self.clients):
                _check_client(index, client, _length(self.clients))
        check(self, "regularizer", self.regularizer, Regularizer)
        if self.buffers is not None:
            check(self, "buffers", self.buffers, Literal[("keep-local", "average")])
        if self.weights is not None:
            object.__setattr__(self, "weights", _normalised(self.weights, len(self.clients)))
        if self.client_tests is not None and len(self.client_tests) != len(self.clients):
            raise DataError(
                f"Problem: {len(self.client_tests)} client_tests for {len(self.clients)} clients, "
                "but there must be one a client"
            )

    def check_run(self, run: Setup) -> Iterator[str]:
        """Yield why the model's buffers or the clients' data cannot be trained on."""
        first = self.clients[0]
        if first.flat is not None and first.flat.buffers() is not None and self.buffers is None:
            names = ", ".join(name for name, _ in first.flat.module.named_buffers())
            yield (
                f"the model has buffers ({names}), but the problem has no policy for them; choose "
                "buffers='keep-local' or buffers='average' where Python makes the problem; the "
                "command line needs a model without them, such as one with GroupNorm"
            )
        first.check()  # of lazy clients only the first
        if (layer := first.needs_two_samples()) is None:
            return
        solver = run.local.solver if run.algorithm.requirements.local.local_solve else None
        size = None if solver is None else solver.batch_size
        for number in self.evenly(_COUNTED):
            samples = self.clients[number].num_samples
            if (samples if size is None else samples % size or size) == 1:
                yield (
                    f"batch_size: got {size} for the {samples} samples of client {number}, "
                    f"expected no batch of one sample, because {layer} needs at least two. Use "
                    "another batch_size, or GroupNorm or LayerNorm."
                )

    def evenly(self, most: int) -> Iterator[int]:
        """Yield the ids of all clients, or of `most` of them, evenly spaced."""
        asked = min(self.num_clients, most)
        return (index * self.num_clients // asked for index in range(asked))

    @property
    def num_clients(self) -> int:
        return len(self.clients)

    @property
    def num_parameters(self) -> int:
        return self.clients[0].num_parameters

    def weight(self, client: int) -> float:
        """a_i; all n of them add up to one."""
        return 1.0 / len(self.clients) if self.weights is None else float(self.weights[client])

    def start(self, seed: int) -> Tensor:
        """Return the initial vector for a seed."""
        if self.initial is None:
            raise ParameterError(
                "simulate: initial: got None, expected a vector, because the problem has no "
                "initial vector of its own"
            )
        if callable(self.initial):
            return self.initial(seed)
        return self.initial.clone()

    def value(self, params: Tensor) -> Tensor:
        """f(x) = sum_i a_i f_i(x), without g."""
        total = params.new_zeros(())
        for index, client in enumerate(self.clients):
            total += self.weight(index) * client.value(params)
        return total

    def gradient(self, params: Tensor) -> Tensor:
        """Return the gradient of f, without g."""
        total = torch.zeros_like(params)
        for index, client in enumerate(self.clients):
            total.add_(client.evaluation_gradient(params), alpha=self.weight(index))
        return total

    def gradient_mapping(
        self, params: Tensor, step: float, gradient: Tensor | None = None
    ) -> Tensor:
        """G(x) = (x - prox_{step g}(x - step grad f(x))) / step; zero exactly at stationarity.

        The gradient of f is computed unless it is given.
        """
        slope = self.gradient(params) if gradient is None else gradient
        moved = self.regularizer.prox(params - step * slope, step)
        return (params - moved) / step

    def with_clients(self, clients: Sequence[Objective]) -> Problem:
        """Return the problem with other objectives, one per client."""
        made = copy(self)  # `replace` would scale the weights again, and round them
        object.__setattr__(made, "clients", clients)
        return made

    def without(self, clients: Collection[int]) -> Problem:
        """Return the problem with weight zero for these clients; all ids are unchanged."""
        count = len(self.clients)
        kept = [0.0 if client in clients else self.weight(client) for client in range(count)]
        made = copy(self)
        weights = torch.tensor(kept, dtype=torch.float64)
        object.__setattr__(made, "weights", weights / weights.sum())
        return made

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Problem:
        """Return the problem with every objective in another precision or on another device."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        kind = LazyClients if isinstance(self.clients, LazyClients) else Lazy
        convert = _Conversion(self.clients, dtype, device)
        values["clients"] = kind(len(self.clients), convert)
        return Problem(**values)


class Lazy(Sequence[Item]):
    """A sequence of `count` items that `build(i)` returns on demand.

    Items are not stored unless `keep` is set.  Stored items are not pickled: another process builds
    its own.
    """

    def __init__(self, count: int, build: Callable[[int], Item], keep: bool = False) -> None:
        self._count = count
        self._build = build
        self._kept: dict[int, Item] | None = {} if keep else None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        index %= self._count
        if self._kept is None:
            return self._build(index)
        if index not in self._kept:
            self._kept[index] = self._build(index)
        return self._kept[index]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": None if self._kept is None else {}}


class LazyClients(Lazy[Objective]):
    """Clients that are built on demand from their ids, for large federations.

    Other processes receive the function instead of the clients, so that it should not contain data.

    Args:
        count: Number of clients.
        build: Function from the id of a client to its objective.
        keep: Whether to keep clients in memory once they are built.

    Example:
        >>> import torch, fedadmm as fa
        >>> def build(client):
        ...     return fa.Quadratic(torch.eye(1), torch.tensor([float(client)]))
        >>> clients = fa.LazyClients(1_000_000, build)
        >>> len(clients), clients[5].b
        (1000000, tensor([5.]))
    """


class _Conversion:
    """Makes a client in another precision; one that was made on demand is checked the first time.

    A list was checked as a whole when the problem was made.
    """

    def __init__(
        self, clients: Sequence[Objective], dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self._clients, self._dtype, self._device = clients, dtype, device
        self._length = _length(clients)
        self._checked: set[int] = set()

    def __call__(self, index: int) -> Objective:
        client = self._clients[index]
        if isinstance(self._clients, Lazy) and index not in self._checked:
            _check_client(index, client, self._length)
            self._checked.add(index)
        return client.to(self._dtype, self._device)


def _length(clients: Sequence[object]) -> int:
    first = clients[0]
    return first.num_parameters if isinstance(first, Objective) else 0  # which is rejected itself


def _check_client(index: int, client: object, length: int) -> None:
    if not isinstance(client, Objective):
        raise DataError(
            f"Problem: client {index}: got a {type(client).__name__}, expected a "
            "fedadmm.Objective; let its class inherit from it"
        )
    if client.num_parameters != length:
        raise DataError(
            f"Problem: client {index} has {client.num_parameters} parameters, expected as "
            f"many as client 0, {length}"
        )
    client.check()


def _normalised(weights: Sequence[float] | Tensor, clients: int) -> Tensor:
    values = torch.as_tensor(weights, dtype=torch.float64)
    if values.shape != (clients,):
        raise ParameterError(
            f"Problem: weights has shape {tuple(values.shape)}, expected one number for each "
            f"of the {clients} clients"
        )
    total = float(values.sum())
    if not bool((values > 0).all()) or not math.isfinite(total):
        raise ParameterError("Problem: weights must be finite and greater than zero")
    return values / total


@role("problem")
@runtime_checkable
class ProblemSource(Protocol):
    """Options from which a problem is loaded: the fields are the options."""

    def load(self) -> Problem:
        """Load the problem; can read files."""
