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
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedadmm.core.errors import check_choice, check_count, check_positive, check_range
from fedadmm.core.objectives.closed_form import Quadratic
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
from fedadmm.data.problems.registry import Entry, Extras, register

LEAST_WEIGHT = 0.5
"""No coordinate of a separable objective weighs less."""


@dataclass(frozen=True, kw_only=True)
class TheoryOptions:
    """What the problems with a known optimum have in common."""

    clients: int = 20
    dimension: int = 10
    heterogeneity: float = 1.0
    """How strongly the two clients of a pair pull apart; 0 lets all agree on the minimiser."""
    data_seed: int = 0

    def __post_init__(self) -> None:
        check_count(self, "clients", self.clients)
        check_count(self, "dimension", self.dimension)
        check_range(self, "heterogeneity", self.heterogeneity, 0.0)
        check_count(self, "data_seed", self.data_seed, 0)

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


@dataclass(frozen=True, kw_only=True)
class QuadraticsOptions(TheoryOptions):
    """f_i(x) = (x - x*)' A_i (x - x*) / 2 + <g_i, x - x*>, with A_i rotated at random.

    The eigenvalues of every A_i run geometrically from `smoothness` down to smoothness /
    conditioning; the g_i of a pair cancel, so that F* = 0 at x*.  A client's own minimiser is
    x* - A_i^-1 g_i.
    """

    smoothness: float = 1.0
    conditioning: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "smoothness", self.smoothness)
        check_range(self, "conditioning", self.conditioning, 1.0)


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


def _quadratics(options: QuadraticsOptions, extras: Extras) -> Problem:
    planted = _planted(options, extras)
    build = partial(_quadratic, options, *planted)
    return _problem("quadratics", options, planted, build, (options.smoothness, 0.0), extras)


@dataclass(frozen=True, kw_only=True)
class SaturatingOptions(TheoryOptions):
    """Bounded, nowhere coercive: sums of t^2 / (1 + t^2), see `Saturating`."""

    heterogeneity: float = 0.5


def _weights(options: TheoryOptions, client: int) -> Tensor:
    """Between 1/2 and 1, and 1 in the first coordinate, so that the largest is known."""
    weights = LEAST_WEIGHT + (1 - LEAST_WEIGHT) * torch.sigmoid(options.normal("weights", client))
    weights[0] = 1.0
    return weights


def _saturate(options: SaturatingOptions, optimum: Tensor, client: int) -> Saturating:
    tilt = options.heterogeneity * options.sign(client)
    return Saturating(optimum, _weights(options, client), tilt)


def _saturating(options: SaturatingOptions, extras: Extras) -> Problem:
    planted = _planted(options, extras)
    build = partial(_saturate, options, planted.optimum)
    first = build(0)
    curvature = (first.smoothness, first.weak_convexity)
    return _problem("saturating", options, planted, _leaning(build, planted), curvature, extras)


@dataclass(frozen=True, kw_only=True)
class CosineOptions(TheoryOptions):
    """Quadratics with waves on them, see `CosineQuadratic`."""

    heterogeneity: float = 0.5
    wave: float = 1.0
    frequency: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "wave", self.wave, 0.0)
        check_positive(self, "frequency", self.frequency)


def _cosine(options: CosineOptions, optimum: Tensor, client: int) -> CosineQuadratic:
    tilt = options.heterogeneity * options.sign(client)
    weights = _weights(options, client)
    return CosineQuadratic(optimum, weights, tilt, options.wave, options.frequency)


def _cosines(options: CosineOptions, extras: Extras) -> Problem:
    planted = _planted(options, extras)
    build = partial(_cosine, options, planted.optimum)
    first = build(0)
    waves = first.smoothness - float(first.weights.max())
    curvature = (first.smoothness, max(0.0, waves - LEAST_WEIGHT))
    clients = _leaning(build, planted)
    return _problem("cosine-quadratics", options, planted, clients, curvature, extras)


@dataclass(frozen=True, kw_only=True)
class RobustOptions(TheoryOptions):
    """Regression without noise under a bounded loss, see `RobustRegression`; L = smoothness.

    `heterogeneity` moves the mean of each client's rows; all clients agree on the minimiser.
    """

    rows: int = 30
    loss: Literal["geman-mcclure", "welsch"] = "geman-mcclure"
    smoothness: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "rows", self.rows)
        check_choice(self, "loss", self.loss, ("geman-mcclure", "welsch"))
        check_positive(self, "smoothness", self.smoothness)


def _robust(options: RobustOptions, optimum: Tensor, client: int) -> RobustRegression:
    rows = options.normal("rows", client, rows=options.rows)
    rows = rows + options.heterogeneity * options.normal("mean", client)
    largest = torch.linalg.matrix_norm(rows, 2).square() / options.rows
    rows = rows * (options.smoothness / largest).sqrt()
    return RobustRegression(rows, rows @ optimum, options.loss)


def _robusts(options: RobustOptions, extras: Extras) -> Problem:
    planted = _planted(options, extras)
    build = partial(_robust, options, planted.optimum)
    curvature = (options.smoothness, options.smoothness * CONCAVITY[options.loss])
    clients = _leaning(build, planted)
    return _problem("robust-regression", options, planted, clients, curvature, extras)


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
    name: str,
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
        name=name,
    )


register(
    Entry("quadratics", QuadraticsOptions, _quadratics, "heterogeneous, strongly convex, x* known")
)
register(Entry("saturating", SaturatingOptions, _saturating, "non-convex, bounded; L, F* known"))
register(
    Entry("cosine-quadratics", CosineOptions, _cosines, "non-convex, many minima; L, F* known")
)
register(Entry("robust-regression", RobustOptions, _robusts, "non-convex robust loss; L, F* known"))
