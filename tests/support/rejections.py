"""Invalid input: the class of the error and the names in its message, before any client computes.

Messages are compared by the names of components and fields that they contain, never by sentences.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fedadmm as fa

Cases = dict[str, tuple[Callable[[], Any], str]]
"""By name: the attempt, and the names that the message of its error contains."""


def naming(names: str) -> str:
    """Return a pattern that matches a message with all of these words, in any order."""
    return "(?s)" + "".join(rf"(?=.*(?<!\w){re.escape(name)}(?!\w))" for name in names.split())


def assert_rejected(error: type[Exception], case: tuple[Callable[[], Any], str]) -> None:
    """Assert that an attempt raises this error and that its message contains the names."""
    attempt, names = case
    with pytest.raises(error, match=naming(names)):
        attempt()


class Untouchable(fa.Objective):
    """A client with sizes and without data: computing with it fails the test."""

    num_parameters = 3
    num_samples = 10

    def value(self, params: Any) -> Any:
        raise AssertionError("a client was evaluated before the run was rejected")

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
    """Simulate a run of four untouchable clients, which must be rejected before its first round."""
    made = Quadratic() if client is None else client
    problem = fa.Problem(
        [made] * 4, regularizer if regularizer is not None else fa.regularizers.Zero()
    )
    settings = {"rounds": 3, "solver": fa.ExactSolver(), "initial": START}
    return fa.simulate(
        algorithm if algorithm is not None else fa.FedADMM(1.0), problem, **(settings | options)
    )
