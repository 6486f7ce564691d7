"""Losses, conversion of a user's data to tensors, and checks of data against module and loss.

Engines recognise these losses by identity and use closed-form gradients for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedadmm.core.errors import DataError


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of one score per class."""
    return nn.functional.cross_entropy(scores, targets)


def binary_cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean logistic loss of one score for two classes."""
    flat = scores.squeeze(-1)
    return nn.functional.binary_cross_entropy_with_logits(flat, targets.to(flat.dtype))


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the mean squared error."""
    return (outputs.squeeze(-1) - targets).square().mean() / 2


@dataclass(frozen=True)
class Weighted:
    """A weighted mean loss: each target is that of the sample, followed by its weight.

    Weights of mean one over a client's samples make a batch's loss an unbiased estimate of the
    client's weighted mean, and the loss over all its samples that mean itself.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    classes: bool
    """Whether the targets are numbers of classes."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean of weight times loss."""
        own, weights = targets.unbind(-1)
        own = own.long() if self.classes else own
        samples: Tensor = torch.func.vmap(self.loss)(outputs.unsqueeze(1), own.unsqueeze(1))
        return (weights * samples).mean()


def count_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the number of samples whose class is predicted correctly."""
    if outputs.shape[-1] == 1:
        return ((outputs.squeeze(-1) > 0) == (targets > 0)).sum()
    return (outputs.argmax(dim=-1) == targets).sum()


_SHARES = (binary_cross_entropy, nn.functional.binary_cross_entropy_with_logits)
"""Losses whose targets are probabilities, and which do not check this."""
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, AssertionError)
"""Exceptions of torch for tensors of the wrong shape or type."""

Samples = tuple[Tensor, Tensor]
"""Inputs and their targets."""


def as_tensor(owner: object, field: str, value: object) -> Tensor:
    """Convert an array or nested lists of numbers to a tensor."""
    if isinstance(value, Tensor):
        return value
    name = type(owner).__name__
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"its entries are {array.dtype}")
        # A copy where torch could not share the memory without a warning.
        return torch.as_tensor(np.require(array, requirements=["C", "W"]))
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{name}: {field}: got a {type(value).__name__}, expected a tensor, an array or lists "
            f"of numbers ({reason(error)})"
        ) from None


def check_fit(
    owner: object, run: Callable[[Tensor], Tensor], loss: Callable[..., Tensor], samples: Samples
) -> int:
    """Reject samples that module or loss cannot process, and return the number of scores.

    A sample is tried, and of whole-number targets those with the least and the largest one.
    """
    name, (inputs, targets) = type(owner).__name__, samples
    shown = f"{name}: inputs are samples of {_kind(inputs)}"
    classes = targets.ndim == 1 and not targets.is_floating_point() and not targets.is_complex()
    ordered = targets.byte() if targets.dtype == torch.bool else targets
    extremes = [int(ordered.argmin()), int(ordered.argmax())] if classes else [0]
    try:
        outputs = run(inputs[extremes])
    except REFUSALS as error:
        raise DataError(f"{shown}, expected what the module takes ({reason(error)})") from error
    shape = outputs.shape[1:] if isinstance(outputs, Tensor) else ()
    scores = shape[0] if classes and len(shape) == 1 else 1
    check_classes(owner, loss, targets, scores)
    try:
        found = loss(outputs, targets[extremes])
    except REFUSALS as error:
        raise DataError(
            f"{name}: targets: got {_kind(targets)} each, expected what the loss takes with "
            f"outputs of {_kind(outputs)} ({reason(error)})"
        ) from error
    if not isinstance(found, Tensor) or found.ndim or found.is_complex():
        given = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        given = "a complex number" if given == "shape ()" else given
        raise DataError(
            f"{name}: loss returns {given}, expected one number, the mean over the samples"
        )
    return scores


def check_classes(owner: object, loss: Callable[..., Tensor], targets: Tensor, scores: int) -> None:
    """Reject classes beyond the number of scores, or that the loss does not support."""
    name = type(owner).__name__
    if scores > 1:
        _check_range(name, targets, scores - 1, f"the module has {scores} outputs")
    if loss in _SHARES:
        _check_range(name, targets, 1, "the loss is that of two classes")


def _check_range(name: str, targets: Tensor, most: int, why: str) -> None:
    wrong = targets[~((targets >= 0) & (targets <= most))]
    if len(wrong):
        raise DataError(
            f"{name}: targets hold {wrong[0].item():g}, expected 0 … {most}, because {why}"
        )


def _kind(tensor: object) -> str:
    """Return the shape and the type of one sample."""
    if not isinstance(tensor, Tensor):
        return f"the kind {type(tensor).__name__}"
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"shape {tuple(tensor.shape[1:])} and type {kind}"


def reason(error: Exception) -> str:
    """Return the first line of an error's message."""
    return (str(error) or type(error).__name__).strip().splitlines()[0]
