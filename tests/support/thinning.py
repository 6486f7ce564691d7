"""Fewer cases for every change, and all of them before a release."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def thinned(every: int, *axes: Iterable[Any]) -> list[Any]:
    """Return the product of the axes; only each `every`-th case is not marked `release`.

    Each value of each axis occurs in `make test` if `every` is coprime to the axes' lengths.
    """
    return [
        pytest.param(*values, marks=() if index % every == 0 else pytest.mark.release)
        for index, values in enumerate(itertools.product(*axes))
    ]
