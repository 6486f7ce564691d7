"""Numbers that may change over the rounds, or differ between the clients.

Rounds are those of the run, empty ones included; an initial round with everybody counts as the
first.  A sequence has one entry per client, in the order of their numbers.
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
    """A positive number for every round, counted from zero: any function of the round."""

    def __call__(self, round_index: int) -> float:
        """The value in this round."""


@part("schedule", "piecewise")
class Piecewise:
    """Constant between change points: {0: 1.0, 60: 0.5} is 1.0 until round 59, then 0.5."""

    values: Mapping[int, Positive]

    def __post_init__(self) -> None:
        if 0 not in self.values:
            raise ParameterError(
                f"Piecewise: values has change points {sorted(self.values)}, but needs one at 0"
            )
        for begin in self.values:
            check(self, "values (a change point)", begin, Natural)

    def __call__(self, round_index: int) -> float:
        """The value of the last change point that has been passed."""
        return self.values[max(begin for begin in self.values if begin <= round_index)]


@part("schedule", "per-work")
class PerWork:
    """A penalty that fits the local work: `pull` / (learning rate * local steps of a round).

    A run counts the steps (the mean over the clients) and turns it into a number before round 1.
    Over a round of plain gradient steps a penalty brings w back by 1 - exp(-lr * steps * rho) of
    its way from the centre, whatever lr and steps are: so one `pull` serves clients with ten rows
    and with ten thousand, where one rho does not.

    Args:
        pull: rho * lr * steps; 1/4 brings w back by about a fifth.
    """

    pull: Positive = 0.25

    def penalty(self, length: float) -> float:
        """The penalty for this mean of learning rate * steps."""
        return self.pull / length


@part("schedule", "geometric")
class Geometric:
    """initial * factor^t, never below `floor`."""

    initial: Positive = 1.0
    factor: Positive = 0.9
    floor: NotNegative = 0.0

    def __call__(self, round_index: int) -> float:
        """The value in this round."""
        return max(self.initial * self.factor**round_index, self.floor)


def of_client(value: Number | Sequence[Number], client: int) -> Number:
    """One client's number."""
    return value[client] if isinstance(value, Sequence) else value


def of_clients(
    value: float | Sequence[float], clients: Sequence[int], like: Tensor
) -> Tensor | float:
    """The one number of all clients, or those of the given ones in the shape of `like`."""
    if not isinstance(value, Sequence):
        return value
    return like.new_tensor([value[client] for client in clients]).view_as(like)


def at(
    value: float | Schedule | PerWork | Sequence[float], round_index: int, client: int = 0
) -> float:
    """One client's number in one round; an initial round counts as the first."""
    if isinstance(value, PerWork):
        raise ParameterError(
            f"{value} is no number yet: a run makes one of it, which knows the clients' local work"
        )
    if not callable(value):
        return of_client(value, client)
    number = value(max(round_index, 0))
    check(type(value).__name__, f"its value in round {max(round_index, 0)}", number, Positive)
    return number
