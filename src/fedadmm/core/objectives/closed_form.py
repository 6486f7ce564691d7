"""Local objectives f_i on flat vectors in closed form."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from fedadmm.core.errors import DataError, ParameterError
from fedadmm.core.objectives import Objective
from fedadmm.core.objectives.losses import as_tensor, count_correct


@runtime_checkable
class QuadraticObjective(Protocol):
    """An objective of the form x'Ax/2 - b'x + const, which `ExactSolver` can solve."""

    def hessian(self) -> Tensor:
        """A, symmetric."""

    def offset(self) -> Tensor:
        """B."""


def _is(tensor: Tensor, dtype: torch.dtype, device: torch.device | str) -> bool:
    return tensor.dtype == dtype and tensor.device == torch.device(device)


@dataclass(frozen=True, eq=False)
class Quadratic(Objective):
    """Quadratic objective f(x) = x'Ax/2 - b'x + constant.

    It has one sample: a mini-batch of a quadratic is the quadratic.

    Args:
        A: Symmetric matrix (D, D).
        b: Vector (D,).
        constant: Added to the value.  Default 0.

    Raises:
        DataError: The shapes differ, an entry is not finite, or A is not symmetric.

    Example:
        >>> import torch, fedadmm as fa
        >>> f = fa.Quadratic(torch.tensor([[2.0]]), torch.tensor([6.0]))
        >>> f.value(torch.tensor([3.0])), f.gradient(torch.tensor([3.0]))
        (tensor(-9.), tensor([0.]))
    """

    num_samples: ClassVar[int] = 1

    A: Tensor
    b: Tensor
    constant: float = 0.0

    def __post_init__(self) -> None:
        for name in ("A", "b"):
            object.__setattr__(self, name, as_tensor(self, name, getattr(self, name)))
        n = self.b.numel()
        if self.b.ndim != 1 or tuple(self.A.shape) != (n, n):
            raise DataError(
                f"Quadratic: A has shape {tuple(self.A.shape)} and b {tuple(self.b.shape)}, "
                "but A must be (D, D) and b (D,)"
            )
        if not bool(self.A.isfinite().all() and self.b.isfinite().all()):
            raise DataError(
                "Quadratic: A or b has entries that are not finite, expected finite ones"
            )
        if not torch.allclose(self.A, self.A.T, rtol=1e-6, atol=1e-8):
            raise DataError(
                "Quadratic: A: got a matrix that is not symmetric, expected a symmetric one."
            )

    @property
    def num_parameters(self) -> int:
        return self.b.numel()

    def value(self, params: Tensor) -> Tensor:
        return params @ (self.A @ params) / 2 - self.b @ params + self.constant

    def gradient(self, params: Tensor, samples: Tensor | None = None) -> Tensor:
        return self.A @ params - self.b

    def work(self, samples: int) -> float:
        return float(self.A.numel())

    def hessian(self) -> Tensor:
        return self.A

    def offset(self) -> Tensor:
        return self.b

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Quadratic:
        if _is(self.b, dtype, device):
            return self
        return Quadratic(self.A.to(device, dtype), self.b.to(device, dtype), self.constant)


@dataclass(frozen=True, eq=False)
class FeatureObjective(Objective):
    """Shared by models of <sample, x>: a feature matrix, and a target per sample."""

    features: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        for field in ("features", "targets"):
            object.__setattr__(self, field, as_tensor(self, field, getattr(self, field)))
        name = type(self).__name__
        if self.features.ndim != 2 or self.targets.shape != self.features.shape[:1]:
            raise DataError(
                f"{name}: features have shape {tuple(self.features.shape)} and targets "
                f"{tuple(self.targets.shape)}, expected (m, D) and (m,)"
            )
        if self.targets.numel() == 0:
            raise DataError(f"{name}: no samples, but at least one is needed")

    @property
    def num_parameters(self) -> int:
        return self.features.shape[1]

    @property
    def num_samples(self) -> int:
        return self.features.shape[0]

    def _batch(self, samples: Tensor | None) -> tuple[Tensor, Tensor]:
        if samples is None:
            return self.features, self.targets
        return self.features[samples], self.targets[samples]


@dataclass(frozen=True, eq=False)
class _Linear(FeatureObjective):
    """Shared by linear models: the ridge term, and gradients of single samples."""

    ridge: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ridge < 0:
            name = type(self).__name__
            raise ParameterError(f"{name}: ridge: got {self.ridge}, expected >= 0")

    @abstractmethod
    def _errors(self, x: Tensor, y: Tensor, params: Tensor) -> Tensor:
        """The derivative of every sample's loss by <sample, params>."""

    def gradient(self, params: Tensor, samples: Tensor | None = None) -> Tensor:
        x, y = self._batch(samples)
        return x.T @ self._errors(x, y, params) / y.numel() + self.ridge * params

    def sample_gradients_unavailable(self, params: Tensor) -> None:
        """Never."""

    def sample_gradients(self, params: Tensor, samples: Tensor) -> Tensor:
        x, y = self._batch(samples)
        return x * self._errors(x, y, params).unsqueeze(-1) + self.ridge * params

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Self:
        if _is(self.features, dtype, device):
            return self
        targets = self.targets.to(device)
        if not self.has_classes:
            targets = targets.to(dtype)
        return replace(self, features=self.features.to(device, dtype), targets=targets)


@dataclass(frozen=True, eq=False)
class LeastSquares(_Linear):
    """Least squares f(x) = ||Xx - y||^2 / (2m) + ridge ||x||^2 / 2 over m samples.

    Args:
        features: Matrix X of shape (m, D).
        targets: Vector y of shape (m,).
        ridge: Weight of the squared norm, not negative.  Default 0.

    Raises:
        DataError: The shapes differ, or there are no samples.

    Example:
        >>> import torch, fedadmm as fa
        >>> f = fa.LeastSquares(torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 4.0]))
        >>> f.value(torch.zeros(1)), f.gradient(torch.tensor([2.0]))
        (tensor(5.), tensor([0.]))
    """

    def value(self, params: Tensor) -> Tensor:
        residual = self.features @ params - self.targets
        return residual.square().mean() / 2 + self.ridge * params.square().sum() / 2

    def _errors(self, x: Tensor, y: Tensor, params: Tensor) -> Tensor:
        return x @ params - y

    def hessian(self) -> Tensor:
        identity = torch.eye(self.num_parameters).to(self.features)
        return self.features.T @ self.features / self.num_samples + self.ridge * identity

    def offset(self) -> Tensor:
        return self.features.T @ self.targets / self.num_samples


@dataclass(frozen=True, eq=False)
class LogisticRegression(_Linear):
    """Binary logistic regression f(x) = mean log(1 + exp(-s_j <X_j, x>)) + ridge ||x||^2 / 2.

    Args:
        features: Matrix X of shape (m, D).
        targets: Classes y_j of shape (m,), 0 or 1; s_j = 2 y_j - 1.
        ridge: Weight of the squared norm, not negative.  Default 0.

    Raises:
        DataError: The shapes differ, there are no samples, or a target is not 0 or 1.

    Example:
        >>> import torch, fedadmm as fa
        >>> f = fa.LogisticRegression(torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 0]))
        >>> f.gradient(torch.zeros(1))
        tensor([-0.5000])
        >>> loss, correct = f.value_and_correct(torch.ones(1))
        >>> correct
        2
    """

    has_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not bool(((self.targets == 0) | (self.targets == 1)).all()):
            raise DataError("LogisticRegression: targets must be 0 or 1")

    def value(self, params: Tensor) -> Tensor:
        margin = (self.features @ params) * (2 * self.targets.to(params.dtype) - 1)
        return nn.functional.softplus(-margin).mean() + self.ridge * params.square().sum() / 2

    def value_and_correct(self, params: Tensor) -> tuple[Tensor, int]:
        correct = count_correct((self.features @ params).unsqueeze(-1), self.targets)
        return self.value(params), int(correct)

    def _errors(self, x: Tensor, y: Tensor, params: Tensor) -> Tensor:
        return torch.sigmoid(x @ params) - y.to(params.dtype)
