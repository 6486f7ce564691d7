"""The largest curvature of a client's objective: power iteration on Hessian-vector products."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedadmm.core.objectives.model import ModelObjective
from fedadmm.core.protocols import Objective
from fedadmm.core.rng import Key, generator

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
