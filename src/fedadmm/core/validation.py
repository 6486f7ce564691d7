"""Validation of values by type annotations, and descriptions of the allowed values.

Ranges and choices are part of the annotation (`Annotated[float, Gt(0)]`, `Literal[...]`).  A
message names the value, its position in the field, and what is allowed.
"""

from __future__ import annotations

import inspect
import math
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt

from fedadmm.core.errors import ParameterError

Made = TypeVar("Made")
Given = ParamSpec("Given")

Positive = Annotated[float, Gt(0)]
"""A finite positive number."""
NotNegative = Annotated[float, Ge(0)]
"""A finite non-negative number."""
Count = Annotated[int, Ge(1)]
"""A whole number of at least one."""
Natural = Annotated[int, Ge(0)]
"""A whole number of at least zero."""
Share = Annotated[float, Gt(0), Le(1)]
"""A number in (0, 1]."""
UnitInterval = Annotated[float, Ge(0), Le(1)]
"""A number in [0, 1]."""
Fraction = Annotated[float, Gt(0), Lt(1)]
"""A number in (0, 1)."""
Probability = Annotated[float, Ge(0), Lt(1)]
"""A number in [0, 1)."""

CLIENT_LIMIT = 1_000_000
"""Largest number of clients of a problem; with larger ones, programs would hang instead of fail."""

FAMILIES: dict[str, dict[str, type[Any]]] = {}
"""Family -> name in configurations -> class."""
ROLES: dict[type[Any], str] = {}
"""Base class of a family of components -> the family's name in configurations."""

BOUNDS = (
    (Gt, "gt", operator.gt, ">", "exclusiveMinimum"),
    (Ge, "ge", operator.ge, ">=", "minimum"),
    (Lt, "lt", operator.lt, "<", "exclusiveMaximum"),
    (Le, "le", operator.le, "<=", "maximum"),
)
"""Constraint, its limit, its comparison, its sign, and its key in a JSON schema."""


class Violation(NamedTuple):
    """A rejected value, what is allowed, and the position in the field."""

    value: object
    allowed: str
    where: str = ""


@cache
def hints(annotated: Any) -> dict[str, Any]:
    """Return the annotations of a class or a function, including ranges."""
    return get_type_hints(annotated, include_extras=True)


def check(owner: object, field: str, value: object, annotation: Any) -> None:
    """Raise a ParameterError for a value that the annotation does not allow."""
    wrong = violation(value, annotation)
    if wrong is not None:
        name = owner if isinstance(owner, str) else type(owner).__name__
        given = shown(wrong.value)
        raise ParameterError(f"{name}: {field}{wrong.where}: got {given}, expected {wrong.allowed}")


def checked_arguments(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """Check the arguments of a function whose annotation contains a range or choices."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        given = signature.bind(*args, **kwargs).arguments
        for name, annotation in hints(function).items():
            if name in given and _restricts(annotation):
                check(function.__name__, name, given[name], annotation)
        return function(*args, **kwargs)

    return call


@cache
def _restricts(annotation: Any) -> bool:
    inner = get_args(annotation)
    return get_origin(annotation) in (Annotated, Literal) or any(map(_restricts, inner))


@cache
def members(annotation: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, or the annotation itself."""
    union = get_origin(annotation) in (Union, types.UnionType)
    return get_args(annotation) if union else (annotation,)


@cache
def kind_of(annotation: Any) -> Any:
    """Return the class of an annotation, without ranges and type parameters."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return get_args(annotation)[0]
    return annotation if origin is None else origin


def violation(value: object, annotation: Any) -> Violation | None:
    """Return why an annotation does not allow a value, or None if it does."""
    choices = members(annotation)
    if len(choices) > 1:
        return _violation_of_union(value, annotation, choices)
    kind = kind_of(annotation)
    if kind is Any:
        return None
    if kind in (int, float):
        return None if _is_number(value, annotation) else Violation(value, allowed(annotation))
    if kind is Literal:
        choices = get_args(annotation)
        ok = any(
            value == one and isinstance(value, bool) == isinstance(one, bool) for one in choices
        )
        return None if ok else Violation(value, allowed(annotation))
    if kind is type(None):
        return None if value is None else Violation(value, "None")
    if _holds_items(kind):
        return _violation_of_items(value, kind, get_args(annotation))
    return None if isinstance(value, kind) else Violation(value, _kind_words(value, kind))


@cache
def _holds_items(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Mapping | Sequence) and kind is not str


def _violation_of_items(value: object, kind: type[Any], args: tuple[Any, ...]) -> Violation | None:
    table = issubclass(kind, Mapping)
    if not isinstance(value, Mapping if table else Sequence) or isinstance(value, str):
        return Violation(value, "a table" if table else "a list")
    item = args[1] if table and args else args[0] if args else Any
    for key, entry in value.items() if isinstance(value, Mapping) else enumerate(value):
        wrong = violation(entry, item)
        if wrong is not None:
            return Violation(wrong.value, wrong.allowed, f"[{key}]{wrong.where}")
    return None


def _violation_of_union(
    value: object, annotation: Any, choices: tuple[Any, ...]
) -> Violation | None:
    """Return why no member of a union allows the value, for the member of its kind."""
    answers = []
    for choice in choices:
        answer = violation(value, choice)
        if answer is None:
            return None
        answers.append(answer)
    for choice, answer in zip(choices, answers, strict=True):
        if _is_about(choice, value):
            return answer
    hinted = next((one for one in answers if ";" in one.allowed), None)
    return hinted or Violation(value, allowed(annotation))


def _is_about(annotation: Any, value: object) -> bool:
    """Return whether an annotation describes values of this kind."""
    kind = kind_of(annotation)
    if isinstance(value, str | bool):
        return False
    if isinstance(value, Integral):
        return kind in (int, float)
    if isinstance(value, Real):
        return kind is float
    if isinstance(value, Sequence):
        return isinstance(kind, type) and issubclass(kind, Sequence) and kind is not str
    return False


def _is_number(value: object, annotation: Any) -> bool:
    """Return whether a value is a number; NumPy's are, True and False are not."""
    kind = kind_of(annotation)
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
        return False
    rules = getattr(annotation, "__metadata__", ())
    try:
        number = int(value) if kind is int else float(value)  # type: ignore[call-overload]
        if math.isnan(number) or (rules and not math.isfinite(number)):
            return False
    except OverflowError:  # a whole number longer than any float
        return False
    return all(
        holds(number, float(getattr(rule, limit)))
        for rule in rules
        for kind, limit, holds, _, _ in BOUNDS
        if isinstance(rule, kind)
    )


def allowed(annotation: Any) -> str:
    """Return a description of the values that an annotation allows."""
    choices = members(annotation)
    if len(choices) > 1:
        kinds = [kind_of(choice) for choice in choices]
        named = {part for kind in kinds if kind in ROLES for part in FAMILIES[ROLES[kind]].values()}
        words = [
            allowed(choice)
            for choice, kind in zip(choices, kinds, strict=True)
            if not (kind is int and float in kinds) and kind not in named
        ]
        return ", or ".join(dict.fromkeys(words))
    kind, rules = kind_of(annotation), getattr(annotation, "__metadata__", ())
    if kind is Literal:
        choices = get_args(annotation)
        return ("one of " if len(choices) > 1 else "") + ", ".join(map(repr, choices))
    if kind is int:
        low = next((rule.ge for rule in rules if isinstance(rule, Ge)), None)
        low = next((int(rule.gt) + 1 for rule in rules if isinstance(rule, Gt)), low)  # type: ignore[call-overload]
        high = next((rule.le for rule in rules if isinstance(rule, Le)), None)
        most = "" if high is None else f" and at most {high}"
        return "a whole number" + ("" if low is None else f" of at least {low}") + most
    if kind is float:
        bounds = [
            f"{sign} {getattr(rule, limit):g}"
            for rule in rules
            for bound, limit, _, sign, _ in BOUNDS
            if isinstance(rule, bound)
        ]
        if bounds and not any(isinstance(rule, Le | Lt) for rule in rules):
            bounds.append("finite")
        return " and ".join(bounds) or "a number"
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "a table"
    if isinstance(kind, type) and issubclass(kind, Sequence) and kind is not str:
        args = get_args(annotation)
        return f"a list, each {allowed(args[0])}" if args else "a list"
    return _PLAIN.get(kind) or _kind_words(None, kind)


_PLAIN = {bool: "True or False", str: "text", type(None): "None", Any: "anything"}


def _kind_words(value: object, kind: Any) -> str:
    """Return a description of the expected class, with a hint if a class itself was given."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind is Callable or not isinstance(kind, type):
        return "a function"
    if kind not in ROLES:
        return f"a {kind.__name__}"
    if ROLES[kind] == "schedule":
        return f"a schedule: {', '.join(FAMILIES['schedule'])}"
    words = f"an instance of {kind.__name__}"
    if isinstance(value, type) and issubclass(value, kind):
        return f"{words}; call it with its options, as in {value.__name__}(...)"
    if inspect.isabstract(kind) and value is not None and type(value).__module__ != "builtins":
        missing = ", ".join(sorted(kind.__abstractmethods__))
        return f"{words}; make {type(value).__name__} a subclass of it that defines {missing}"
    return words


def shown(value: object) -> str:
    """Return a value for a message: its representation if it is short, else its class."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    plain = isinstance(value, str | complex | Real | Mapping | Sequence)
    text = repr(value)
    if not plain and (text.startswith("<") or "\n" in text or len(text) > 60):
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}…"
