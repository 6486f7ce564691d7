"""Named problems with optimum, infimum and smoothness in closed form.

Clients 2k and 2k + 1 have opposite linear terms at the minimiser; with an odd number of clients the
last one has none.  Hence the minimiser is known for any number of clients, without generating them.

With a regularizer g the minimiser is known, too.  Let u be the minimiser without g, x* = prox_g(u)
and s = u - x*, a subgradient of g at x*.  Each f_i is centred at x* with the term -<s, x - x*>:

    F(x) = f(x) - <s, x - x*> + g(x)  >=  f(x*) + g(x*) = F*,       because f >= f(x*) = 0.

In the non-convex objectives t = x - centre, and the federation's minimiser is the centre.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import torch
from annotated_types import Ge
from torch import Tensor

from fedadmm.core.contracts import Regularizer
from fedadmm.core.errors import DataError
from fedadmm.core.objectives import Objective
from fedadmm.core.objectives.closed_form import FeatureObjective, Quadratic
from fedadmm.core.parts import Count, Natural, NotNegative, Positive, checked, part
from fedadmm.core.problem import Facts, LazyClients, Problem
from fedadmm.core.regularizers import Zero
from fedadmm.core.rng import derive, generator
from fedadmm.data.problems.named_problem import NamedProblem


@dataclass(frozen=True, eq=False)
class _Separable(Objective):
    """Objective that is a sum over coordinates, with positive weights and a tilt of either sign.

    The tilts of a pair of clients cancel in F, so that the clients have different minimisers and F
    has a known one.  A separable objective has one "sample".
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
        """The negative of a lower bound of the curvature, max_j weights_j / 2 + |tilt|."""
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


@dataclass(frozen=True, eq=False)
class RobustRegression(FeatureObjective):
    """f(x) = mean over rows of rho(<row, x> - target), with the bounded rho of Geman and McClure.

    rho(r) = r^2 / (2 (1 + r^2)) has rho'' = (1 - 3 r^2) / (1 + r^2)^3, which lies in [-1/4, 1].
    Hence L = the largest eigenvalue of X'X / m.  When all clients' targets come from one vector
    without noise, f_i >= 0 with equality there: F* = 0.
    """

    def value(self, params: Tensor) -> Tensor:
        squares = (self.features @ params - self.targets).square()
        return (squares / (1 + squares)).mean() / 2

    def gradient(self, params: Tensor, rows: Tensor | None = None) -> Tensor:
        x, y = self._batch(rows)
        residual = x @ params - y
        return x.T @ (residual / (1 + residual.square()).square()) / y.numel()

    @property
    def smoothness(self) -> float:
        """L, the largest eigenvalue of X'X / m."""
        return float(torch.linalg.matrix_norm(self.features, 2)) ** 2 / self.num_samples

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> RobustRegression:
        features, targets = self.features.to(device, dtype), self.targets.to(device, dtype)
        return RobustRegression(features, targets)


@dataclass(frozen=True, eq=False)
class Leaning(Objective):
    """Objective f(x) - <lean, x - centre>, with the curvature of f and another minimiser."""

    objective: Objective
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


LEAST_WEIGHT = 0.5
"""Smallest weight of a coordinate in a separable objective."""


class Planted(NamedTuple):
    """The minimiser of F, and the linear term of the f_i that makes it the minimiser."""

    optimum: Tensor
    """x* = prox_g(u)."""
    lean: Tensor
    """s = u - x*, a subgradient of g at x*; zero without g."""


@checked
class TheoryOptions(NamedProblem):
    """Base class of the problems with a known optimum."""

    clients: Count = 20
    dimension: Count = 10
    heterogeneity: NotNegative = 1.0
    """Size of the opposite terms of a pair of clients; with 0 all clients have one minimiser."""
    data_seed: Natural = 0

    @abstractmethod
    def objective(self, optimum: Tensor, client: int) -> Any:
        """Return a client's f_i for g = 0, with the minimiser of F at `optimum`."""

    def client(self, planted: Planted, client: int) -> Objective:
        """Return a client's f_i, with the linear term for the regularizer."""
        objective: Objective = self.objective(planted.optimum, client)
        leans = bool(planted.lean.any())
        return Leaning(objective, planted.lean, planted.optimum) if leans else objective

    @abstractmethod
    def curvature(self, optimum: Tensor) -> tuple[float, float]:
        """Return (L, m): all eigenvalues of the Hessians of the f_i are in [-m, L]."""

    def load(self, regularizer: Regularizer | None = None, **given: Any) -> Problem:
        regularizer, free = regularizer or Zero(), self.optimum()
        optimum = regularizer.prox(free, 1.0)
        smoothness, weak_convexity = self.curvature(optimum)
        return Problem(
            clients=LazyClients(
                self.clients, partial(self.client, Planted(optimum, free - optimum))
            ),
            regularizer=regularizer,
            initial=partial(_start, self, regularizer),
            facts=Facts(
                smoothness,
                infimum=float(regularizer.value(optimum)),
                optimum=optimum,
                weak_convexity=weak_convexity,
            ),
            name=self.name,
        )

    def normal(self, purpose: str, *indices: int, rows: int | None = None) -> Tensor:
        """Return standard normal numbers of shape (dimension,) or (rows, dimension)."""
        shape = (self.dimension,) if rows is None else (rows, self.dimension)
        source = generator(derive(self.data_seed, f"theory/{purpose}", *indices))
        return torch.randn(shape, generator=source, dtype=torch.float64)

    def optimum(self) -> Tensor:
        """Return the minimiser of F for g = 0."""
        return self.normal("optimum")

    def sign(self, client: int) -> float:
        """Return +1 or -1 for the clients of a pair, 0 for a last client without a partner."""
        if client == self.clients - 1 and self.clients % 2:
            return 0.0
        return 1.0 if client % 2 == 0 else -1.0

    def weights(self, client: int) -> Tensor:
        """Return weights between 1/2 and 1; the first is 1, so that the largest is known."""
        weights = LEAST_WEIGHT + (1 - LEAST_WEIGHT) * torch.sigmoid(self.normal("weights", client))
        weights[0] = 1.0
        return weights


def _start(options: TheoryOptions, regularizer: Regularizer, seed: int) -> Tensor:
    """Return a standard normal initial point, projected to the domain of g if it is outside."""
    source = generator(derive(seed, "theory/start"))
    start = torch.randn(options.dimension, generator=source, dtype=torch.float64)
    if math.isfinite(float(regularizer.value(start))):
        return start
    return regularizer.prox(start, 1.0)


@part("problem", "quadratics")
class QuadraticsOptions(TheoryOptions):
    """Quadratics f_i(x) = (x - x*)' A_i (x - x*) / 2 + <g_i, x - x*>, with random rotations in A_i.

    The eigenvalues of each A_i decrease geometrically from `smoothness` to smoothness /
    conditioning; the g_i of a pair cancel, so that F* = 0 at x*.  The minimiser of f_i is
    x* - A_i^-1 g_i.
    """

    summary: ClassVar[str] = "heterogeneous, strongly convex, x* known"
    smoothness: Positive = 1.0
    conditioning: Annotated[float, Ge(1)] = 10.0

    def client(self, planted: Planted, client: int) -> Quadratic:
        """Return f_i as a `Quadratic`, with the linear term for the regularizer in g_i."""
        return self.objective(planted.optimum, client, planted.lean)

    def objective(self, optimum: Tensor, client: int, lean: Tensor | float = 0.0) -> Quadratic:
        size = self.dimension
        powers = torch.linspace(0, 1, size, dtype=torch.float64)
        spectrum = self.smoothness * self.conditioning ** (-powers)
        rotation, _ = torch.linalg.qr(self.normal("rotation", client, rows=size))
        matrix = (rotation * spectrum) @ rotation.T
        matrix = (matrix + matrix.T) / 2
        pull = self.normal("pull", client // 2) * self.heterogeneity * self.sign(client)
        pull = pull - lean
        constant = float(optimum @ (matrix @ optimum) / 2 - pull @ optimum)
        return Quadratic(matrix, matrix @ optimum - pull, constant)

    def curvature(self, optimum: Tensor) -> tuple[float, float]:
        return self.smoothness, 0.0


@part("problem", "saturating")
class SaturatingOptions(TheoryOptions):
    """Bounded objectives, which are not coercive: sums of t^2 / (1 + t^2), see `Saturating`."""

    summary: ClassVar[str] = "non-convex, bounded; L, F* known"
    heterogeneity: NotNegative = 0.5

    def objective(self, optimum: Tensor, client: int) -> Saturating:
        return Saturating(optimum, self.weights(client), self.heterogeneity * self.sign(client))

    def curvature(self, optimum: Tensor) -> tuple[float, float]:
        first = self.objective(optimum, 0)
        return first.smoothness, first.weak_convexity


@part("problem", "cosine-quadratics")
class CosineOptions(TheoryOptions):
    """Quadratics plus cosines, with many local minima, see `CosineQuadratic`."""

    summary: ClassVar[str] = "non-convex, many minima; L, F* known"
    heterogeneity: NotNegative = 0.5
    wave: NotNegative = 1.0
    frequency: Positive = 2.0

    def objective(self, optimum: Tensor, client: int) -> CosineQuadratic:
        tilt = self.heterogeneity * self.sign(client)
        return CosineQuadratic(optimum, self.weights(client), tilt, self.wave, self.frequency)

    def curvature(self, optimum: Tensor) -> tuple[float, float]:
        first = self.objective(optimum, 0)
        waves = first.smoothness - float(first.weights.max())
        return first.smoothness, max(0.0, waves - LEAST_WEIGHT)


@part("problem", "robust-regression")
class RobustOptions(TheoryOptions):
    """Noiseless regression with a bounded loss, see `RobustRegression`; L = smoothness.

    `heterogeneity` shifts the mean of each client's features; all clients have the same minimiser.
    """

    summary: ClassVar[str] = "non-convex robust loss; L, F* known"
    rows: Count = 30
    smoothness: Positive = 1.0

    def objective(self, optimum: Tensor, client: int) -> RobustRegression:
        rows = self.normal("rows", client, rows=self.rows)
        rows = rows + self.heterogeneity * self.normal("mean", client)
        largest = torch.linalg.matrix_norm(rows, 2).square() / self.rows
        rows = rows * (self.smoothness / largest).sqrt()
        return RobustRegression(rows, rows @ optimum)

    def curvature(self, optimum: Tensor) -> tuple[float, float]:
        return self.smoothness, self.smoothness / 4
