"""Every part that a configuration can name, by family.

The parts are the frozen dataclasses that Python recipes use: a table of a configuration is a
constructor call.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from fedadmm import (
    adaptive_sampling,
    algorithms,
    engines,
    outputs,
    problems,
    regularizers,
    sampling,
    schedules,
    solvers,
    stopping,
)
from fedadmm.parts import FAMILIES

_REGISTERED = (
    algorithms,
    regularizers,
    schedules,
    solvers,
    stopping,
    sampling,
    adaptive_sampling,
    engines,
    outputs,
)
"""Importing these fills the families."""

Parts = dict[str, type[Any]]
"""Name in configurations -> frozen dataclass."""


@cache
def families() -> dict[str, Parts]:
    """Table of a configuration -> the parts it can name."""
    known = {"problem": {name: problems.options(name) for name in problems.names()}}
    tables = ("regularizer", "algorithm", "solver", "stop", "sampler", "engine", "output")
    return known | {table: FAMILIES[table] for table in tables}


@cache
def defaults() -> dict[str, Any]:
    """What a configuration may leave out although the constructor asks for it."""
    text = resources.files(__package__).joinpath("defaults.toml").read_text("utf-8")
    return tomllib.loads(text)
