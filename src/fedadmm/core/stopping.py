"""When a local solve ends.

A rule has a budget of steps and, if it is about accuracy, a test on the full gradient of the
local problem L_i before every epoch.  The accuracy rules that speak of the distance to the
solution certify it through strong convexity: with f_i weakly convex with modulus m (0 when
convex, at most the smoothness L), L_i is (weight - m)-strongly convex, and
||w - argmin L_i|| <= ||grad L_i(w)|| / (weight - m).
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
"""A factor that really shrinks."""


class Progress(NamedTuple):
    """What a stopping rule sees between two epochs; tensors of shape (1,) or (K, 1)."""

    gradient_norm: Tensor
    """||grad L_i(w)|| over the client's full data."""
    reference_norm: Tensor
    """The same at the rule's reference point; at the start for a rule without one."""
    move: Tensor
    """||w - w_i||, from the client's own model; from the start where its method keeps none."""
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

    def requires(self, run: Setup) -> Iterable[Feature]:
        """A rule that measures gradients needs a local problem whose gradient is its accuracy."""
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
        """Where `Progress.reference_norm` is taken: "own", "global" (theta), or None: not needed.

        "own" is the client's own model; where its method keeps none, it is the start.
        """
        return None

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


@part("stop", "epochs")
class Epochs(StoppingRule):
    """`epochs` passes over the client's data: one number, or one per client.

    A part of an epoch is the nearest whole number of steps, and at least one.
    """

    per_client = ("epochs",)

    epochs: Positive | Annotated[int, Gt(0)] | Sequence[Positive | Annotated[int, Gt(0)]] = 1

    def budget(self, steps_per_epoch: int, key: Key, client: int) -> int:
        return max(1, round(of_client(self.epochs, client) * steps_per_epoch))

    def sentence(self, reached: bool) -> str:
        return f"{_own_number(self.epochs)} epochs done"


@part("stop", "uniform-epochs")
class UniformEpochs(StoppingRule):
    """System heterogeneity: every participant draws its own number of epochs from 1..epochs.

    `epochs` is one number, or one per client.
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
    """`steps` solver steps, whatever part of an epoch that is: one number, or one per client."""

    per_client = ("steps",)

    steps: Count | Sequence[Count]

    def budget(self, steps_per_epoch: int, key: Key, client: int) -> int:
        return of_client(self.steps, client)

    def sentence(self, reached: bool) -> str:
        return f"{_own_number(self.steps)} steps done"


def _own_number(value: float | Sequence[float]) -> str:
    return "the client's own number of" if isinstance(value, Sequence) else f"{value:g}"


class _Accuracy(StoppingRule):
    """Shared by the rules that test the gradient: a cap on epochs and the sentence."""

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
    """||grad L_i||^2 <= epsilon_i (Gong et al., eq. 6): one number, or one per client."""

    per_client = ("epsilon",)

    epsilon: Positive | Sequence[Positive]
    max_epochs: Count = 100

    @property
    def largest_epsilon(self) -> float:
        """What every client's squared gradient norm is at most."""
        return max(self.epsilon) if isinstance(self.epsilon, Sequence) else self.epsilon

    def reached(self, progress: Progress) -> Tensor:
        allowed = of_clients(self.epsilon, progress.clients, progress.gradient_norm)
        return progress.gradient_norm.square() <= allowed


def _modulus(owner: object, progress: Progress, weak_convexity: float) -> Tensor | float:
    """The strong convexity of the local problem, which must be positive."""
    modulus = progress.weight - weak_convexity
    smallest = float(modulus.min()) if isinstance(modulus, Tensor) else modulus
    if smallest <= 0:
        name = type(owner).__name__
        raise CompatibilityError(
            f"{name}: the local problem's weight must exceed weak_convexity={weak_convexity:g} to "
            f"certify an accuracy, but exceeds it by {smallest:g}"
        )
    return modulus


@part("stop", "prox-accuracy")
class ProxAccuracy(_Accuracy):
    """||x_i^k - prox(.)||^2 <= M / (2 (k+1)^2) (FedDR, Remark 3.1), certified.

    x_i^0 comes from the initial round, if there is one, and x_i^(k+1) from round k = 0, 1, …: the
    squares of all solves of a client add up to less than M.  `weak_convexity` is 0 for convex f_i
    and at most L for L-smooth ones; a value that is too small certifies nothing.
    """

    M: Positive
    weak_convexity: NotNegative = 0.0
    max_epochs: Count = 100

    def epsilon(self, round_index: int) -> float:
        """The distance allowed in a round; the initial one has the index -1."""
        return math.sqrt(self.M / 2) / (round_index + 2)

    def reached(self, progress: Progress) -> Tensor:
        modulus = _modulus(self, progress, self.weak_convexity)
        return progress.gradient_norm <= self.epsilon(progress.round_index) * modulus


@part("stop", "relative-accuracy")
class RelativeAccuracy(_Accuracy):
    """||w - prox(v)|| <= theta ||w - x_i||, certified; x_i is the client's own model.

    `squared=True` reads theta as Remark 3.1 of FedDR prints it, between squared norms.
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
    """||e(w)|| <= sigma_i ||e(w_i)||, e the full gradient of the local problem (FedADMM-In).

    sigma_i is `sigma`, or else `safety` times the bound sqrt(2)/(sqrt(2) + sqrt(beta_i/c_i)) that
    the theorem allows for c_i-strongly convex f_i; `sigma` and `c` are one number, or one per
    client.  `reference="global"` measures against e(theta),
    as the authors' program does, instead of against the client's own model w_i; where the solve
    starts does not matter for either.
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
        """sigma_i."""
        clients, like = progress.clients, progress.gradient_norm
        if self.sigma is not None:
            return of_clients(self.sigma, clients, like)
        root = math.sqrt(2.0)
        ratio = progress.weight / of_clients(self.c, clients, like)
        return self.safety * root / (root + ratio**0.5)
