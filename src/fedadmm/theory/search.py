"""Small searches over numbers, for constants without a closed form."""

from __future__ import annotations

import math
from collections.abc import Callable


def minimise_unimodal(function: Callable[[float], float], low: float, high: float) -> float:
    """The minimiser of a function with one minimum on [low, high], by golden-section search."""
    shrink = (math.sqrt(5.0) - 1.0) / 2.0
    left, right = high - shrink * (high - low), low + shrink * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > 1e-7 * high:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - shrink * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + shrink * (high - low)
            at_right = function(right)
    return (low + high) / 2.0


def first_count_where(condition: Callable[[int], bool], limit: int) -> int | None:
    """The smallest count of at least 1 at which a condition holds that stays true from there on.

    None when it does not hold at `limit` either.
    """
    high = 1
    while not condition(high):
        if high >= limit:
            return None
        high = min(2 * high, limit)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if condition(middle):
            high = middle
        else:
            low = middle
    return high


def positive_root(constant: float, linear: float, quadratic: float) -> float:
    """The x > 0 with constant - linear x - quadratic x² = 0, for positive coefficients."""
    root = math.sqrt(linear**2 + 4.0 * quadratic * constant)
    # The conjugate form of (root - linear) / (2 quadratic): no digits cancel for a small constant.
    return 2.0 * constant / (linear + root)
