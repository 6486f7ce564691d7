"""A part: a frozen dataclass that a configuration can name, under one decorator.

    @part("sampler", "uniform")
    class UniformSampling(Sampler):
        size: Count | Share

The decorator makes the class a frozen dataclass, registers it in its family, and checks every
field against its annotation whenever an instance is made.  `__post_init__` keeps only the rules
between fields.  What no configuration names is checked in the same way: a dataclass under
`checked`, a function under `checked_arguments`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

from fedadmm.core.errors import ConfigError, ParameterError
from fedadmm.core.validation import (
    FAMILIES as FAMILIES,
    ROLES,
    Count as Count,
    Fraction as Fraction,
    Natural as Natural,
    NotNegative as NotNegative,
    Positive as Positive,
    Probability as Probability,
    Share as Share,
    check,
    checked_arguments as checked_arguments,
    hints,
)

if TYPE_CHECKING:
    from fedadmm.core.compatibility import Feature
    from fedadmm.core.setup import Setup

Made = TypeVar("Made")

TRUSTS_CODE: ContextVar[bool] = ContextVar("trusts_code", default=False)
"""Whether components that a run's folder names may be imported, which executes code."""
PYTHON_ONLY = {"in_tables": False}
"""Metadata of a field that only Python can set, such as a function."""


def check_one_each(owner: object, field: str, value: object, clients: int) -> None:
    """Raise a ParameterError for a sequence without one entry per client."""
    if isinstance(value, Sequence) and len(value) != clients:
        raise ParameterError(
            f"{type(owner).__name__}: {field} has {len(value)} entries, expected one for each "
            f"of the {clients} clients"
        )


class Part:
    """A registered component: a frozen dataclass that a configuration can name."""

    name: str
    """The name in configurations and on the command line; "module:Class" for one of your own."""
    per_client: ClassVar[tuple[str, ...]] = ()
    """The fields that may hold a sequence with one entry per client; its length is checked."""

    def requires(self, run: Setup) -> Iterable[Feature]:
        """Return the features that this component requires of the other components of a run."""
        return ()

    def check_run(self, run: Setup) -> Iterator[str]:
        """Yield a message for every incompatibility that `requires` cannot express.

        An override begins with `yield from super().check_run(run)`.  For an invalid value of its
        own it raises a ParameterError.
        """
        self.check_per_client(run.problem.num_clients)
        yield from ()

    def check_per_client(self, clients: int) -> None:
        """Check the lengths of all sequences with one entry per client."""
        for field in self.per_client:
            check_one_each(self, field, getattr(self, field), clients)


@dataclass_transform(frozen_default=True)
def checked(kind: type[Made]) -> type[Made]:
    """Make a class a frozen dataclass whose fields are checked against their annotations."""
    between = kind.__dict__.get("__post_init__", getattr(kind, "_rules_between_fields", None))

    def __post_init__(self: Any) -> None:  # noqa: N807
        own: Any = type(self)
        for name, annotation in annotations_of(own).items():
            check(own.__name__, name, getattr(self, name), annotation)
        if between is not None:
            between(self)

    kind.__post_init__ = __post_init__  # type: ignore[attr-defined]
    kind._rules_between_fields = between  # type: ignore[attr-defined]
    return dataclass(frozen=True)(kind)


@dataclass_transform(frozen_default=True)
def part(family: str, name: str) -> Callable[[type[Made]], type[Made]]:
    """Register a class as the part `name` of a family, and check its fields.

    A name of another class is rejected; the same class may be defined again.
    """

    def made(kind: type[Made]) -> type[Made]:
        known = FAMILIES.setdefault(family, {})
        if name in known and _home(known[name]) != _home(kind):
            raise ParameterError(f"{family}: name {name!r} is taken already")
        kind.name = name  # type: ignore[attr-defined]
        known[name] = kind
        return checked(kind)

    return made


def role(family: str) -> Callable[[type[Made]], type[Made]]:
    """Declare a class to be the base class of a family of components."""

    def declared(kind: type[Made]) -> type[Made]:
        ROLES[kind] = family
        return kind

    return declared


def _home(kind: type[Any]) -> tuple[str, str]:
    return kind.__module__, kind.__qualname__


@cache
def annotations_of(kind: Any) -> dict[str, Any]:
    """Return the annotations of a class's fields, including ranges."""
    known = hints(kind)
    return {field.name: known[field.name] for field in fields(kind) if field.init}


def config_fields(kind: Any) -> list[Field[Any]]:
    """Return the fields of a class that a config section can set."""
    return [one for one in fields(kind) if one.init and one.metadata.get("in_tables", True)]


def is_external(name: object) -> bool:
    """Return whether a name refers to an external component: `package.module:Name`."""
    return isinstance(name, str) and ":" in name


def name_of(kind: type[Any]) -> str:
    """Return the name of a component class in configurations."""
    name = getattr(kind, "name", None)
    ours = isinstance(name, str) and any(known.get(name) is kind for known in FAMILIES.values())
    return str(name) if ours else f"{kind.__module__}:{kind.__qualname__}"


def part_of(family: str, name: str) -> type[Any]:
    """Return the class of a name; an external one is imported and must belong to the family."""
    if not is_external(name):
        return FAMILIES[family][name]
    kind: type[Any] = imported(f"{family}.name is {name!r}", name)
    reason = _unfit(kind, next(kind for kind, known in ROLES.items() if known == family))
    if reason is not None:
        raise ConfigError(f"{family}.name is {name!r}, which {reason}")
    return kind


def imported(subject: str, name: str) -> Any:
    """Import `package.module:Name`; a file in the current folder is a module."""
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:  # at the end, so that it hides nothing that is installed
        sys.path.append(here)
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise ConfigError(
            f"{subject}, which cannot be imported ({error}); it must be package.module:Name, and "
            "a file in the current folder counts as a module"
        ) from None


def names_of(family: str, fits: Callable[[Any], bool]) -> str:
    """Return the names of the classes of a family that fit, without variants of others."""
    known = [kind for kind in FAMILIES.get(family, {}).values() if fits(kind)]
    names = [k.__name__ for k in known if not any(b in known for b in k.__mro__[1:])]
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names or ["another"])


def _unfit(kind: Any, wanted: type[Any]) -> str | None:
    """Return why an object cannot be a component of a family, or None."""
    if not isinstance(kind, type) or not is_dataclass(kind):
        return "is not a frozen dataclass, but must be: write @dataclass(frozen=True) above it"
    if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return "is a dataclass that can be changed, expected a frozen one"
    abstract = sorted(getattr(kind, "__abstractmethods__", ()))
    if abstract:
        return f"leaves {', '.join(abstract)} open, but must define it"
    if wanted in kind.__mro__:
        return None
    if not getattr(wanted, "_is_protocol", False):
        return f"is not a subclass of {wanted.__module__}.{wanted.__qualname__}, expected one"
    needed = [name for name in vars(wanted) if not name.startswith("_") or name == "__call__"]
    missing = [name for name in needed if not hasattr(kind, name)]
    return f"has no {', '.join(missing)}, expected {', '.join(needed)}" if missing else None
