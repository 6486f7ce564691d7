"""Stopping rules of local solves.

A rule has a budget of steps and, for an accuracy, a test of the full gradient of the local problem
L_i before every epoch.  Rules that bound the distance to the solution use strong convexity: if f_i
is weakly convex with modulus m (0 if convex, at most the smoothness L), L_i is strongly convex with
modulus weight - m, and ||w - argmin L_i|| <= ||grad L_i(w)|| / (weight - m).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Gt, Lt
from torch import Tensor

from fedadmm.core.compatibility import Feature
from fedadmm.core.errors import CompatibilityError
from fedadmm.core.parts import Count, NotNegative, Part, Positive, part, role
from fedadmm.core.rng import Key, generator
from fedadmm.core.schedules import of_client, of_clients

if TYPE_CHECKING:
    from fedadmm.core.setup import Setup

Inside = Annotated[float, Gt(0), Lt(1)]
"""A number strictly between 0 and 1."""


class Progress(NamedTuple):
    """State of a local solve between two epochs; tensors have shape (1,) or (K, 1)."""

    gradient_norm: Tensor
    """||grad L_i(w)|| over the client's full data."""
    reference_norm: Tensor
    """The same at the rule's reference point, or at the start for a rule without one."""
    move: Tensor
    """||w - w_i||, the distance to the client's local model, or to the start without one."""
    weight: Tensor | float
    """Weight of the quadratic term of the local problem."""
    round_index: int
    clients: Sequence[int]
    """Ids of the clients, in the order of the tensors' rows."""


@role("stop")
class StoppingRule(Part, ABC):
    """Base class of stopping rules: a budget of steps, and optionally a test between epochs.

    A subclass is a frozen dataclass that defines `budget` and `sentence`.

    Example:
        >>> import fedadmm as fa
        >>> rules = (fa.Steps(3), fa.Epochs(2), fa.stopping.GradientTolerance(1e-6))
        >>> [rule.budget(steps_per_epoch=10, key=0, client=0) for rule in rules]
        [3, 20, 1000]
        >>> [rule.needs_gradient for rule in rules]
        [False, False, True]
    """

    needs_gradient: ClassVar[bool] = False
    """Whether `reached` must be called, with full gradients, before every epoch."""

    def requires(self, run: Setup) -> Iterable[Feature]:
        """Return what a rule that measures gradients requires of the local problem."""
        if not run.algorithm.requirements.local.local_solve or not self.needs_gradient:
            return
        if self.reference == "global":
            yield Feature.GLOBAL_MODEL
        yield Feature.SMOOTH_LOCAL_PROBLEM
        yield Feature.STOPPING_RULE_DECIDES

    def check_run(self, run: Setup) -> Iterator[str]:
        yield from super().check_run(run)
        if not run.algorithm.requirements.local.local_solve or not self.needs_gradient:
            return
        zero = run.initial.new_zeros(1)
        # A rule that certifies an accuracy rejects a penalty that is too small for it.
        self.reached(Progress(zero, zero, zero, run.first_problem.weight, 0, (0,)))

    @property
    def reference(self) -> str | None:
        """Point of `Progress.reference_norm`: "own", "global" (theta), or None if not needed.

        "own" is the client's local model, or the start if its method keeps none.
        """
        return None

    @abstractmethod
    def budget(self, steps_per_epoch: int, key: Key, client: int) -> int:
        """Return the largest number of steps of a solve.

        Args:
            steps_per_epoch: number of steps in a pass over the client's data.
            key: random key of the solve, for a rule with a random budget.
            client: id of the client, for a rule with one value per client.
        """

    def largest_budget(self, steps_per_epoch: int, client: int) -> int:
        """Return the largest possible `budget` of a client."""
        return self.budget(steps_per_epoch, 0, client)

    def reached(self, progress: Progress) -> Tensor:
        """Return whether each client may stop, elementwise over a stack; False by default."""
        return torch.zeros_like(progress.gradient_norm, dtype=torch.bool)

    @abstractmethod
    def sentence(self, reached: bool) -> str:
        """Return why the solve ended: by the test (`reached`) or by the budget."""


@part("stop", "epochs")
class Epochs(StoppingRule):
    """Stop after a number of passes over the client's data.

    Args:
        epochs: Number of passes, or one number per client.  A fraction is rounded to the nearest
            number of steps, at least one.  Default 1.

    Example:
        >>> import fedadmm as fa
        >>> fa.Epochs(0.5).budget(steps_per_epoch=10, key=0, client=0)
        5
    """

    per_client = ("epochs",)

    epochs: Positive | Annotated[int, Gt(0)] | Sequence[Positive | Annotated[int, Gt(0)]] = 1

    def budget(self, steps_per_epoch: int, key: Key, client: int) -> int:
        return max(1, round(of_client(self.epochs, client) * steps_per_epoch))

    def sentence(self, reached: bool) -> str:
        return f"{_own_number(self.epochs)} epochs done"


@part("stop", "uniform-epochs")
class UniformEpochs(StoppingRule):
    """Stop after a random number of epochs, to simulate system heterogeneity.

    Args:
        epochs: Every participant draws its number uniformly from 1 to this one in every round; one
            value, or one per client.

    Example:
        >>> import fedadmm as fa
        >>> [fa.UniformEpochs(5).budget(1, key, client=0) for key in range(4)]
        [5, 1, 4, 2]
    """

    per_client = ("epochs",)

    epochs: Count | Sequence[Count]

    def budget(self, steps_per_epoch: int, key: Key, client: int) -> int:
        most = of_client(self.epochs, client)
        drawn = int(torch.randint(1, most + 1, (), generator=generator(key)))
        return drawn * steps_per_epoch

    def largest_budget(self, steps_per_epoch: int, client: int) -> int:
        return of_client(self.epochs, client) * steps_per_epoch

    def sentence(self, reached: bool) -> str:
        return f"the drawn number of epochs (1 to {_own_number(self.epochs)}) done"


@part("stop", "steps")
class Steps(StoppingRule):
    """Stop after a number of solver steps.

    Args:
        steps: Number of steps, or one number per client.

    Example:
        >>> import fedadmm as fa
        >>> [fa.Steps([5, 1]).budget(steps_per_epoch=10, key=0, client=i) for i in range(2)]
        [5, 1]
    """

    per_client = ("steps",)

    steps: Count | Sequence[Count]

    def budget(self, steps_per_epoch: int, key: Key, client: int) -> int:
        return of_client(self.steps, client)

    def sentence(self, reached: bool) -> str:
        return f"{_own_number(self.steps)} steps done"


def _own_number(value: float | Sequence[float]) -> str:
    return "the client's own number of" if isinstance(value, Sequence) else f"{value:g}"


class _Accuracy(StoppingRule):
    """Base class of rules that test the gradient, with a largest number of epochs."""

    needs_gradient = True
    max_epochs: int

    def budget(self, steps_per_epoch: int, key: Key, client: int) -> int:
        return self.max_epochs * steps_per_epoch

    def sentence(self, reached: bool) -> str:
        if reached:
            return "accuracy reached"
        return f"accuracy not reached within the cap of {self.max_epochs} epochs"


@part("stop", "gradient-tolerance")
class GradientTolerance(_Accuracy):
    """Stop if ||grad L_i||^2 <= epsilon_i (Gong et al., eq. 6).

    Args:
        epsilon: Bound of the squared gradient norm, or one per client.
        max_epochs: Largest number of epochs.  Default 100.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> rule = fa.stopping.GradientTolerance(epsilon=1e-6)
        >>> work = dict(solver=fa.GradientDescent(0.25), stop=rule)
        >>> round(fa.simulate(fa.FedADMM(rho=1.0), problem, 30, **work).params.item(), 2)
        2.0
    """

    per_client = ("epsilon",)

    epsilon: Positive | Sequence[Positive]
    max_epochs: Count = 100

    @property
    def largest_epsilon(self) -> float:
        """Upper bound of the squared gradient norm of every client."""
        return max(self.epsilon) if isinstance(self.epsilon, Sequence) else self.epsilon

    def reached(self, progress: Progress) -> Tensor:
        allowed = of_clients(self.epsilon, progress.clients, progress.gradient_norm)
        return progress.gradient_norm.square() <= allowed


def _modulus(owner: object, progress: Progress, weak_convexity: float) -> Tensor | float:
    """Return the strong convexity of the local problem, which must be positive."""
    modulus = progress.weight - weak_convexity
    smallest = float(modulus.min()) if isinstance(modulus, Tensor) else modulus
    if smallest <= 0:
        name = type(owner).__name__
        raise CompatibilityError(
            f"{name}.weak_convexity: got {weak_convexity:g}, expected less than the weight of the "
            f"local problem, which exceeds it by {smallest:g}. Increase the penalty."
        )
    return modulus


@part("stop", "prox-accuracy")
class ProxAccuracy(_Accuracy):
    """Stop if ||x_i^k - prox(.)||^2 <= M / (2 (k+1)^2) is guaranteed (FedDR, Remark 3.1).

    x_i^0 is the result of the initial round, if there is one, and x_i^(k+1) that of round k: the
    squared errors of all solves of a client add up to less than M.

    Args:
        M: Bound of the sum of squared errors.
        weak_convexity: Modulus of weak convexity of the f_i: 0 if convex, at most L if L-smooth.
            The guarantee does not hold if it is too small.
        max_epochs: Largest number of epochs.  Default 100.
    """

    M: Positive
    weak_convexity: NotNegative = 0.0
    max_epochs: Count = 100

    def epsilon(self, round_index: int) -> float:
        """Return the largest distance to the solution in a round; -1 is the initial round."""
        return math.sqrt(self.M / 2) / (round_index + 2)

    def reached(self, progress: Progress) -> Tensor:
        modulus = _modulus(self, progress, self.weak_convexity)
        return progress.gradient_norm <= self.epsilon(progress.round_index) * modulus


@part("stop", "relative-accuracy")
class RelativeAccuracy(_Accuracy):
    """Stop if ||w - prox(v)|| <= theta ||w - x_i|| is guaranteed; x_i is the local model.

    Args:
        theta: Relative accuracy.
        weak_convexity: Modulus of weak convexity of the f_i: 0 if convex, at most L if L-smooth.
        max_epochs: Largest number of epochs.  Default 100.
        squared: Whether theta relates squared norms, as in Remark 3.1 of FedDR.
    """

    theta: Positive
    weak_convexity: NotNegative = 0.0
    max_epochs: Count = 100
    squared: bool = False

    def reached(self, progress: Progress) -> Tensor:
        modulus = _modulus(self, progress, self.weak_convexity)
        factor = math.sqrt(self.theta) if self.squared else self.theta
        return progress.gradient_norm <= factor * modulus * progress.move


@part("stop", "insa")
class InSaCriterion(_Accuracy):
    """Stop if ||e(w)|| <= sigma_i ||e(w_i)||, e the gradient of the local problem (FedADMM-In).

    Args:
        sigma: sigma_i, or one per client; None for `safety` times the bound of the theorem for
            c_i-strongly convex f_i, sqrt(2) / (sqrt(2) + sqrt(beta_i / c_i)).
        c: Strong convexity c_i of f_i, or one per client.  Default 0.01.
        safety: Factor below 1 on the bound of the theorem.  Default 0.999.
        reference: Point of the right-hand side: the client's local model ("own"), or theta
            ("global") as in the authors' program.  It does not depend on the start of the solve.
        max_epochs: Largest number of epochs.  Default 10.
    """

    per_client = ("sigma", "c")

    sigma: Inside | Sequence[Inside] | None = None
    c: Positive | Sequence[Positive] = 0.01
    safety: Inside = 0.999
    reference: Literal["own", "global"] = "own"
    max_epochs: Count = 10

    def reached(self, progress: Progress) -> Tensor:
        return progress.gradient_norm <= self._tolerance(progress) * progress.reference_norm

    def _tolerance(self, progress: Progress) -> Tensor | float:
        """Return sigma_i."""
        clients, like = progress.clients, progress.gradient_norm
        if self.sigma is not None:
            return of_clients(self.sigma, clients, like)
        root = math.sqrt(2.0)
        ratio = progress.weight / of_clients(self.c, clients, like)
        return self.safety * root / (root + ratio**0.5)
