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

Samples = Any
"""A mini-batch, as `Objective.mini_batches` yields and `Objective.gradient` accepts it.

By default a tensor of sample indices; no other code depends on its type.
"""


Pull = Callable[[Tensor, int, int], None]
"""Adds the step along the other terms of the local problem to a range of entries, in place."""


class Objective(ABC):
    """Base class of a client's objective f_i on flat parameter vectors.

    A subclass defines `num_parameters`, `num_samples`, `value`, `gradient` and `to`.

    Example:
        >>> import torch, fedadmm as fa
        >>> isinstance(fa.Quadratic(torch.eye(2), torch.ones(2)), fa.Objective)
        True
    """

    flat: FlatModule | None = None
    """The module whose parameters are the vector; None without a module."""
    descends: ClassVar[bool] = False
    """Whether `descend` makes a step faster than `gradient` and an addition."""

    @property
    @abstractmethod
    def num_parameters(self) -> int:
        """D, the length of the parameter vector."""

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Number of samples from which mini-batches are drawn."""

    @abstractmethod
    def value(self, params: Tensor) -> Tensor:
        """Return f_i(params) over all data of the client."""

    def mini_batches(self, key: Key, epoch: int, batch_size: int) -> Iterator[Samples]:
        """Yield the mini-batches of an epoch: all samples, in a random order."""
        yield from torch.split(permutation(key, epoch, self.num_samples), batch_size)

    @abstractmethod
    def gradient(self, params: Tensor, samples: Samples = None) -> Tensor:
        """Return the gradient of f_i over a mini-batch, or over all data.

        The result can be a buffer that the next call overwrites.
        """

    @abstractmethod
    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Objective:
        """Return the objective in another precision or on another device."""

    def check(self) -> None:  # noqa: B027 - most have nothing to check
        """Raise a DataError for data that do not fit the model or the loss, before round 0."""

    def needs_two_samples(self) -> str | None:
        """The layer that cannot train on a batch of one sample; None where every batch will do."""
        return None

    @property
    def is_random(self) -> bool:
        """Whether a gradient uses random numbers, for example in dropout."""
        return False

    def evaluation_gradient(self, params: Tensor) -> Tensor:
        """Return the gradient of `value` for measurements; it may be a view of a shared buffer.

        It differs from `gradient` where training does, as by dropout and BatchNorm.
        """
        return self.gradient(params)

    def descend(
        self, params: Tensor, samples: Samples, lr: float, pull: Pull | None = None
    ) -> None:
        """`pull`, then params -= lr * gradient, in place on the workspace; where `descends`."""
        raise DataError(f"{type(self).__name__}: it has no step of its own, but one is asked for")

    def workspace(self, params: Tensor) -> Tensor:
        """Return a copy of `params` that a solver may modify and pass to `gradient`."""
        return params.clone()

    @property
    def has_classes(self) -> bool:
        """Whether every sample has a class that a model gets right or wrong."""
        return False

    def value_and_correct(self, params: Tensor) -> tuple[Tensor, int]:
        """`value`, and how many samples get their class right, from one pass over the data."""
        raise DataError(
            f"{type(self).__name__}: its samples have no classes, but they are asked for"
        )

    def sample_gradients_unavailable(self, params: Tensor) -> str | None:
        """Return why `sample_gradients` is not available, or None; called before round 0."""
        return f"the clients' objectives are {type(self).__name__}, without per-sample gradients"

    def sample_gradients(self, params: Tensor, samples: Tensor) -> Tensor:
        """Return the gradients over single samples as a new tensor of shape (samples, D)."""
        raise DataError(
            f"{type(self).__name__}.sample_gradients: {self.sample_gradients_unavailable(params)}."
        )

    def work(self, samples: int) -> float:
        """About how many multiplications a gradient over this many samples takes, forwards."""
        return float(self.num_parameters * samples)
