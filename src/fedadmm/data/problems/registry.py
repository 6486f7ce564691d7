"""Problems by name: a part whose fields are the options, and which makes the problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import FAMILIES
from fedadmm.core.problem import Problem
from fedadmm.core.protocols import Regularizer
from fedadmm.data.sources import SOURCES


@dataclass(frozen=True)
class Sites:
    """What a deployment asks of a problem whose clients hold one file each, and no other's.

    The server holds no file at all: of the rows it knows only how wide they are.
    """

    names: tuple[str, ...]
    """The clients, in their order."""
    inputs: int
    """Numbers in a row."""
    classes: int
    files: Callable[[], list[Path]]
    """Finds every client's file, for a demonstration on a machine that has all of them."""
    load: Callable[[Any, Path, int], Problem]
    """Makes the problem of one client alone, from the options, its file and its number."""


class NamedProblem(ABC):
    """What a part of the family `problem` is: its fields are what a configuration may set."""

    name: ClassVar[str]
    summary: ClassVar[str]
    sites: ClassVar[Sites | None] = None
    """How its clients can be deployed without anybody's seeing another's rows, if they can."""

    costly_objective: ClassVar[bool] = False
    """Whether the training objective, two passes over all the data, is not measured by default."""

    @abstractmethod
    def load(self, regularizer: Regularizer | None = None, **given: Any) -> Problem:
        """The problem; may read files.

        `given` are objects that only Python can hand over: `buffers`, and to problems made from
        rows a `model` and a `partition`.
        """

    @classmethod
    def dataset(cls) -> str | None:
        """The data set it is made from, which has its name; None when nothing has to be fetched."""
        return cls.name if cls.name in SOURCES else None


def names() -> list[str]:
    """The names of all problems."""
    return sorted(FAMILIES["problem"])


def canonical(name: str) -> str:
    """The name that a data set's short form means; any other name as it is."""
    return next((one.name for one in SOURCES.values() if name in one.aliases), name)


def options(name: str) -> type[NamedProblem]:
    """The part that a name, or a short form of it, means."""
    chosen = FAMILIES["problem"].get(canonical(name))
    if chosen is None:
        raise ParameterError(f"problem: name is {name!r}, but must be one of {', '.join(names())}")
    return chosen


def load(name: str, **choices: Any) -> Problem:
    """The named problem; `choices` are the fields of its options, `regularizer` and `buffers`.

    `model` may also be a module or a function that makes one, `partition` also a `Partition`.
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
