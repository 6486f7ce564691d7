"""Federated problems by name, as in `load("mnist", clients=100, partition="shards")`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import FAMILIES
from fedadmm.core.problem import Problem
from fedadmm.data.download import SOURCES
from fedadmm.data.problems import generated as generated, recorded as recorded, theory as theory
from fedadmm.data.problems.named_problem import (
    NamedProblem as NamedProblem,
    Sites as Sites,
    SplitOptions as SplitOptions,
    from_data as from_data,
)


def names() -> list[str]:
    """Return the names of all problems."""
    return sorted(FAMILIES["problem"])


def canonical(name: str) -> str:
    """Return the full name for an alias of a data set, and any other name unchanged."""
    return next((one.name for one in SOURCES.values() if name in one.aliases), name)


def options(name: str) -> type[NamedProblem]:
    """Return the options class of the problem with a name or alias."""
    chosen = FAMILIES["problem"].get(canonical(name))
    if chosen is None:
        raise ParameterError(f"problem: name: got {name!r}, expected one of {', '.join(names())}")
    return chosen


def load(name: str, **choices: Any) -> Problem:
    """Load a problem by name.

    Args:
        name: The name or alias.
        choices: The fields of its options, `regularizer` and `buffers`.  `model` may also be a
            module or a function that returns one, and `partition` a `Partition`.

    Raises:
        ParameterError: The problem or an option is unknown, or a value is not allowed.
    """
    chosen: Any = options(name)
    known = [field.name for field in fields(chosen)]
    given = {key: choices.pop(key, None) for key in ("regularizer", "buffers")}
    for field in choices:
        if field not in known:
            raise ParameterError(f"{name}: there is no option {field!r}, but {', '.join(known)}")
    for key in ("model", "partition"):
        if not isinstance(choices.get(key, ""), str):
            given[key] = choices.pop(key)
    problem: Problem = chosen(**choices).load(**given)
    return problem
