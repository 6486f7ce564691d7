"""Hyper-parameters that change over the rounds or differ between the clients.

Rounds are those of the run, rounds without participants included; an initial round uses the value
of the first.  A sequence has one entry per client, in the order of the client ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import NotNegative, Positive, part, role
from fedadmm.core.validation import Natural, check

if TYPE_CHECKING:
    from torch import Tensor

Number = TypeVar("Number", int, float)


@role("schedule")
@runtime_checkable
class Schedule(Protocol):
    """A positive number for every round: any function of the round index, which starts at 0."""

    def __call__(self, round_index: int) -> float:
        """Return the value in this round."""


@part("schedule", "piecewise")
class Piecewise:
    """Piecewise constant schedule.

    Args:
        values: Maps the first round of each piece to its value; must contain round 0.

    Raises:
        ParameterError: There is no value for round 0.

    Example:
        >>> import fedadmm as fa
        >>> schedule = fa.schedules.Piecewise({0: 1.0, 60: 0.5})
        >>> schedule(59), schedule(60)
        (1.0, 0.5)
    """

    values: Mapping[int, Positive]

    def __post_init__(self) -> None:
        if 0 not in self.values:
            raise ParameterError(
                f"Piecewise.values: got change points {sorted(self.values)}, expected one at 0."
            )
        for begin in self.values:
            check(self, "values (a change point)", begin, Natural)

    def __call__(self, round_index: int) -> float:
        """Return the value of the last change point up to this round."""
        return self.values[max(begin for begin in self.values if begin <= round_index)]


@part("schedule", "per-work")
class PerWork:
    """A penalty that is fitted to the local work: rho = pull / (learning rate * local steps).

    A run counts the local steps of a round, averaged over the clients, and replaces it by a number
    before the first round.  During a round of plain gradient steps a penalty reduces the distance
    of w to the centre by the factor exp(-lr * steps * rho).  Therefore one value of `pull` is
    appropriate for clients with ten samples and with ten thousand, but one rho is not.

    Args:
        pull: rho * lr * steps, without unit.  The default 1/4 reduces the distance by a fifth.

    Example:
        >>> import fedadmm as fa
        >>> fa.FedADMM(rho=fa.PerWork(0.5)).rho.penalty(length=0.125 * 20)  # 20 steps of size 1/8
        0.2
    """

    pull: Positive = 0.25

    def penalty(self, length: float) -> float:
        """Return the penalty for this mean of learning rate times steps."""
        return self.pull / length


@part("schedule", "geometric")
class Geometric:
    """Geometric schedule: initial * factor^t in round t, bounded below by `floor`.

    Args:
        initial: Value in round 0.  Default 1.
        factor: Ratio of successive values.  Default 0.9.
        floor: Lower bound.  Default 0.

    Example:
        >>> import fedadmm as fa
        >>> [fa.schedules.Geometric(initial=1.0, factor=0.5)(t) for t in range(4)]
        [1.0, 0.5, 0.25, 0.125]
    """

    initial: Positive = 1.0
    factor: Positive = 0.9
    floor: NotNegative = 0.0

    def __call__(self, round_index: int) -> float:
        """Return the value in this round."""
        return max(self.initial * self.factor**round_index, self.floor)


def of_client(value: Number | Sequence[Number], client: int) -> Number:
    """Return the value of one client."""
    return value[client] if isinstance(value, Sequence) else value


def of_clients(
    value: float | Sequence[float], clients: Sequence[int], like: Tensor
) -> Tensor | float:
    """Return the common value, or the values of the given clients in the shape of `like`."""
    if not isinstance(value, Sequence):
        return value
    return like.new_tensor([value[client] for client in clients]).view_as(like)


def at(
    value: float | Schedule | PerWork | Sequence[float], round_index: int, client: int = 0
) -> float:
    """Return a client's value in a round; an initial round has the value of the first."""
    if isinstance(value, PerWork):
        raise ParameterError(
            f"penalty: got {value}, expected a number or a schedule. A run replaces PerWork by a "
            "number, because it depends on the clients' local work."
        )
    if not callable(value):
        return of_client(value, client)
    number = value(max(round_index, 0))
    check(type(value).__name__, f"its value in round {max(round_index, 0)}", number, Positive)
    return number
