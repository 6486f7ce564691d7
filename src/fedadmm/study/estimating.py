"""The constants that a theorem needs, estimated on a sample of clients and rows.

The largest curvature of a client's objective comes from a power iteration on Hessian-vector
products.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedadmm.core.objectives import Objective, losses
from fedadmm.core.objectives.closed_form import LeastSquares, LogisticRegression, Quadratic
from fedadmm.core.objectives.model import ModelObjective
from fedadmm.core.problem import Problem
from fedadmm.core.rng import Key, derive, generator, numpy_generator
from fedadmm.core.validation import Count, check
from fedadmm.study.formatting import OnProgress, ignore_progress

PROBE_STEPS = 10
"""Gradient steps after which the curvature is looked at a second time: it tends to grow."""
BATCHES = 4
"""Mini-batches a client that the noise is estimated from."""


class Estimate(NamedTuple):
    """Estimates from clients and rows that were drawn at random."""

    clients: list[int]
    smoothness: list[float]
    """The largest curvature found at each of these clients, at the start and a few steps on."""
    known_smoothness: float | None
    """L when the problem says so."""
    convexity: float | None
    """Strong convexity; 0 when convex only, None when not known to be convex."""
    heterogeneity: float
    """mean ||grad f_i||² / ||mean grad f_i||² at the start: 1 when all clients agree."""
    start_gradient: float
    """mean ||grad f_i||² at the start."""
    mean_gradient: float
    """||mean grad f_i||² at the start."""
    batch_noise: float
    """E||gradient of a mini-batch - gradient||² at the start."""
    gap: float
    """F - F* at the start; with F* = 0 where it is not known."""
    dissimilarity: float
    """The largest B of Gong et al. (9) met: sum ||grad f_i||² = B² ||sum grad f_i||² over all n
    clients, at one point.  Points are the start and where each client is a few steps on."""
    gradient_bound: float
    """The largest ||grad f_i|| met at these points: G of Gong et al. (10) is at least that."""

    @property
    def largest(self) -> float:
        """What is known, or else the largest that was found."""
        return self.known_smoothness or max(self.smoothness)

    @property
    def spread(self) -> float:
        """How far L may lie above: the standard deviation over the clients; 0 when it is known."""
        if self.known_smoothness is not None or len(self.smoothness) < 2:
            return 0.0
        return statistics.stdev(self.smoothness)


def estimate(
    problem: Problem,
    initial: Tensor,
    *,
    clients: int = 6,
    rows: int = 64,
    batch_size: int | None = None,
    seed: Key = 0,
    on_progress: OnProgress = ignore_progress,
) -> Estimate:
    """Look at some clients of a problem around its start.

    Args:
        problem: the clients' objectives.
        initial: the start vector, which also fixes the precision.
        clients: how many clients are looked at.
        rows: how many rows of each the curvature is taken over.
        batch_size: of the mini-batches whose noise is wanted; None for full gradients.
        seed: which clients and rows.
        on_progress: called with how far it is.
    """
    check("estimate", "clients", clients, Count)
    check("estimate", "rows", rows, Count)
    count = min(clients, problem.num_clients)
    draws = numpy_generator(derive(seed, "advise/clients"))
    chosen = sorted(int(i) for i in draws.choice(problem.num_clients, count, replace=False))
    converted = problem.to(initial.dtype, initial.device)
    curvatures, points, noises, values = [], [initial], [], []
    with torch.no_grad():
        for done, client in enumerate(chosen):
            on_progress(f"curvature of client {client}", done, 2 * count + 1)
            objective, key = converted.clients[client], derive(seed, "advise", client)
            values.append(float(objective.value(initial)))
            curvature, point = _curvature(objective, initial, rows, key)
            curvatures.append(curvature)
            points.append(point)
            noises.append(_noise(objective, initial, batch_size, key))
        objectives = [converted.clients[client] for client in chosen]
        slopes = []
        for done, point in enumerate(points, count):
            on_progress("gradients", done, 2 * count + 1)
            slopes.append(_slopes(objectives, point))
    average, together = slopes[0].average, slopes[0].together
    convexities = map(_convexity, objectives)
    known = [value for value in convexities if value is not None]
    value = sum(values) / count + float(problem.regularizer.value(initial))
    return Estimate(
        chosen,
        curvatures,
        problem.facts.smoothness,
        min(known) if len(known) == count else None,
        slopes[0].heterogeneity,
        average,
        together,
        sum(noises) / count,
        max(0.0, value - (problem.facts.infimum or 0.0)),
        math.sqrt(max(found.heterogeneity for found in slopes) / problem.num_clients),
        max(found.steepest for found in slopes),
    )


class _Slopes(NamedTuple):
    """The clients' gradients at one point."""

    average: float
    """mean ||grad f_i||²."""
    together: float
    """||mean grad f_i||²."""
    steepest: float
    """max ||grad f_i||."""

    @property
    def heterogeneity(self) -> float:
        """mean ||grad f_i||² / ||mean grad f_i||²; infinite at a stationary point of the mean."""
        return self.average / self.together if self.together > 0.0 else math.inf


def _slopes(objectives: Sequence[Objective], point: Tensor) -> _Slopes:
    total, squares = torch.zeros_like(point), []
    for objective in objectives:
        gradient = objective.evaluation_gradient(point)
        total += gradient
        squares.append(float(gradient.square().sum()))
    count = len(objectives)
    together = float((total / count).square().sum())
    return _Slopes(sum(squares) / count, together, math.sqrt(max(squares)))


def _curvature(objective: Objective, start: Tensor, rows: int, key: Key) -> tuple[float, Tensor]:
    """At the start, and after a few gradient steps of length 1/L from it; and where that is."""
    sample, size = None, objective.num_samples
    if size > rows:
        sample = torch.randperm(size, generator=generator(derive(key, "rows")))[:rows]
    first = _largest(objective, start, sample, derive(key, "first"))
    if first == 0.0:
        return 0.0, start
    point = start.clone()
    for _ in range(PROBE_STEPS):
        point = point - objective.gradient(point, sample) / first
    return max(first, _largest(objective, point, sample, derive(key, "second"))), point


def _largest(objective: Objective, point: Tensor, sample: Tensor | None, key: Key) -> float:
    return largest_curvature(hessian_product(objective, point, sample), point, key)


def _noise(objective: Objective, start: Tensor, batch_size: int | None, key: Key) -> float:
    size = objective.num_samples
    if batch_size is None or batch_size >= size:
        return 0.0
    full = objective.gradient(start).clone()
    total = 0.0
    for batch in range(BATCHES):
        order = torch.randperm(size, generator=generator(derive(key, "batch", batch)))
        total += float((objective.gradient(start, order[:batch_size]) - full).square().sum())
    return total / BATCHES


def _convexity(objective: Any) -> float | None:
    """From the kind of objective; a curvature at one point proves nothing about others."""
    if isinstance(objective, LeastSquares | LogisticRegression):
        return float(objective.ridge)
    if isinstance(objective, Quadratic):
        least = float(torch.linalg.eigvalsh(objective.A.double())[0])
        return least if least >= 0.0 else None
    if isinstance(objective, ModelObjective):
        layers = [part for part in objective.flat.module.modules() if list(part.parameters(False))]
        linear = len(layers) == 1 and isinstance(layers[0], nn.Linear)
        return 0.0 if linear and objective.loss in _CONVEX_LOSSES else None
    return None


_CONVEX_LOSSES = (losses.cross_entropy, losses.binary_cross_entropy, losses.half_squared_error)


Product = Callable[[Tensor], Tensor]


def hessian_product(objective: Objective, params: Tensor, rows: Tensor | None) -> Product:
    """v -> H v at `params` over some rows: by automatic differentiation for models.

    Closed-form objectives have gradients only; central differences of those are exact for
    quadratics up to rounding.
    """
    if isinstance(objective, ModelObjective):
        return _automatic(objective, params, rows)

    def product(vector: Tensor) -> Tensor:
        length = float(torch.linalg.vector_norm(vector))
        root: float = float(torch.finfo(params.dtype).eps) ** (1 / 3)
        step = root * max(1.0, float(torch.linalg.vector_norm(params))) / length
        ahead = objective.gradient(params + step * vector, rows).clone()
        return (ahead - objective.gradient(params - step * vector, rows)) / (2 * step)

    return product


def _automatic(objective: ModelObjective, params: Tensor, rows: Tensor | None) -> Product:
    """One graph of the gradient, in evaluation mode, differentiated for every vector."""
    flat = objective.flat
    flat.load(params)
    flat.module.eval()
    chosen = slice(None) if rows is None else rows
    inputs, targets = objective.prepared(objective.inputs[chosen]), objective.targets[chosen]
    with torch.enable_grad():
        loss = objective.loss(flat.module(inputs), targets)
        gradients = torch.autograd.grad(
            loss, flat.parameters, create_graph=True, materialize_grads=True
        )

    def product(vector: Tensor) -> Tensor:
        parts = list(flat.views(vector).values())
        with torch.enable_grad():
            inner = sum(
                ((g * v).sum() for g, v in zip(gradients, parts, strict=True)), torch.zeros(())
            )
        products = torch.autograd.grad(
            inner, flat.parameters, retain_graph=True, materialize_grads=True
        )
        return torch.cat([part.reshape(-1) for part in products])

    return product


def largest_curvature(
    product: Product, like: Tensor, key: Key, iterations: int = 12, tolerance: float = 0.02
) -> float:
    """The largest absolute eigenvalue; it ends when two estimates agree to `tolerance`."""
    vector = torch.randn(like.shape, generator=generator(key), dtype=torch.float64).to(like)
    vector /= torch.linalg.vector_norm(vector)
    found = 0.0
    for _ in range(iterations):
        image = product(vector)
        before, found = found, float(torch.linalg.vector_norm(image))
        if found == 0.0 or abs(found - before) <= tolerance * found:
            break
        vector = image / found
    return found
