"""The local problem as a function: values, gradients, and the steps along its other terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedadmm.core.contracts import LocalProblem
from fedadmm.core.objectives import Objective
from fedadmm.core.rng import Key


class Objectives(ABC):
    """The objectives of a solve: of one client with vectors (D,), or of a stack with (K, D)."""

    draws_samples: ClassVar[bool] = False
    """Whether even a step that could take all samples draws them, as `batches` does."""
    sizes: Sequence[int]
    """The number of samples of every client."""

    @abstractmethod
    def gradient(self, params: Tensor, samples: Any = None) -> Tensor:
        """Return the gradients over a mini-batch, or over all data; can be a buffer."""

    def evaluation_gradient(self, params: Tensor) -> Tensor:
        """Return the gradients over all data, for stopping rules."""
        return self.gradient(params)

    def probe(self, params: Tensor, samples: Any = None) -> Tensor:
        """`gradient` where no model will be: it leaves BatchNorm statistics as they are."""
        return self.gradient(params, samples)

    def workspace(self, params: Tensor) -> Tensor:
        """Return a copy of `params` that a stepper may modify and pass to `gradient`."""
        return params.clone()

    @abstractmethod
    def batches(
        self, keys: Sequence[Key], epoch: int, batch_size: int, limits: Sequence[int]
    ) -> Iterator[tuple[int, Any]]:
        """The mini-batches of one epoch, and of how many clients each is: the first k.

        Client i makes `limits[i]` steps, which never rise.
        """

    @abstractmethod
    def sample_gradients(self, params: Tensor, samples: Sequence[Tensor]) -> Tensor:
        """Return per-sample gradients of the first clients: (samples, D), or (k, samples, D).

        Where a client has fewer samples than another, zeros follow.
        """

    def plain_stepper(self, loss: LocalLoss, lr: Tensor | float) -> Stepper | None:
        """SGD that never forms a gradient, where that is faster; None where it is not."""
        return None

    @abstractmethod
    def select(self, clients: Sequence[int]) -> Objectives:
        """Return the objectives of some clients, in the given order."""


class Stepper(ABC):
    """State of a solver for one local problem, or for those of a stack."""

    @property
    @abstractmethod
    def params(self) -> Tensor:
        """Current iterate; can be a buffer."""

    def result(self) -> Tensor:
        """Return the last iterate in memory of its own."""
        return self.params.clone()

    @abstractmethod
    def step(self, samples: Any) -> Tensor | None:
        """Make one step; return the gradient of f_i that it used, if it is needed."""

    @property
    def memory(self) -> tuple[Tensor, ...] | None:
        """The solver's state for the clients' next round, or None."""
        return None

    def select(self, clients: Tensor | slice) -> Stepper:
        """The stepper of some clients of a stack: of the same memory (slice) or a copy.

        That of one client is all there is to select from.
        """
        return self

    def passes(self, stepped: float) -> float:
        """Return the gradient evaluations in passes, after steps over `stepped` passes."""
        return stepped


class LocalLoss:
    """L(w) = f_i(w) + <linear, w> + (weight/2) ||w - centre||^2 and its gradient.

    grad L(w) = grad f_i(w) + weight * w + offset, with offset = linear - weight * centre computed
    once; `offset` is None and `weight` 0.0 for the bare f_i.  A tensor of weights is positive.
    """

    def __init__(self, objectives: Objectives, problem: LocalProblem) -> None:
        self.objectives = objectives
        self.problem = problem
        weight = problem.weight if problem.centre is not None else 0.0
        if isinstance(weight, Tensor) and weight.numel() == 1 and weight.device.type == "cpu":
            weight = float(weight)  # a plain number is faster, where reading it is cheap
        self.weight = weight

    @cached_property
    def offset(self) -> Tensor | None:
        """linear - weight * centre."""
        if self.problem.centre is None or _is_zero(self.weight):
            return self.problem.linear
        pull = -self.weight * self.problem.centre
        return pull if self.problem.linear is None else self.problem.linear + pull

    @cached_property
    def target(self) -> Tensor | None:
        """Minimiser of the terms other than f_i, centre - linear / weight; None without weight."""
        if self.problem.centre is None or _is_zero(self.weight):
            return None
        if self.problem.linear is None:
            return self.problem.centre
        return self.problem.centre - self.problem.linear / self.weight

    def gradient(self, params: Tensor) -> Tensor:
        """Return the gradient of L over all data as a new tensor."""
        return self.complete(params, self.objectives.evaluation_gradient(params))

    def complete(self, params: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of L from that of f_i, as a new tensor."""
        if _is_zero(self.weight):
            return gradient.clone() if self.offset is None else gradient + self.offset
        total = gradient + self.weight * params
        return total if self.offset is None else total.add_(self.offset)

    def complete_value(self, params: Tensor, value: Tensor) -> Tensor:
        """Return L from f_i, up to the constant (weight/2) ||centre||^2."""
        if self.offset is not None:
            value = value + (self.offset * params).sum()
        return value + (self.weight * params.square()).sum() / 2


def _is_zero(weight: Tensor | float) -> bool:
    return not isinstance(weight, Tensor) and weight == 0.0


class OwnTerms(NamedTuple):
    """Effect of the terms of the local problem other than f_i on a gradient step.

    With a quadratic term w moves by `rate` = lr * weight of the way to `target`, where the terms
    are stationary; with only a linear term it moves by -`shift`.
    """

    rate: Tensor | float
    target: Tensor | None
    shift: Tensor | None

    @classmethod
    def of(cls, loss: LocalLoss, lr: Tensor | float) -> OwnTerms | None:
        """Return the terms of a local problem other than f_i, or None without any."""
        if loss.target is not None:
            return cls(lr * loss.weight, loss.target, None)
        linear = loss.problem.linear
        return None if linear is None else cls(0.0, None, lr * linear)

    def pull(self, part: Tensor, begin: int, end: int) -> None:
        """Apply the step to the parameters [begin, end) in place."""
        if self.target is not None:
            part.lerp_(self.target[..., begin:end], self.rate)
        elif self.shift is not None:
            part.sub_(self.shift[..., begin:end])

    def step(self, params: Tensor) -> Tensor:
        """Return the step along the terms: lr times their gradient."""
        if self.target is not None:
            return self.rate * (params - self.target)
        assert self.shift is not None
        return self.shift


class OneObjective(Objectives):
    """The objective of one client, whose vectors have no client dimension."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self.sizes = [objective.num_samples]
        self.value = objective.value

    def gradient(self, params: Tensor, samples: Any = None) -> Tensor:
        return self._objective.gradient(params, samples)

    def evaluation_gradient(self, params: Tensor) -> Tensor:
        return self._objective.evaluation_gradient(params)

    def workspace(self, params: Tensor) -> Tensor:
        return self._objective.workspace(params)

    def probe(self, params: Tensor, samples: Any = None) -> Tensor:
        flat = self._objective.flat
        buffers = None if flat is None else flat.buffers()
        gradient = self.gradient(params, samples)
        if flat is not None and buffers is not None:
            flat.load_buffers(buffers)
        return gradient

    def batches(
        self, keys: Sequence[Key], epoch: int, batch_size: int, limits: Sequence[int]
    ) -> Iterator[tuple[int, Any]]:
        (key,), (limit,) = keys, limits
        for samples in islice(self._objective.mini_batches(key, epoch, batch_size), limit):
            yield 1, samples

    def sample_gradients(self, params: Tensor, samples: Sequence[Tensor]) -> Tensor:
        return self._objective.sample_gradients(params, samples[0])

    def plain_stepper(self, loss: LocalLoss, lr: Tensor | float) -> Stepper | None:
        return _OwnStepper(self._objective, loss, float(lr)) if self._objective.descends else None

    def select(self, clients: Sequence[int]) -> OneObjective:
        return self


class _OwnStepper(Stepper):
    """Plain SGD steps by the objective's `descend`."""

    def __init__(self, objective: Objective, loss: LocalLoss, lr: float) -> None:
        terms = OwnTerms.of(loss, lr)
        self._objective, self._lr = objective, lr
        self._pull = None if terms is None else terms.pull
        self._params = objective.workspace(loss.problem.start)

    @property
    def params(self) -> Tensor:
        return self._params

    def step(self, samples: Tensor | None) -> None:
        self._objective.descend(self._params, samples, self._lr, self._pull)
