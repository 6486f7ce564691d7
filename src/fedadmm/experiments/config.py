"""The old address of `fedadmm.study.config`."""

from __future__ import annotations

from fedadmm.study.config import RunConfig, Tree, load_problem, resolve

__all__ = ["RunConfig", "Tree", "load_problem", "resolve"]
