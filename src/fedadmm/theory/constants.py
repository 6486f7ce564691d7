"""Estimates of the constants in the theorems, from a subset of the clients and their samples."""

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

PROBE_STEPS = 10
"""Number of gradient steps before the second estimate of the curvature, which tends to grow."""
_CONVEX_LOSSES = (losses.cross_entropy, losses.binary_cross_entropy, losses.half_squared_error)


class Constants(NamedTuple):
    """Estimated constants of a problem; each is a lower bound of the constant over all points.

    Gradients are compared at the initial point and at the points that single clients reach after a
    few gradient steps from it.
    """

    clients: list[int]
    """The sampled clients."""
    client_smoothness: list[float]
    """The largest estimated curvature of each sampled client."""
    known_smoothness: float | None
    """L if the problem declares it, otherwise None."""
    convexity: float | None
    """Modulus of strong convexity; 0 if only convex, None if not known to be convex."""
    start_gradient: float
    """mean ||grad f_i||² at the initial point, G0 of the bounds."""
    gap: float
    """F - F* at the initial point; an unknown F* is taken as 0."""
    dissimilarity: float
    """B of Gong et al. (9): sum ||grad f_i||² <= B² ||sum grad f_i||² over all n clients."""
    gradient_bound: float
    """G of Gong et al. (10): ||grad f_i|| <= G."""

    @property
    def smoothness(self) -> float:
        """L: the declared smoothness, or the largest estimate if none is declared."""
        return self.known_smoothness or max(self.client_smoothness)

    @property
    def smoothness_spread(self) -> float:
        """Standard deviation of the smoothness over the clients; 0 if it is declared."""
        if self.known_smoothness is not None or len(self.client_smoothness) < 2:
            return 0.0
        return statistics.stdev(self.client_smoothness)


def estimate_constants(
    problem: Problem,
    initial: Tensor,
    *,
    clients: int = 6,
    samples: int = 64,
    seed: Key = 0,
    on_progress: Callable[[str, int, int], None] = lambda step, done, total: None,
) -> Constants:
    """Estimate the constants of a problem around its initial point.

    Args:
        problem: The clients' objectives.
        initial: The initial vector, which also fixes the precision.
        clients: Number of clients that are sampled.
        samples: Number of samples per client for the estimate of the curvature.
        seed: Seed of the choice of clients and samples.
        on_progress: Called with the current step, the number of steps done and their total.

    Returns:
        The estimates, which hold at the evaluated points only.

    Example:
        >>> from fedadmm.data import problems
        >>> problem = problems.load("quadratics", clients=4)
        >>> found = estimate_constants(problem, problem.start(0))
        >>> found.convexity is not None and found.smoothness >= found.convexity
        True
    """
    check("estimate_constants", "clients", clients, Count)
    check("estimate_constants", "samples", samples, Count)
    count = min(clients, problem.num_clients)
    rng = numpy_generator(derive(seed, "advise/clients"))
    chosen = sorted(int(i) for i in rng.choice(problem.num_clients, count, replace=False))
    converted = problem.to(initial.dtype, initial.device)
    objectives = [converted.clients[client] for client in chosen]
    curvatures, points, values = [], [initial], []
    with torch.no_grad():
        for done, (client, objective) in enumerate(zip(chosen, objectives, strict=True)):
            on_progress(f"curvature of client {client}", done, 2 * count + 1)
            values.append(float(objective.value(initial)))
            key = derive(seed, "advise", client)
            curvature, point = _curvature_around(objective, initial, samples, key)
            curvatures.append(curvature)
            points.append(point)
        gradients = []
        for done, point in enumerate(points, count):
            on_progress("gradients", done, 2 * count + 1)
            gradients.append(_gradient_norms(objectives, point))
    moduli = [modulus for modulus in map(_convexity, objectives) if modulus is not None]
    value = sum(values) / count + float(problem.regularizer.value(initial))
    return Constants(
        chosen,
        curvatures,
        problem.facts.smoothness,
        min(moduli) if len(moduli) == count else None,
        gradients[0].mean_square,
        max(0.0, value - (problem.facts.infimum or 0.0)),
        math.sqrt(max(norms.ratio for norms in gradients) / problem.num_clients),
        max(norms.largest for norms in gradients),
    )


class _GradientNorms(NamedTuple):
    """Norms of the clients' gradients at one point."""

    mean_square: float
    """mean ||grad f_i||²."""
    ratio: float
    """mean ||grad f_i||² / ||mean grad f_i||²; infinite at a stationary point of the mean."""
    largest: float
    """max ||grad f_i||."""


def _gradient_norms(objectives: Sequence[Objective], point: Tensor) -> _GradientNorms:
    total, squares = torch.zeros_like(point), []
    for objective in objectives:
        gradient = objective.evaluation_gradient(point)
        total += gradient
        squares.append(float(gradient.square().sum()))
    count = len(objectives)
    mean, of_mean = sum(squares) / count, float((total / count).square().sum())
    ratio = mean / of_mean if of_mean > 0.0 else math.inf
    return _GradientNorms(mean, ratio, math.sqrt(max(squares)))


def _curvature_around(
    objective: Objective, start: Tensor, samples: int, key: Key
) -> tuple[float, Tensor]:
    """Estimate the curvature at the start and after a few gradient steps of length 1/L.

    Returns:
        The larger of both estimates, and the point after the steps.
    """
    chosen, size = None, objective.num_samples
    if size > samples:
        chosen = torch.randperm(size, generator=generator(derive(key, "rows")))[:samples]
    first_product = hessian_product(objective, start, chosen)
    first = largest_curvature(first_product, start, derive(key, "first"))
    if first == 0.0:
        return 0.0, start
    point = start.clone()
    for _ in range(PROBE_STEPS):
        point = point - objective.gradient(point, chosen) / first
    product = hessian_product(objective, point, chosen)
    return max(first, largest_curvature(product, point, derive(key, "second"))), point


def _convexity(objective: Any) -> float | None:
    """Return the modulus of strong convexity known from the class of an objective, or None.

    It cannot be estimated, because the curvature at some points is no bound for other points.
    """
    if isinstance(objective, LeastSquares | LogisticRegression):
        return float(objective.ridge)
    if isinstance(objective, Quadratic):
        least = float(torch.linalg.eigvalsh(objective.A.double())[0])
        return least if least >= 0.0 else None
    if isinstance(objective, ModelObjective):
        layers = [
            layer for layer in objective.flat.module.modules() if list(layer.parameters(False))
        ]
        linear = len(layers) == 1 and isinstance(layers[0], nn.Linear)
        return 0.0 if linear and objective.loss in _CONVEX_LOSSES else None
    return None


Product = Callable[[Tensor], Tensor]


def hessian_product(objective: Objective, params: Tensor, rows: Tensor | None) -> Product:
    """Return the map v -> H v, where H is the Hessian at `params` over the given samples.

    Models use automatic differentiation. Closed-form objectives provide gradients only; their
    central differences are exact for quadratics up to rounding.
    """
    if isinstance(objective, ModelObjective):
        return _differentiated(objective, params, rows)

    def product(vector: Tensor) -> Tensor:
        length = float(torch.linalg.vector_norm(vector))
        root: float = float(torch.finfo(params.dtype).eps) ** (1 / 3)
        step = root * max(1.0, float(torch.linalg.vector_norm(params))) / length
        ahead = objective.gradient(params + step * vector, rows).clone()
        return (ahead - objective.gradient(params - step * vector, rows)) / (2 * step)

    return product


def _differentiated(objective: ModelObjective, params: Tensor, rows: Tensor | None) -> Product:
    """Return v -> H v of a model in evaluation mode, from one graph of the gradient."""
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
            terms = ((g * v).sum() for g, v in zip(gradients, parts, strict=True))
            inner = sum(terms, torch.zeros(()))
        products = torch.autograd.grad(
            inner, flat.parameters, retain_graph=True, materialize_grads=True
        )
        return torch.cat([part.reshape(-1) for part in products])

    return product


def largest_curvature(
    product: Product, like: Tensor, key: Key, iterations: int = 12, tolerance: float = 0.02
) -> float:
    """Return the largest absolute eigenvalue of a Hessian, by power iteration.

    Args:
        product: The map v -> H v.
        like: A vector of the right length, precision and device.
        key: The seed of the initial vector.
        iterations: The largest number of products.
        tolerance: The relative difference of two estimates at which the iteration stops.
    """
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
