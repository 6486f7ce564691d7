"""When a local solve ends.

A rule has a budget of steps and, if it is about accuracy, a test on the full gradient of the
local problem L_i before every epoch.  The accuracy rules that speak of the distance to the
solution certify it through strong convexity: with f_i weakly convex with modulus m (0 when
convex, at most the smoothness L), L_i is (weight - m)-strongly convex, and
||w - argmin L_i|| <= ||grad L_i(w)|| / (weight - m).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedadmm.errors import (
    PairingError,
    check_choice,
    check_count,
    check_positive,
    check_range,
)
from fedadmm.protocols import Progress
from fedadmm.rng import Key, generator


class _Budget:
    """A rule that only counts; its test is never asked."""

    needs_gradient = False
    reference = "own"

    def reached(self, progress: Progress) -> Tensor:
        """Never."""
        return torch.zeros_like(progress.gradient_norm, dtype=torch.bool)


@dataclass(frozen=True)
class Epochs(_Budget):
    """`epochs` passes over the client's data."""

    epochs: int

    def __post_init__(self) -> None:
        check_count(self, "epochs", self.epochs)

    def budget(self, steps_per_epoch: int, key: Key) -> int:
        """All steps of all epochs."""
        return self.epochs * steps_per_epoch

    def sentence(self, reached: bool) -> str:
        """The epochs are done."""
        return f"{self.epochs} epochs done"


@dataclass(frozen=True)
class UniformEpochs(_Budget):
    """System heterogeneity: every participant draws its own number of epochs from 1..epochs."""

    epochs: int

    def __post_init__(self) -> None:
        check_count(self, "epochs", self.epochs)

    def budget(self, steps_per_epoch: int, key: Key) -> int:
        """All steps of the epochs drawn with this client's key."""
        drawn = int(torch.randint(1, self.epochs + 1, (), generator=generator(key)))
        return drawn * steps_per_epoch

    def sentence(self, reached: bool) -> str:
        """The drawn epochs are done."""
        return f"the drawn number of epochs (1 to {self.epochs}) done"


@dataclass(frozen=True)
class Steps(_Budget):
    """`steps` solver steps, whatever part of an epoch that is."""

    steps: int

    def __post_init__(self) -> None:
        check_count(self, "steps", self.steps)

    def budget(self, steps_per_epoch: int, key: Key) -> int:
        """The steps."""
        return self.steps

    def sentence(self, reached: bool) -> str:
        """The steps are done."""
        return f"{self.steps} steps done"


class _Accuracy:
    """Shared by the rules that test the gradient: a cap on epochs and the sentence."""

    needs_gradient = True
    reference = "own"
    max_epochs: int

    def budget(self, steps_per_epoch: int, key: Key) -> int:
        """The cap."""
        return self.max_epochs * steps_per_epoch

    def sentence(self, reached: bool) -> str:
        """Whether the accuracy or the cap ended the solve."""
        if reached:
            return "accuracy reached"
        return f"accuracy not reached within the cap of {self.max_epochs} epochs"


@dataclass(frozen=True)
class GradientTolerance(_Accuracy):
    """||grad L_i||^2 <= epsilon (Gong et al., eq. 6)."""

    epsilon: float
    max_epochs: int = 100

    def __post_init__(self) -> None:
        check_positive(self, "epsilon", self.epsilon)
        check_count(self, "max_epochs", self.max_epochs)

    def reached(self, progress: Progress) -> Tensor:
        """The squared gradient norm is small enough."""
        return progress.gradient_norm.square() <= self.epsilon


def _modulus(owner: object, progress: Progress, weak_convexity: float) -> Tensor | float:
    """The strong convexity of the local problem, which must be positive."""
    modulus = progress.weight - weak_convexity
    smallest = float(modulus.min()) if isinstance(modulus, Tensor) else modulus
    if smallest <= 0:
        name = type(owner).__name__
        raise PairingError(
            f"{name}: the local problem's weight must exceed weak_convexity={weak_convexity:g} to "
            f"certify an accuracy, but exceeds it by {smallest:g}"
        )
    return modulus


@dataclass(frozen=True)
class ProxAccuracy(_Accuracy):
    """||x_i^k - prox(.)||^2 <= M / (2 (k+1)^2) (FedDR, Remark 3.1), certified.

    x_i^0 comes from the initial round, if there is one, and x_i^(k+1) from round k = 0, 1, …: the
    squares of all solves of a client add up to less than M.  `weak_convexity` is 0 for convex f_i
    and at most L for L-smooth ones; a value that is too small certifies nothing.
    """

    M: float
    weak_convexity: float = 0.0
    max_epochs: int = 100

    def __post_init__(self) -> None:
        check_positive(self, "M", self.M)
        check_range(self, "weak_convexity", self.weak_convexity, 0.0)
        check_count(self, "max_epochs", self.max_epochs)

    def epsilon(self, round_index: int) -> float:
        """The distance allowed in a round; the initial one has the index -1."""
        return math.sqrt(self.M / 2) / (round_index + 2)

    def reached(self, progress: Progress) -> Tensor:
        """The certified distance is small enough."""
        modulus = _modulus(self, progress, self.weak_convexity)
        return progress.gradient_norm <= self.epsilon(progress.round_index) * modulus


@dataclass(frozen=True)
class RelativeAccuracy(_Accuracy):
    """||w - prox(.)|| <= theta ||w - start|| (FedDR, Remark 3.1), certified."""

    theta: float
    weak_convexity: float = 0.0
    max_epochs: int = 100

    def __post_init__(self) -> None:
        check_positive(self, "theta", self.theta)
        check_range(self, "weak_convexity", self.weak_convexity, 0.0)
        check_count(self, "max_epochs", self.max_epochs)

    def reached(self, progress: Progress) -> Tensor:
        """The certified distance is small against the way made."""
        modulus = _modulus(self, progress, self.weak_convexity)
        return progress.gradient_norm <= self.theta * modulus * progress.move


@dataclass(frozen=True)
class InSaCriterion(_Accuracy):
    """||e(w)|| <= sigma_i ||e(w_i)||, e the full gradient of the local problem (FedADMM-In).

    sigma_i is `sigma`, or else `safety` times the bound sqrt(2)/(sqrt(2) + sqrt(beta_i/c)) that
    the theorem allows for c-strongly convex f_i.  `reference="global"` measures against e(theta),
    as the authors' program does, instead of against the client's own model.
    """

    sigma: float | None = None
    c: float = 0.01
    safety: float = 0.999
    reference: Literal["own", "global"] = "own"
    max_epochs: int = 10

    def __post_init__(self) -> None:
        if self.sigma is not None:
            check_range(self, "sigma", self.sigma, 0.0, 1.0, open_low=True, open_high=True)
        check_positive(self, "c", self.c)
        check_range(self, "safety", self.safety, 0.0, 1.0, open_low=True, open_high=True)
        check_choice(self, "reference", self.reference, ("own", "global"))
        check_count(self, "max_epochs", self.max_epochs)

    def tolerance(self, weight: Tensor | float) -> Tensor | float:
        """sigma_i for a penalty beta_i."""
        if self.sigma is not None:
            return self.sigma
        root = math.sqrt(2.0)
        return self.safety * root / (root + (weight / self.c) ** 0.5)

    def reached(self, progress: Progress) -> Tensor:
        """The gradient has shrunk enough."""
        return progress.gradient_norm <= self.tolerance(progress.weight) * progress.reference_norm
