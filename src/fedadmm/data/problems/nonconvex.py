"""Non-convex objectives whose smoothness constant and infimum are known, for checks of theorems.

In all of them t = x - centre, and the federation's minimiser is `centre` with F* = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from fedadmm.core.errors import DataError
from fedadmm.core.objectives import Objective
from fedadmm.core.objectives.closed_form import FeatureRows
from fedadmm.core.validation import check


@dataclass(frozen=True, eq=False)
class _Separable(Objective):
    """A sum over coordinates with one positive weight a coordinate, and a tilt of either sign.

    Clients come in pairs whose tilts cancel in F, so that they disagree about where to go while
    F keeps its minimiser.  A separable objective has one "sample".
    """

    num_samples: ClassVar[int] = 1

    centre: Tensor
    weights: Tensor
    tilt: float = 0.0

    def __post_init__(self) -> None:
        if self.centre.ndim != 1 or self.weights.shape != self.centre.shape:
            raise DataError(
                f"{type(self).__name__}: centre has shape {tuple(self.centre.shape)} and weights "
                f"{tuple(self.weights.shape)}, but both must be (D,)"
            )
        if not bool((self.weights > 0).all()):
            raise DataError(f"{type(self).__name__}: weights must be greater than zero")

    @property
    def num_parameters(self) -> int:
        return self.centre.numel()

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Self:
        centre, weights = self.centre.to(device, dtype), self.weights.to(device, dtype)
        return replace(self, centre=centre, weights=weights)


@dataclass(frozen=True, eq=False)
class Saturating(_Separable):
    """f(x) = sum_j weights_j t_j^2 / (1 + t_j^2) + tilt sin(t_j).

    phi(t) = t^2 / (1 + t^2) has phi'' = 2 (1 - 3 t^2) / (1 + t^2)^3, which lies in [-1/2, 2]
    (2 at t = 0; -1/2 at t = 1, where its derivative 24 t (t^2 - 1) / (1 + t^2)^4 vanishes), and
    |sin''| <= 1, so that L = 2 max_j weights_j + |tilt|.  phi >= 0 with equality at 0 only: with
    cancelling tilts F* = 0 at the centre.  F is bounded above too, flat far away, not convex.
    """

    def value(self, params: Tensor) -> Tensor:
        t = params - self.centre
        squares = t.square()
        return (self.weights * squares / (1 + squares) + self.tilt * t.sin()).sum()

    def gradient(self, params: Tensor, rows: Tensor | None = None) -> Tensor:
        t = params - self.centre
        return 2 * self.weights * t / (1 + t.square()).square() + self.tilt * t.cos()

    @property
    def smoothness(self) -> float:
        """L = 2 max_j weights_j + |tilt|."""
        return 2 * float(self.weights.max()) + abs(self.tilt)

    @property
    def weak_convexity(self) -> float:
        """Minus the least curvature, max_j weights_j / 2 + |tilt|."""
        return float(self.weights.max()) / 2 + abs(self.tilt)


@dataclass(frozen=True, eq=False)
class CosineQuadratic(_Separable):
    """f(x) = sum_j weights_j t_j^2 / 2 + wave (1 - cos(w t_j)) + tilt sin(w t_j), w = frequency.

    The second derivative of wave (1 - cos) + tilt sin is w^2 (wave cos(wt) - tilt sin(wt)), whose
    size is at most w^2 sqrt(wave^2 + tilt^2), so that
    L = max_j weights_j + w^2 sqrt(wave^2 + tilt^2).  With cancelling tilts F is a sum of
    non-negative terms that vanish at the centre only: F* = 0 there, among many local minima when
    w^2 wave exceeds the weights.
    """

    wave: float = 1.0
    frequency: float = 2.0

    def value(self, params: Tensor) -> Tensor:
        t = params - self.centre
        angle = self.frequency * t
        waves = self.wave * (1 - angle.cos()) + self.tilt * angle.sin()
        return (self.weights * t.square() / 2 + waves).sum()

    def gradient(self, params: Tensor, rows: Tensor | None = None) -> Tensor:
        t = params - self.centre
        angle = self.frequency * t
        return self.weights * t + self.frequency * (
            self.wave * angle.sin() + self.tilt * angle.cos()
        )

    @property
    def smoothness(self) -> float:
        """L = max_j weights_j + w^2 sqrt(wave^2 + tilt^2)."""
        return float(self.weights.max()) + self.frequency**2 * math.hypot(self.wave, self.tilt)


CONCAVITY = {"geman-mcclure": 0.25, "welsch": 2 * math.exp(-1.5)}
"""Minus the least rho'' of each robust loss, whose largest is 1."""


@dataclass(frozen=True, eq=False)
class RobustRegression(FeatureRows):
    """f(x) = mean over rows of rho(<row, x> - target), with a bounded, non-convex rho.

    geman-mcclure: rho(r) = r^2 / (2 (1 + r^2)), rho'' = (1 - 3 r^2) / (1 + r^2)^3 in [-1/4, 1].
    welsch:        rho(r) = 1 - exp(-r^2 / 2),   rho'' = (1 - r^2) exp(-r^2 / 2) in [-2 e^-1.5, 1].
    Hence L = the largest eigenvalue of X'X / m.  When all clients' targets come from one vector
    without noise, f_i >= 0 with equality there: F* = 0.
    """

    loss: Literal["geman-mcclure", "welsch"] = "geman-mcclure"

    def __post_init__(self) -> None:
        check(self, "loss", self.loss, Literal[("geman-mcclure", "welsch")])
        super().__post_init__()

    def value(self, params: Tensor) -> Tensor:
        squares = (self.features @ params - self.targets).square()
        if self.loss == "welsch":
            return -torch.expm1(-squares / 2).mean()
        return (squares / (1 + squares)).mean() / 2

    def gradient(self, params: Tensor, rows: Tensor | None = None) -> Tensor:
        x, y = self._batch(rows)
        residual = x @ params - y
        squares = residual.square()
        if self.loss == "welsch":
            slope = residual * (-squares / 2).exp()
        else:
            slope = residual / (1 + squares).square()
        return x.T @ slope / y.numel()

    @property
    def smoothness(self) -> float:
        """L, the largest eigenvalue of X'X / m."""
        return float(torch.linalg.matrix_norm(self.features, 2)) ** 2 / self.num_samples

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> RobustRegression:
        features, targets = self.features.to(device, dtype), self.targets.to(device, dtype)
        return RobustRegression(features, targets, self.loss)


NonConvex = Saturating | CosineQuadratic | RobustRegression


@dataclass(frozen=True, eq=False)
class Leaning(Objective):
    """f(x) - <lean, x - centre>: the same curvature as f, and another minimiser."""

    objective: NonConvex
    lean: Tensor
    centre: Tensor

    @property
    def num_parameters(self) -> int:
        return self.lean.numel()

    @property
    def num_samples(self) -> int:
        return self.objective.num_samples

    def value(self, params: Tensor) -> Tensor:
        return self.objective.value(params) - self.lean @ (params - self.centre)

    def gradient(self, params: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.objective.gradient(params, rows) - self.lean

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Leaning:
        lean, centre = self.lean.to(device, dtype), self.centre.to(device, dtype)
        return Leaning(self.objective.to(dtype, device), lean, centre)
