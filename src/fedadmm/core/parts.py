"""A part: a frozen dataclass that a configuration can name, under one decorator.

    @part("sampler", "uniform")
    class UniformSampling(Sampler):
        size: Count | Share

The decorator makes the class a frozen dataclass, puts it into its family, and checks every field
against its annotation whenever one is made: ranges and choices stand in the annotation
(`Annotated[float, Gt(0)]`, `Literal[...]`), where the constructor, the configuration, its JSON
schema and the docs read the same.  `__post_init__` keeps only the rules between fields.  What no
configuration names is checked in the same way: a dataclass under `checked`, a function under
`checked_arguments`.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, wraps
from importlib import import_module
from numbers import Integral, Real
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt

from fedadmm.core.errors import ConfigError, ParameterError

Made = TypeVar("Made")
Given = ParamSpec("Given")

Positive = Annotated[float, Gt(0)]
"""A finite number above zero."""
NotNegative = Annotated[float, Ge(0)]
"""A finite number of at least zero."""
Count = Annotated[int, Ge(1)]
"""A whole number of at least one."""
Natural = Annotated[int, Ge(0)]
"""A whole number of at least zero."""
Share = Annotated[float, Gt(0), Le(1)]
"""A fraction of a whole: above zero, at most one."""
Fraction = Annotated[float, Gt(0), Lt(1)]
"""A true fraction: above zero, below one."""
Probability = Annotated[float, Ge(0), Lt(1)]
"""A probability that leaves a chance for the other side."""

FAMILIES: dict[str, dict[str, type[Any]]] = {}
"""Family -> name in configurations -> class; filled by the decorator alone."""


@dataclass_transform(frozen_default=True)
def checked(kind: type[Made]) -> type[Made]:
    """Make a class a frozen dataclass whose fields are checked against their annotations."""
    between = kind.__dict__.get("__post_init__", getattr(kind, "_rules_between_fields", None))

    def __post_init__(self: Any) -> None:  # noqa: N807
        check_fields(self)
        if between is not None:
            between(self)

    kind.__post_init__ = __post_init__  # type: ignore[attr-defined]
    kind._rules_between_fields = between  # type: ignore[attr-defined]
    return dataclass(frozen=True)(kind)


@dataclass_transform(frozen_default=True)
def part(family: str, name: str) -> Callable[[type[Made]], type[Made]]:
    """Register a class as the part `name` of a family, and check its fields.

    A name that another class has is refused; the same class may be defined again.
    """

    def made(kind: type[Made]) -> type[Made]:
        known = FAMILIES.setdefault(family, {})
        if name in known and _home(known[name]) != _home(kind):
            raise ParameterError(f"{family}: name {name!r} is taken already")
        kind.name = name  # type: ignore[attr-defined]
        known[name] = kind
        return checked(kind)

    return made


def _home(kind: type[Any]) -> tuple[str, str]:
    return kind.__module__, kind.__qualname__


def checked_arguments(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """Check what a function is given where an annotation of it holds a range or choices."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        given = signature.bind(*args, **kwargs).arguments
        for name, annotation in _hints(function).items():
            if name in given and _restricts(annotation):
                _check(function.__name__, name, given[name], annotation)
        return function(*args, **kwargs)

    return call


@cache
def _restricts(annotation: Any) -> bool:
    inner = get_args(annotation)
    return get_origin(annotation) in (Annotated, Literal) or any(map(_restricts, inner))


@cache
def _hints(annotated: Any) -> dict[str, Any]:
    return get_type_hints(annotated, include_extras=True)


@cache
def annotations_of(kind: Any) -> dict[str, Any]:
    """The annotations of a class's fields, ranges included."""
    hints = _hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.init}


def check_fields(made: Any) -> None:
    """Refuse a field whose value is not what its annotation says."""
    kind: Any = type(made)
    for name, annotation in annotations_of(kind).items():
        _check(kind.__name__, name, getattr(made, name), annotation)


def _check(owner: str, name: str, value: object, annotation: Any) -> None:
    refused = _refused(value, annotation)
    if refused is not None:
        raise ParameterError(
            f"{owner}: {name}{refused.where} is {refused.value!r}, but must be {refused.allowed}"
        )


@dataclass(frozen=True)
class Refused:
    """A value, where in its field it stands, and what is allowed there."""

    value: object
    allowed: str
    where: str = ""


def _refused(value: object, annotation: Any) -> Refused | None:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _refused_by_all(value, args)
    if origin is Annotated:
        return _refused_number(value, args[0], args[1:])
    if annotation in (float, int):
        return _refused_number(value, annotation, ())
    if origin is Literal:
        ok = any(value is choice or value == choice for choice in args)
        return None if ok else Refused(value, _choices(args))
    if annotation is bool:
        return None if isinstance(value, bool) else Refused(value, "True or False")
    if annotation is type(None):
        return None if value is None else Refused(value, "None")
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _refused_items(value, Mapping, args[1])
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _refused_items(value, Sequence, args[0])
    if annotation is Any or annotation is str:
        return None if annotation is Any or isinstance(value, str) else Refused(value, "text")
    return None if isinstance(value, annotation) else Refused(value, f"a {annotation.__name__}")


def _refused_items(value: object, kind: type[Any], item: Any) -> Refused | None:
    if not isinstance(value, kind) or isinstance(value, str):
        what = "a table" if kind is Mapping else "a list"
        return Refused(value, what)
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, entry in pairs:
        refused = _refused(entry, item)
        if refused is not None:
            return Refused(refused.value, refused.allowed, f"[{key}]{refused.where}")
    return None


def _refused_by_all(value: object, choices: tuple[Any, ...]) -> Refused | None:
    """A union refuses in the words of the member that speaks of this kind of value."""
    answers = [(_speaks_of(choice, value), _refused(value, choice)) for choice in choices]
    if any(answer is None for _, answer in answers):
        return None
    fitting = [answer for speaks, answer in answers if speaks and answer is not None]
    if fitting:
        return fitting[0]
    words = [
        answer.allowed
        for choice, (_, answer) in zip(choices, answers, strict=True)
        if answer is not None and not (_kind(choice) is int and float in map(_kind, choices))
    ]
    return Refused(value, ", or ".join(words))


def _kind(annotation: Any) -> Any:
    """The type without its ranges."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _speaks_of(annotation: Any, value: object) -> bool:
    origin, args = get_origin(annotation), get_args(annotation)
    kind = _kind(annotation)
    if isinstance(value, str):
        return origin is Literal and any(isinstance(choice, str) for choice in args)
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, Integral):
        return kind in (int, float)
    if isinstance(value, Real):
        return kind is float
    if isinstance(value, Sequence):
        return isinstance(origin, type) and issubclass(origin, Sequence)
    return False


def _refused_number(value: object, kind: Any, rules: tuple[Any, ...]) -> Refused | None:
    """Numpy's numbers are Real and Integral too; True and False are not numbers."""
    if kind is int:
        low = next((rule.ge for rule in rules if isinstance(rule, Ge)), None)
        low = next((int(rule.gt) + 1 for rule in rules if isinstance(rule, Gt)), low)  # type: ignore[call-overload]
        whole = not isinstance(value, bool) and isinstance(value, Integral)
        if whole and (low is None or int(value) >= low):  # type: ignore[call-overload]
            return None
        least = "" if low is None else f" of at least {low}"
        return Refused(value, f"a whole number{least}")
    if kind is not float:
        return None
    bounds = [bound for bound in map(_bound, rules) if bound is not None]
    if bounds and not any(isinstance(rule, Le | Lt) for rule in rules):
        bounds.append("finite")
    allowed = " and ".join(bounds) or "a number"
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:  # NaN
        return Refused(value, allowed)
    try:
        number = float(value)
    except OverflowError:  # a whole number longer than any float
        return Refused(value, allowed)
    ok = math.isfinite(number) or not bounds
    return None if ok and all(_meets(number, rule) for rule in rules) else Refused(value, allowed)


def _bound(rule: Any) -> str | None:
    for kind, sign, limit in ((Gt, ">", "gt"), (Ge, ">=", "ge"), (Lt, "<", "lt"), (Le, "<=", "le")):
        if isinstance(rule, kind):
            return f"{sign} {getattr(rule, limit):g}"
    return None


def _meets(number: float, rule: Any) -> bool:
    if isinstance(rule, Gt):
        return number > float(rule.gt)  # type: ignore[arg-type]
    if isinstance(rule, Ge):
        return number >= float(rule.ge)  # type: ignore[arg-type]
    if isinstance(rule, Lt):
        return number < float(rule.lt)  # type: ignore[arg-type]
    if isinstance(rule, Le):
        return number <= float(rule.le)  # type: ignore[arg-type]
    return True


def _choices(args: tuple[object, ...]) -> str:
    return "one of " + ", ".join(repr(choice) for choice in args)


def is_stranger(name: object) -> bool:
    """Whether a name is that of a part that is not ours."""
    return isinstance(name, str) and ":" in name


def imported(subject: str, name: str) -> Any:
    """What `package.module:Name` names; a file in the current folder counts as a module."""
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
