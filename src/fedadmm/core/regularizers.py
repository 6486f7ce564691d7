"""Convex regularizers g with their proximal operators.

prox_{t g}(v) = argmin_u g(u) + ||u - v||^2 / (2t) is computed in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedadmm.core.contracts import Regularizer
from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Count, NotNegative, Positive, part


def _indicator(inside: Tensor, like: Tensor) -> Tensor:
    return like.new_zeros(()) if bool(inside.all()) else like.new_full((), math.inf)


@part("regularizer", "zero")
class Zero(Regularizer):
    """No regularizer: g = 0.

    Example:
        >>> import torch, fedadmm as fa
        >>> fa.regularizers.Zero().prox(torch.tensor([3.0, 4.0]), step=1.0)
        tensor([3., 4.])
    """

    is_zero = True

    def value(self, params: Tensor) -> Tensor:
        return params.new_zeros(())

    def prox(self, params: Tensor, step: float) -> Tensor:
        return params


@part("regularizer", "l1")
class L1(Regularizer):
    """Lasso penalty g(x) = lam ||x||_1, whose prox is soft thresholding at step * lam.

    Args:
        lam: Weight of the norm, not negative.

    Example:
        >>> import torch, fedadmm as fa
        >>> fa.L1(1.0).prox(torch.tensor([3.0, -2.0, 0.5]), step=1.0)
        tensor([ 2., -1.,  0.])
    """

    lam: NotNegative

    def value(self, params: Tensor) -> Tensor:
        return self.lam * params.abs().sum()

    def prox(self, params: Tensor, step: float) -> Tensor:
        return torch.nn.functional.softshrink(params, step * self.lam)


@part("regularizer", "l2")
class L2(Regularizer):
    """Euclidean norm g(x) = lam ||x||_2, whose prox shortens the vector by step * lam.

    Args:
        lam: Weight of the norm, not negative.

    Example:
        >>> import torch, fedadmm as fa
        >>> fa.regularizers.L2(2.5).prox(torch.tensor([3.0, 4.0]), step=1.0)
        tensor([1.5000, 2.0000])
    """

    lam: NotNegative

    def value(self, params: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(params)
        return self.lam * length

    def prox(self, params: Tensor, step: float) -> Tensor:
        length = float(torch.linalg.vector_norm(params))
        return params * max(0.0, 1 - step * self.lam / length) if length else params


@part("regularizer", "linf")
class LInf(Regularizer):
    """Maximum norm g(x) = lam ||x||_inf, whose prox clips the largest entries.

    By Moreau's identity the prox is v minus the projection of v onto the l1 ball of radius
    step * lam, so that the absolute entries decrease by step * lam in total.

    Args:
        lam: Weight of the norm, not negative.

    Example:
        >>> import torch, fedadmm as fa
        >>> fa.regularizers.LInf(1.0).prox(torch.tensor([3.0, 1.0]), step=1.0)
        tensor([2., 1.])
    """

    lam: NotNegative

    def value(self, params: Tensor) -> Tensor:
        return self.lam * params.abs().max()

    def prox(self, params: Tensor, step: float) -> Tensor:
        sizes, radius = params.abs(), step * self.lam
        if float(sizes.sum()) <= radius:
            return torch.zeros_like(params)
        falling = sizes.sort(descending=True).values
        counts = torch.arange(1, params.numel() + 1, device=params.device)
        levels = (falling.cumsum(0) - radius) / counts
        level = levels[int((falling > levels).sum()) - 1]
        return params.clamp(-level, level)


@part("regularizer", "squared-l2")
class SquaredL2(Regularizer):
    """Ridge penalty g(x) = lam ||x||^2 / 2, whose prox scales by 1 / (1 + step * lam).

    Args:
        lam: Weight of the squared norm, not negative.

    Example:
        >>> import torch, fedadmm as fa
        >>> fa.regularizers.SquaredL2(1.0).prox(torch.tensor([3.0, 4.0]), step=1.0)
        tensor([1.5000, 2.0000])
    """

    lam: NotNegative

    def value(self, params: Tensor) -> Tensor:
        return self.lam * params.square().sum() / 2

    def prox(self, params: Tensor, step: float) -> Tensor:
        return params / (1 + step * self.lam)


@part("regularizer", "elastic-net")
class ElasticNet(Regularizer):
    """Elastic net g(x) = l1 ||x||_1 + l2 ||x||^2 / 2, whose prox thresholds and then scales.

    Args:
        l1: Weight of the l1 norm, not negative.
        l2: Weight of the squared norm, not negative.

    Example:
        >>> import torch, fedadmm as fa
        >>> fa.regularizers.ElasticNet(l1=1.0, l2=1.0).prox(torch.tensor([3.0, 1.0]), step=1.0)
        tensor([1., 0.])
    """

    l1: NotNegative
    l2: NotNegative

    def value(self, params: Tensor) -> Tensor:
        return L1(self.l1).value(params) + SquaredL2(self.l2).value(params)

    def prox(self, params: Tensor, step: float) -> Tensor:
        return SquaredL2(self.l2).prox(L1(self.l1).prox(params, step), step)


@part("regularizer", "group-lasso")
class GroupLasso(Regularizer):
    """Group lasso g(x) = lam sum_G sqrt(|G|) ||x_G|| over consecutive blocks G.

    Args:
        lam: Weight, not negative.
        sizes: Numbers of entries of the blocks, which add up to the number of parameters.

    Example:
        >>> import torch, fedadmm as fa
        >>> g = fa.regularizers.GroupLasso(lam=1.0, sizes=[1, 2])
        >>> g.prox(torch.tensor([4.0, 0.5, 0.5]), step=1.0)
        tensor([3., 0., 0.])
    """

    lam: NotNegative
    sizes: Sequence[Count]

    def _groups(self, params: Tensor) -> Tensor:
        if sum(self.sizes) != params.numel():
            raise ParameterError(
                f"GroupLasso.sizes: got a sum of {sum(self.sizes)}, expected the number of "
                f"parameters, {params.numel()}."
            )
        sizes = torch.tensor(tuple(self.sizes), device=params.device)
        return torch.repeat_interleave(torch.arange(len(sizes), device=params.device), sizes)

    def _norms(self, params: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        groups = self._groups(params)
        squares = params.new_zeros(len(self.sizes)).index_add_(0, groups, params.square())
        roots = params.new_tensor([math.sqrt(size) for size in self.sizes])
        return groups, squares.sqrt(), roots

    def value(self, params: Tensor) -> Tensor:
        _, norms, roots = self._norms(params)
        return self.lam * (roots * norms).sum()

    def prox(self, params: Tensor, step: float) -> Tensor:
        groups, norms, roots = self._norms(params)
        keep = (1 - step * self.lam * roots / norms.clamp_min(1e-300)).clamp_min(0)
        return params * torch.nan_to_num(keep, nan=0.0)[groups]


@part("regularizer", "box")
class Box(Regularizer):
    """Indicator of the box low <= x <= high, whose prox clips.

    Args:
        low: Lower bound of every entry.
        high: Upper bound of every entry, at least `low`.

    Example:
        >>> import torch, fedadmm as fa
        >>> fa.regularizers.Box(-1.0, 1.0).prox(torch.tensor([3.0, 0.0, -2.0]), step=1.0)
        tensor([ 1.,  0., -1.])
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if self.high < self.low:
            raise ParameterError(f"Box.high: got {self.high}, expected at least {self.low:g}.")

    def value(self, params: Tensor) -> Tensor:
        return _indicator((params >= self.low) & (params <= self.high), params)

    def prox(self, params: Tensor, step: float) -> Tensor:
        return params.clamp(self.low, self.high)


@part("regularizer", "non-negative")
class NonNegative(Regularizer):
    """Indicator of the non-negative vectors, whose prox clips at zero.

    Example:
        >>> import torch, fedadmm as fa
        >>> fa.regularizers.NonNegative().prox(torch.tensor([3.0, -2.0]), step=1.0)
        tensor([3., 0.])
    """

    def value(self, params: Tensor) -> Tensor:
        return _indicator(params >= 0, params)

    def prox(self, params: Tensor, step: float) -> Tensor:
        return params.clamp_min(0)


@part("regularizer", "l2-ball")
class L2Ball(Regularizer):
    """Indicator of the Euclidean ball ||x|| <= radius, whose prox projects.

    Args:
        radius: Radius of the ball, positive.

    Example:
        >>> import torch, fedadmm as fa
        >>> fa.regularizers.L2Ball(2.5).prox(torch.tensor([3.0, 4.0]), step=1.0)
        tensor([1.5000, 2.0000])
    """

    radius: Positive

    def value(self, params: Tensor) -> Tensor:
        slack = 1 + 16 * torch.finfo(params.dtype).eps
        return _indicator(torch.linalg.vector_norm(params) <= self.radius * slack, params)

    def prox(self, params: Tensor, step: float) -> Tensor:
        length = torch.linalg.vector_norm(params)
        projected: Tensor = params * (self.radius / length.clamp_min(self.radius))
        return projected


@dataclass(frozen=True)
class PyProximal(Regularizer):
    """An operator of the package pyproximal as g; needs the extra `prox`.

    Args:
        operator: A `pyproximal.ProxOperator` with a value and a prox.

    Raises:
        ParameterError: The operator has no value or no prox.
    """

    operator: Any

    def __post_init__(self) -> None:
        for method in ("prox", "__call__"):
            if not callable(getattr(self.operator, method, None)):
                raise ParameterError(
                    f"PyProximal.operator: got {self.operator!r}, expected a "
                    "pyproximal.ProxOperator with a value and a prox."
                )

    def value(self, params: Tensor) -> Tensor:
        value = self.operator(params.detach().cpu().numpy())
        if isinstance(value, bool | np.bool_):
            value = 0.0 if value else math.inf
        return params.new_tensor(float(value))

    def prox(self, params: Tensor, step: float) -> Tensor:
        result = self.operator.prox(params.detach().cpu().numpy(), step)
        return torch.as_tensor(result).to(params)
