"""The old address of `fedadmm.study.running`."""

from __future__ import annotations

from torch import Tensor

from fedadmm.problem import Problem
from fedadmm.study import running
from fedadmm.study.config import RunConfig, resolve


def initial_vector(config: RunConfig, problem: Problem) -> Tensor:
    """The problem's start vector in the configured precision, on the configured device."""
    return running.initial_vector(resolve(config.tree()), problem)
