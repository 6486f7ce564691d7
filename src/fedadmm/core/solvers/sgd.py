"""Mini-batch SGD, with its proximal and dual-averaging steps; its loop is in `descent.py`."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.contracts import LocalProblem, LocalResult, Regularizer
from fedadmm.core.errors import ParameterError
from fedadmm.core.local_work import OUTSIDE_RUN, LocalSolver, SolveContext, SolveInfo
from fedadmm.core.objectives import Objective
from fedadmm.core.parts import Count, Positive, Probability, part
from fedadmm.core.rng import Key
from fedadmm.core.schedules import Schedule, at, of_clients
from fedadmm.core.solvers.descent import Descent
from fedadmm.core.solvers.local_loss import LocalLoss, Objectives, OneObjective, OwnTerms, Stepper
from fedadmm.core.stopping import StoppingRule

if TYPE_CHECKING:
    pass

_Count = TypeVar("_Count", float, Tensor)


class _Vectors(NamedTuple):
    """What a step reads and writes; vectors are (D,) or (K, D), numbers may be (K, 1)."""

    params: Tensor
    lr: Tensor | float
    terms: OwnTerms | None
    velocity: Tensor | None


class GradientStepper(Stepper):
    """A stepper whose vectors are one tree of a stack."""

    _objectives: Objectives
    _vectors: Any

    def select(self, clients: Tensor | slice) -> Self:
        chosen = copy.copy(self)
        chosen._vectors = trees.select(self._vectors, clients)
        if isinstance(clients, Tensor):
            chosen._objectives = self._objectives.select(clients.tolist())
        return chosen


class SGDStepper(GradientStepper):
    """w <- w - lr (g + the gradient of the local problem's own terms), with optional momentum."""

    def __init__(self, loss: LocalLoss, lr: Tensor | float, momentum: float) -> None:
        self._objectives = loss.objectives
        self._momentum = momentum
        params = loss.objectives.workspace(loss.problem.start)
        velocity = torch.zeros_like(params) if momentum else None
        self._vectors = _Vectors(params, lr, OwnTerms.of(loss, lr), velocity)

    @property
    def params(self) -> Tensor:
        params: Tensor = self._vectors.params
        return params

    def step(self, samples: Any) -> Tensor:
        params, lr, terms, velocity = self._vectors
        gradient = self._objectives.gradient(params, samples)
        if velocity is None:
            if terms is not None:
                terms.pull(params, 0, params.shape[-1])
            _add(params, gradient, -lr)
            return gradient
        _add(velocity.mul_(self._momentum), gradient, lr)
        if terms is not None:
            velocity.add_(terms.step(params))
        params.sub_(velocity)
        return gradient


def _add(into: Tensor, gradient: Tensor, factor: Tensor | float) -> None:
    """into += factor * gradient in place; a factor per client is a column."""
    if isinstance(factor, Tensor):
        into.addcmul_(gradient, factor)
    else:
        into.add_(gradient, alpha=factor)


class ProximalStepper(Stepper):
    """w <- prox_{lr g}(w - lr (...)): the prox of g after every step of SGD."""

    def __init__(
        self, inner: SGDStepper, lr: Tensor | float, regularizer: Regularizer | None
    ) -> None:
        assert regularizer is not None  # engines give it to methods that ask for it
        self._inner = inner
        self._lr = lr
        self._regularizer = regularizer

    @property
    def params(self) -> Tensor:
        return self._inner.params

    def step(self, samples: Any) -> Tensor:
        gradient = self._inner.step(samples)
        self.params.copy_(_prox(self._regularizer, self.params, self._lr))
        return gradient

    def select(self, clients: Tensor | slice) -> ProximalStepper:
        lr = trees.select(self._lr, clients)
        return ProximalStepper(self._inner.select(clients), lr, self._regularizer)


class _Dual(NamedTuple):
    """Dual vector, model, and accumulated step sizes."""

    z: Tensor
    model: Tensor
    lr: Tensor | float
    velocity: Tensor
    reach: Tensor
    """Sum of the step sizes of all gradients since the start of the run."""
    pace: Tensor
    """Increase by the last step."""


class DualAveragingStepper(GradientStepper):
    """z <- z - lr grad f_i(prox_{reach g}(z)), with optional momentum; `params` is z."""

    def __init__(
        self,
        loss: LocalLoss,
        lr: Tensor | float,
        momentum: float,
        regularizer: Regularizer | None,
    ) -> None:
        assert regularizer is not None  # engines give it to methods that ask for it
        self._objectives = loss.objectives
        self._momentum = momentum
        self._regularizer = regularizer
        start = loss.problem.start
        z, model = start.clone(), loss.objectives.workspace(start)
        column = z.new_zeros(*z.shape[:-1], 1)
        reach = column + loss.problem.prox_step
        self._vectors = _Dual(z, model, lr, torch.zeros_like(z), reach, column)

    @property
    def params(self) -> Tensor:
        z: Tensor = self._vectors.z
        return z

    def step(self, samples: Any) -> Tensor:
        z, model, lr, velocity, reach, pace = self._vectors
        model.copy_(_prox(self._regularizer, z, reach))
        gradient = self._objectives.gradient(model, samples)
        _add(velocity.mul_(self._momentum), gradient, lr)
        z.sub_(velocity)
        reach.add_(pace.mul_(self._momentum).add_(lr))
        return gradient


def _prox(regularizer: Regularizer, params: Tensor, step: Tensor | float) -> Tensor:
    """prox_{step g} of one vector, or of every row of a stack: g is a function of vectors (D,)."""
    if params.ndim == 1:
        number = float(step)
        return regularizer.prox(params, number) if number else params
    steps = [step] * len(params) if not isinstance(step, Tensor) else step.reshape(-1).tolist()
    samples = zip(params, steps, strict=True)
    return torch.stack([_prox(regularizer, sample, number) for sample, number in samples])


class IterativeSolver(LocalSolver):
    """Base class of solvers that make steps until the stopping rule or the budget ends."""

    stacks: ClassVar[bool] = False
    """Whether its steppers work on a stack of clients too."""

    @abstractmethod
    def stepper(self, loss: LocalLoss, context: SolveContext) -> Stepper:
        """Return the state of the solver for a local problem."""

    def solve(
        self,
        objective: Objective,
        problem: LocalProblem,
        stop: StoppingRule,
        key: Key,
        context: SolveContext = OUTSIDE_RUN,
    ) -> tuple[LocalResult, SolveInfo]:
        result, (info,) = self.descend(OneObjective(objective), problem, stop, [key], context)
        return result, info

    def descend(
        self,
        objectives: Objectives,
        problem: LocalProblem,
        stop: StoppingRule,
        keys: Sequence[Key],
        context: SolveContext,
    ) -> tuple[LocalResult, list[SolveInfo]]:
        """Solve for all clients of `objectives` at once."""
        make = partial(self.stepper, context=context)
        descent = Descent(objectives, problem, stop, keys, context, make, self.batch_size)
        result, infos = descent.run()
        if context.needs.step_sum:
            shape = (*problem.start.shape[:-1], 1)
            steps = result.params.new_tensor([info.steps for info in infos]).view(shape)
            step_sum = self.step_sum(steps, LocalLoss(objectives, problem), context)
            result = result._replace(step_sum=step_sum)
        return result, infos

    def step_sum(self, steps: Tensor, loss: LocalLoss, context: SolveContext) -> Tensor:
        """`LocalResult.step_sum` after this many steps, for a solver that `sums_steps`."""
        raise ParameterError(f"{type(self).__name__}: it makes no plain steps, but they are needed")


Rate = Positive | Schedule | Sequence[Positive]
"""A learning rate: a number, a schedule over rounds, or one number per client."""


@dataclass(frozen=True)
class RatedSolver(IterativeSolver):
    """A solver with a learning rate: a number, a schedule over rounds, or one number per client."""

    averages_gradients = True
    per_client = ("lr",)

    lr: Rate

    def rate_of(self, client: int, round_index: int) -> float | None:
        return at(self.lr, round_index, client)

    def length(self, steps: int, client: int) -> float | None:
        return at(self.lr, 0, client) * steps

    def rate(self, loss: LocalLoss, context: SolveContext) -> Tensor | float:
        """Return the learning rate, or a column with one per client of a stack."""
        start = loss.problem.start
        if isinstance(self.lr, Sequence) and start.ndim == 2:
            return of_clients(self.lr, context.clients, start[:, :1])
        return at(self.lr, context.round_index, context.clients[0])


@part("solver", "sgd")
class SGD(RatedSolver):
    """Mini-batch SGD, optionally with momentum.

        w <- w - lr (g_i(w) + gradient of the other terms of the local problem)

    Args:
        lr: Learning rate: a number, a schedule over rounds, or one number per client.  Default 0.1.
        batch_size: Samples in a step; None for all.  Default 32.
        momentum: Share of the last step that is added to the next one.  Default 0.

    Example:
        >>> import torch, fedadmm as fa
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch._C.Generator object at ...>
        >>> x = torch.randn(3, 100, 1)
        >>> clients = [fa.LeastSquares(x[i], 2 * x[i, :, 0]) for i in range(3)]  # y = 2 x
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> result = fa.simulate(fa.FedAvg(), problem, 30, solver=fa.SGD(0.1, batch_size=10))
        >>> round(result.params.item(), 2)
        2.0
    """

    stacks = True
    sums_steps = True

    lr: Rate = 0.1
    batch_size: Count | None = 32
    momentum: Probability = 0.0

    def stepper(self, loss: LocalLoss, context: SolveContext) -> Stepper:
        lr, needs = self.rate(loss, context), context.needs
        if needs.local_prox == "dual":
            return DualAveragingStepper(loss, lr, self.momentum, context.regularizer)
        if needs.local_prox == "primal":
            return ProximalStepper(SGDStepper(loss, lr, self.momentum), lr, context.regularizer)
        plain = None
        if not self.momentum and not needs.mean_gradient:
            plain = loss.objectives.plain_stepper(loss, lr)
        return plain or SGDStepper(loss, lr, self.momentum)

    def step_sum(self, steps: Tensor, loss: LocalLoss, context: SolveContext) -> Tensor:
        return self.rate(loss, context) * _with_momentum(steps, self.momentum)

    def length(self, steps: int, client: int) -> float | None:
        return at(self.lr, 0, client) * _with_momentum(steps, self.momentum)


def _with_momentum(steps: _Count, m: float) -> _Count:
    """steps + m (steps - 1) + m^2 (steps - 2) + ..."""
    last: _Count = m**steps
    return (steps - m * (1 - last) / (1 - m)) / (1 - m)
