"""Named problems whose optimum, infimum and smoothness are known without solving anything.

Clients 2k and 2k + 1 form a pair that pulls in opposite directions; with an odd number of clients
the last one does not pull.  Hence the minimiser is known for any number of clients, and a million
of them can be described without making one.

A regularizer g keeps it known.  With u the minimiser without g, x* = prox_g(u) and s = u - x*,
which is a subgradient of g at x*, every f_i is centred at x* and leans by -<s, x - x*>:

    F(x) = f(x) - <s, x - x*> + g(x)  >=  f(x*) + g(x*) = F*,       because f >= f(x*) = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor

from fedadmm.core.objectives.closed_form import Quadratic
from fedadmm.core.parts import Count, Natural, NotNegative, Positive, checked, part
from fedadmm.core.problem import Facts, LazyClients, Problem
from fedadmm.core.protocols import Objective, Regularizer
from fedadmm.core.regularizers import Zero
from fedadmm.core.rng import derive, generator
from fedadmm.data.problems.nonconvex import (
    CONCAVITY,
    CosineQuadratic,
    Leaning,
    NonConvex,
    RobustRegression,
    Saturating,
)
from fedadmm.data.problems.registry import Extras, NamedProblem

LEAST_WEIGHT = 0.5
"""No coordinate of a separable objective weighs less."""


@checked
class TheoryOptions(NamedProblem):
    """What the problems with a known optimum have in common."""

    clients: Count = 20
    dimension: Count = 10
    heterogeneity: NotNegative = 1.0
    """How strongly the two clients of a pair pull apart; 0 lets all agree on the minimiser."""
    data_seed: Natural = 0

    def normal(self, purpose: str, *indices: int, rows: int | None = None) -> Tensor:
        """Standard normal numbers: (dimension,) or (rows, dimension)."""
        shape = (self.dimension,) if rows is None else (rows, self.dimension)
        source = generator(derive(self.data_seed, f"theory/{purpose}", *indices))
        return torch.randn(shape, generator=source, dtype=torch.float64)

    def optimum(self) -> Tensor:
        """The minimiser of F."""
        return self.normal("optimum")

    def sign(self, client: int) -> float:
        """+1 and -1 within a pair, 0 for a last client without a partner."""
        if client == self.clients - 1 and self.clients % 2:
            return 0.0
        return 1.0 if client % 2 == 0 else -1.0


@part("problem", "quadratics")
class QuadraticsOptions(TheoryOptions):
    """f_i(x) = (x - x*)' A_i (x - x*) / 2 + <g_i, x - x*>, with A_i rotated at random.

    The eigenvalues of every A_i run geometrically from `smoothness` down to smoothness /
    conditioning; the g_i of a pair cancel, so that F* = 0 at x*.  A client's own minimiser is
    x* - A_i^-1 g_i.
    """

    summary: ClassVar[str] = "heterogeneous, strongly convex, x* known"
    smoothness: Positive = 1.0
    conditioning: Annotated[float, Ge(1)] = 10.0

    def make(self, extras: Extras) -> Problem:
        """The problem with its known facts."""
        planted = _planted(self, extras)
        build = partial(_quadratic, self, *planted)
        return _problem(self, planted, build, (self.smoothness, 0.0), extras)


def _quadratic(options: QuadraticsOptions, optimum: Tensor, lean: Tensor, client: int) -> Quadratic:
    size = options.dimension
    powers = torch.linspace(0, 1, size, dtype=torch.float64)
    spectrum = options.smoothness * options.conditioning ** (-powers)
    rotation, _ = torch.linalg.qr(options.normal("rotation", client, rows=size))
    matrix = (rotation * spectrum) @ rotation.T
    matrix = (matrix + matrix.T) / 2
    pull = options.normal("pull", client // 2) * options.heterogeneity * options.sign(client) - lean
    constant = float(optimum @ (matrix @ optimum) / 2 - pull @ optimum)
    return Quadratic(matrix, matrix @ optimum - pull, constant)


@part("problem", "saturating")
class SaturatingOptions(TheoryOptions):
    """Bounded, nowhere coercive: sums of t^2 / (1 + t^2), see `Saturating`."""

    summary: ClassVar[str] = "non-convex, bounded; L, F* known"
    heterogeneity: NotNegative = 0.5

    def make(self, extras: Extras) -> Problem:
        """The problem with its known facts."""
        planted = _planted(self, extras)
        build = partial(_saturate, self, planted.optimum)
        first = build(0)
        curvature = (first.smoothness, first.weak_convexity)
        return _problem(self, planted, _leaning(build, planted), curvature, extras)


def _weights(options: TheoryOptions, client: int) -> Tensor:
    """Between 1/2 and 1, and 1 in the first coordinate, so that the largest is known."""
    weights = LEAST_WEIGHT + (1 - LEAST_WEIGHT) * torch.sigmoid(options.normal("weights", client))
    weights[0] = 1.0
    return weights


def _saturate(options: SaturatingOptions, optimum: Tensor, client: int) -> Saturating:
    tilt = options.heterogeneity * options.sign(client)
    return Saturating(optimum, _weights(options, client), tilt)


@part("problem", "cosine-quadratics")
class CosineOptions(TheoryOptions):
    """Quadratics with waves on them, see `CosineQuadratic`."""

    summary: ClassVar[str] = "non-convex, many minima; L, F* known"
    heterogeneity: NotNegative = 0.5
    wave: NotNegative = 1.0
    frequency: Positive = 2.0

    def make(self, extras: Extras) -> Problem:
        """The problem with its known facts."""
        planted = _planted(self, extras)
        build = partial(_cosine, self, planted.optimum)
        first = build(0)
        waves = first.smoothness - float(first.weights.max())
        curvature = (first.smoothness, max(0.0, waves - LEAST_WEIGHT))
        clients = _leaning(build, planted)
        return _problem(self, planted, clients, curvature, extras)


def _cosine(options: CosineOptions, optimum: Tensor, client: int) -> CosineQuadratic:
    tilt = options.heterogeneity * options.sign(client)
    weights = _weights(options, client)
    return CosineQuadratic(optimum, weights, tilt, options.wave, options.frequency)


@part("problem", "robust-regression")
class RobustOptions(TheoryOptions):
    """Regression without noise under a bounded loss, see `RobustRegression`; L = smoothness.

    `heterogeneity` moves the mean of each client's rows; all clients agree on the minimiser.
    """

    summary: ClassVar[str] = "non-convex robust loss; L, F* known"
    rows: Count = 30
    loss: Literal["geman-mcclure", "welsch"] = "geman-mcclure"
    smoothness: Positive = 1.0

    def make(self, extras: Extras) -> Problem:
        """The problem with its known facts."""
        planted = _planted(self, extras)
        build = partial(_robust, self, planted.optimum)
        curvature = (self.smoothness, self.smoothness * CONCAVITY[self.loss])
        clients = _leaning(build, planted)
        return _problem(self, planted, clients, curvature, extras)


def _robust(options: RobustOptions, optimum: Tensor, client: int) -> RobustRegression:
    rows = options.normal("rows", client, rows=options.rows)
    rows = rows + options.heterogeneity * options.normal("mean", client)
    largest = torch.linalg.matrix_norm(rows, 2).square() / options.rows
    rows = rows * (options.smoothness / largest).sqrt()
    return RobustRegression(rows, rows @ optimum, options.loss)


class Planted(NamedTuple):
    """Where the minimum of F is put, and how the f_i have to lean for it to be there."""

    optimum: Tensor
    """x* = prox_g(u)."""
    lean: Tensor
    """s = u - x*, a subgradient of g at x*; zero without g."""


def _planted(options: TheoryOptions, extras: Extras) -> Planted:
    free = options.optimum()
    optimum = (extras.regularizer or Zero()).prox(free, 1.0)
    return Planted(optimum, free - optimum)


def _leaning(build: Callable[[int], NonConvex], planted: Planted) -> Callable[[int], Objective]:
    return partial(_lean, build, planted) if bool(planted.lean.any()) else build


def _lean(build: Callable[[int], NonConvex], planted: Planted, client: int) -> Leaning:
    return Leaning(build(client), planted.lean, planted.optimum)


def _start(options: TheoryOptions, regularizer: Regularizer, seed: int) -> Tensor:
    """Normal numbers; where g is infinite there, the nearest point where it is not."""
    source = generator(derive(seed, "theory/start"))
    start = torch.randn(options.dimension, generator=source, dtype=torch.float64)
    if math.isfinite(float(regularizer.value(start))):
        return start
    return regularizer.prox(start, 1.0)


def _problem(
    options: TheoryOptions,
    planted: Planted,
    build: Callable[[int], Objective],
    curvature: tuple[float, float],
    extras: Extras,
) -> Problem:
    """`curvature` is (L, m): the eigenvalues of every f_i's Hessians lie in [-m, L]."""
    smoothness, weak_convexity = curvature
    regularizer = extras.regularizer or Zero()
    return Problem(
        clients=LazyClients(options.clients, build),
        regularizer=regularizer,
        initial=partial(_start, options, regularizer),
        facts=Facts(
            smoothness,
            infimum=float(regularizer.value(planted.optimum)),
            optimum=planted.optimum,
            weak_convexity=weak_convexity,
        ),
        name=options.name,
    )
