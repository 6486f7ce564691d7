"""The losses of the house: means over the rows they are given; and what a right answer is.

The losses have names, so that engines can recognise them and use closed-form gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of one score a class."""
    return nn.functional.cross_entropy(scores, targets)


def binary_cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """The mean logistic loss of one score for two classes."""
    flat = scores.squeeze(-1)
    return nn.functional.binary_cross_entropy_with_logits(flat, targets.to(flat.dtype))


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the mean squared error."""
    return (outputs.squeeze(-1) - targets).square().mean() / 2


@dataclass(frozen=True)
class Weighted:
    """A mean loss over rows that count differently: a target is the row's own, then its weight.

    Weights of mean one over a client's rows make a batch's loss an unbiased estimate of the
    client's weighted mean, and the loss over all its rows that mean itself.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    classes: bool
    """Whether the targets are numbers of classes."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean of weight times loss."""
        own, weights = targets.unbind(-1)
        own = own.long() if self.classes else own
        rows: Tensor = torch.func.vmap(self.loss)(outputs.unsqueeze(1), own.unsqueeze(1))
        return (weights * rows).mean()


def count_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many rows get their class right."""
    if outputs.shape[-1] == 1:
        return ((outputs.squeeze(-1) > 0) == (targets > 0)).sum()
    return (outputs.argmax(dim=-1) == targets).sum()
