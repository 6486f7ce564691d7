"""Every part that a configuration can name, by family.

The parts are the frozen dataclasses that Python recipes use: a table of a configuration is a
constructor call.  `package.module:Name` names a part that is not ours, in every family.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import resources
from typing import Any, Protocol, cast

from fedadmm import algorithms
from fedadmm.core import (
    adaptive_sampling,
    outputs,
    regularizers,
    sampling,
    schedules,
    solvers,
    stopping,
    uploads,
)
from fedadmm.core.errors import ConfigError
from fedadmm.core.outputs import Output
from fedadmm.core.parts import FAMILIES, imported, is_stranger
from fedadmm.core.problem import Problem
from fedadmm.core.protocols import Algorithm, LocalSolver, Regularizer, Sampler, StoppingRule
from fedadmm.core.uploads import UploadStage
from fedadmm.data import problems
from fedadmm.run import engines
from fedadmm.run.engines import EngineChoice
from fedadmm.theory import incentives

_REGISTERED = (
    *(problems, algorithms, regularizers, schedules, solvers, stopping),
    *(sampling, adaptive_sampling, engines, outputs, uploads, incentives),
)
"""Importing these fills the families."""

Parts = dict[str, type[Any]]
"""Name in configurations -> frozen dataclass."""


@cache
def families() -> dict[str, Parts]:
    """Table of a configuration -> the parts it can name."""
    return {table: FAMILIES[table] for table in _ROLES if table != "schedule"}


@cache
def defaults() -> dict[str, Any]:
    """What a configuration may leave out although the constructor asks for it."""
    text = resources.files(__package__).joinpath("defaults.toml").read_text("utf-8")
    return tomllib.loads(text)


class ProblemOptions(Protocol):
    """What a problem that is not ours has: its fields are the options, `load` makes it."""

    def load(self) -> Problem:
        """The problem; the configuration's regulariser is put in afterwards."""


_ROLES: dict[str, type[Any]] = {
    "problem": ProblemOptions,
    "regularizer": Regularizer,
    "algorithm": Algorithm,
    "solver": LocalSolver,
    "stop": StoppingRule,
    "sampler": Sampler,
    "engine": EngineChoice,
    "output": Output,
    "upload": UploadStage,
    "schedule": schedules.Schedule,
}
"""What a part of a family must be, or must have the members of."""

Stranger = tuple[str, str]
"""Family and name of a part that is not ours."""


def strangers(tree: Mapping[str, Any]) -> frozenset[Stranger]:
    """The parts of a configuration that are not ours; each can be imported and is what it must be.

    Tables inside a part's table are schedules.
    """
    found = frozenset(_named(tree))
    for family, name in sorted(found):
        part_of(family, name)
    return found


def _named(tree: Mapping[str, Any]) -> Iterator[Stranger]:
    for family in families():
        found = tree.get(family)
        for table in found if isinstance(found, list) else [found]:
            if not isinstance(table, dict):
                continue
            if is_stranger(table.get("name")):
                yield family, table["name"]
            for value in table.values():
                if isinstance(value, dict) and is_stranger(value.get("name")):
                    yield "schedule", value["name"]


def part_of(family: str, name: str) -> type[Any]:
    """The dataclass that a name stands for; a stranger is imported and looked at."""
    known = FAMILIES["schedule"] if family == "schedule" else families()[family]
    if not is_stranger(name):
        return known[name]
    part = imported(f"{family}.name is {name!r}", name)
    reason = _unfit(part, _ROLES[family])
    if reason is not None:
        raise ConfigError(f"{family}.name is {name!r}, which {reason}")
    return cast(type[Any], part)


def _unfit(part: Any, role: type[Any]) -> str | None:
    """Why something cannot be a part, or None."""
    if not isinstance(part, type) or not is_dataclass(part):
        return "is not a frozen dataclass, but must be: write @dataclass(frozen=True) above it"
    if not part.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return "is a dataclass that can be changed, but must be frozen"
    abstract = sorted(getattr(part, "__abstractmethods__", ()))
    if abstract:
        return f"leaves {', '.join(abstract)} open, but must define it"
    if role in part.__mro__:
        return None
    if not getattr(role, "_is_protocol", False):
        return f"is not a subclass of {role.__module__}.{role.__qualname__}, but must be one"
    members = [name for name in vars(role) if not name.startswith("_") or name == "__call__"]
    missing = [name for name in members if not hasattr(part, name)]
    return f"has no {', '.join(missing)}, but must have {', '.join(members)}" if missing else None
