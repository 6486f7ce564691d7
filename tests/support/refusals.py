"""Refusals, word for word, and all of them before any client has computed anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fedadmm as fa

Cases = dict[str, tuple[Callable[[], Any], str]]
"""By name: what is tried, and what is said of it."""
WHOLE = "must be a whole number of at least 1"
POSITIVE = "must be > 0 and finite"


def refused(error: type[Exception], case: tuple[Callable[[], Any], str]) -> None:
    """The attempt ends in this error with these words."""
    attempt, message = case
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        attempt()


class Untouchable(fa.Objective):
    """A client that knows its sizes and nothing else: whoever computes with it fails the test."""

    num_parameters = 3
    num_samples = 10

    def value(self, params: Any) -> Any:
        raise AssertionError("a client was evaluated before the refusal")

    gradient = workspace = evaluation_gradient = work = value

    def to(self, dtype: Any, device: Any = "cpu") -> Untouchable:
        return self


class Quadratic(Untouchable):
    """The same, of a kind that the exact solver accepts."""

    hessian = offset = Untouchable.value


START = torch.zeros(3, dtype=torch.float64)
EYE = torch.eye(3, dtype=torch.float64)


def simulate(
    algorithm: Any = None, client: Any = None, regularizer: Any = None, **options: Any
) -> Any:
    made = Quadratic() if client is None else client
    problem = fa.Problem([made] * 4, regularizer if regularizer is not None else fa.Zero())
    settings = {"rounds": 3, "solver": fa.ExactSolver(), "initial": START}
    return fa.simulate(
        algorithm if algorithm is not None else fa.FedADMM(1.0), problem, **(settings | options)
    )
