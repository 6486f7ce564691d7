"""The old address of `fedadmm.study.config`, with what its configurations could do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedadmm.problem import Problem
from fedadmm.study import config as study
from fedadmm.study.config import RunConfig, Tree


def resolve(tree: Mapping[str, Any], where: str = "") -> RunConfig:
    """A complete configuration."""
    return study.check(study.resolve(tree, where).tree, where)


def load_problem(config: RunConfig) -> Problem:
    """The problem with its regulariser."""
    return study.resolve(config.tree()).load_problem()


__all__ = ["RunConfig", "Tree", "load_problem", "resolve"]
