"""Local objectives f_i on flat parameter vectors: the base class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fedadmm.core.errors import DataError
from fedadmm.core.rng import Key, permutation

if TYPE_CHECKING:
    from fedadmm.core.objectives.flat import FlatModule

Rows = Any
"""A mini-batch, as `Objective.mini_batches` yields it and `Objective.gradient` takes it.

Row numbers, unless the objective says otherwise; no code in between looks inside.
"""


Pull = Callable[[Tensor, int, int], None]
"""Moves the entries from one index to another by a local problem's own terms, in place."""


class Objective(ABC):
    """Base class of a client's objective f_i on flat parameter vectors.

    A subclass defines `num_parameters`, `num_samples`, `value`, `gradient` and `to`.

    Example:
        >>> import torch, fedadmm as fa
        >>> isinstance(fa.Quadratic(torch.eye(2), torch.ones(2)), fa.Objective)
        True
    """

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
