"""Moreau's identity v = prox_{t g}(v) + t prox_{g*/t}(v/t) for every regulariser.

The prox of each conjugate is derived here on its own: g* of a norm is the indicator of the dual
norm's ball, g* of an indicator of a convex set is its support function, and so on.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given as hypothesis_given, settings, strategies as st
from scipy.optimize import brentq

import fedadmm as fa

SIZES = (1, 2, 3)
D = sum(SIZES)


def conjugate_zero(u, s):
    """g* is the indicator of {0}."""
    return np.zeros_like(u)


def conjugate_l1(lam):
    """g* is the indicator of the box |u| <= lam: project."""
    return lambda u, s: np.clip(u, -lam, lam)


def conjugate_squared(lam):
    """g*(u) = ||u||^2 / (2 lam): minimise it plus ||u - p||^2 / (2s)."""
    return lambda p, s: p * lam / (lam + s)


def conjugate_elastic(l1, l2):
    """g*(u) = max(|u| - l1, 0)^2 / (2 l2): inside the tube u stays, outside it is pulled in."""

    def prox(p, s):
        outside = (l2 * np.abs(p) + s * l1) / (l2 + s)
        return np.where(np.abs(p) <= l1, p, np.sign(p) * outside)

    return prox


def conjugate_groups(lam):
    """g* is the indicator of ||u_G|| <= lam sqrt(|G|) for every group: project each."""

    def prox(p, s):
        parts = []
        for part, size in zip(np.split(p, np.cumsum(SIZES)[:-1]), SIZES, strict=True):
            radius, length = lam * np.sqrt(size), np.linalg.norm(part)
            parts.append(part if length <= radius else part * radius / length)
        return np.concatenate(parts)

    return prox


def conjugate_box(low, high):
    """g*(u) = high u for u > 0, low u for u < 0: its prox shifts towards zero on either side."""

    def prox(p, s):
        return np.where(p > s * high, p - s * high, np.where(p < s * low, p - s * low, 0.0))

    return prox


def conjugate_orthant(p, s):
    """g* is the indicator of u <= 0."""
    return np.minimum(p, 0.0)


def conjugate_ball(radius):
    """g*(u) = radius ||u||: its prox shrinks the norm; the new norm solves a scalar equation."""

    def prox(p, s):
        length = np.linalg.norm(p)
        if length <= s * radius:
            return np.zeros_like(p)
        new = brentq(lambda m: radius + (m - length) / s, 0.0, length, xtol=1e-15, rtol=1e-14)
        return p * new / length

    return prox


def conjugate_l2(lam):
    """g* is the indicator of the ball ||u|| <= lam: project."""
    return lambda u, s: u * min(1.0, lam / max(np.linalg.norm(u), 1e-300))


def conjugate_linf(lam):
    """g* is the indicator of ||u||_1 <= lam: soft thresholding at the level that meets it."""

    def prox(u, s):
        def excess(level):
            return np.maximum(np.abs(u) - level, 0).sum() - lam

        if excess(0.0) <= 0:
            return u
        level = brentq(excess, 0.0, np.abs(u).max(), xtol=1e-15, rtol=1e-14)
        return np.sign(u) * np.maximum(np.abs(u) - level, 0)

    return prox


ROWS = {
    "Zero": (fa.regularizers.Zero(), conjugate_zero),
    "L1": (fa.L1(0.7), conjugate_l1(0.7)),
    "L2": (fa.regularizers.L2(0.7), conjugate_l2(0.7)),
    "LInf": (fa.regularizers.LInf(0.7), conjugate_linf(0.7)),
    "SquaredL2": (fa.regularizers.SquaredL2(0.7), conjugate_squared(0.7)),
    "ElasticNet": (fa.regularizers.ElasticNet(0.4, 0.9), conjugate_elastic(0.4, 0.9)),
    "GroupLasso": (fa.regularizers.GroupLasso(0.6, SIZES), conjugate_groups(0.6)),
    "Box": (fa.regularizers.Box(-0.5, 1.25), conjugate_box(-0.5, 1.25)),
    "Box away from zero": (fa.regularizers.Box(0.5, 1.25), conjugate_box(0.5, 1.25)),
    "NonNegative": (fa.regularizers.NonNegative(), conjugate_orthant),
    "L2Ball": (fa.regularizers.L2Ball(1.1), conjugate_ball(1.1)),
}


@pytest.mark.parametrize("row", ROWS)
@settings(max_examples=25)
@hypothesis_given(
    entries=st.lists(st.floats(-8, 8), min_size=D, max_size=D), step=st.floats(0.05, 20.0)
)
def test_moreau_identity(row, entries, step):
    regularizer, conjugate_prox = ROWS[row]
    v = np.array(entries)
    primal = regularizer.prox(torch.from_numpy(v), step).numpy()
    dual = conjugate_prox(v / step, 1 / step)
    np.testing.assert_allclose(primal + step * dual, v, atol=1e-10, rtol=0)


def test_every_regularizer_is_tested():
    exported = {
        name
        for name, value in vars(fa.regularizers).items()
        if callable(getattr(value, "prox", None))
    }
    assert exported - {"PyProximal", "Regularizer"} == {
        type(regularizer).__name__ for regularizer, _ in ROWS.values()
    }
