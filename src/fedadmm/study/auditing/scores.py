"""How near reconstructions come to the rows they are of."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

RECOGNISED = 20.0
"""A row counts as recovered from this many decibels on."""
EXACT = 120.0
"""Decibels of a reconstruction without any error, which would be infinitely many."""


class Score(NamedTuple):
    """One row beside its reconstruction."""

    psnr: float
    """10 log10 (range² / mean squared error), in decibels."""
    ssim: float | None
    """The structural similarity, 1 for the same picture; None where rows are no pictures."""


def paired(rows: Tensor, found: Tensor) -> Tensor:
    """The reconstructions in the order of the rows that they are nearest to, one for each."""
    from scipy.optimize import linear_sum_assignment

    distances = torch.cdist(rows.flatten(1).double(), found.flatten(1).double()).square()
    _, order = linear_sum_assignment(distances.numpy())
    return found[torch.as_tensor(order)]


def score(row: Tensor, found: Tensor, span: float) -> Score:
    """How near one row was come to; `span` is the range of its values."""
    error = float((row.double() - found.double()).square().mean())
    limit = span**2 * 10 ** (-EXACT / 10)
    psnr = 10 * math.log10(span**2 / max(error, limit))
    return Score(psnr, ssim(row, found, span) if row.ndim == 3 else None)


def ssim(picture: Tensor, found: Tensor, span: float, window: int = 7) -> float:
    """The mean structural similarity over all windows (Wang, Bovik, Sheikh, Simoncelli, 2004).

    Windows are squares, smaller ones where the picture is smaller.
    """
    a, b = picture.double(), found.double()
    size = min(window, *a.shape[1:])
    share = size * size / max(1, size * size - 1)

    def mean(values: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(values, size, stride=1)

    at, bt = mean(a), mean(b)
    va, vb = share * (mean(a * a) - at * at), share * (mean(b * b) - bt * bt)
    both = share * (mean(a * b) - at * bt)
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    top = (2 * at * bt + c1) * (2 * both + c2)
    return float((top / ((at * at + bt * bt + c1) * (va + vb + c2))).mean())


def share_of(labels: Tensor, found: Tensor) -> float:
    """The share of the labels that were recovered, counted with their repetitions."""
    common = Counter(labels.tolist()) & Counter(found.tolist())
    return sum(common.values()) / len(labels)
