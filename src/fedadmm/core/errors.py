"""Every error that fedadmm raises on purpose.

    FedADMMError
    ├── ParameterError       a hyper-parameter or an argument is out of its range
    ├── PairingError         two parts were combined that do not fit each other
    ├── DataError            a file or a data set is missing, damaged or unusable
    ├── ConfigError          a configuration cannot be understood
    ├── StateError           stored client or server state is missing or damaged
    └── EngineError          the machinery that runs clients failed

A message names the field, the value and what is allowed.
"""

from __future__ import annotations

import math
from inspect import isabstract
from numbers import Integral, Real


class FedADMMError(Exception):
    """The root of everything that fedadmm raises on purpose."""


class ParameterError(FedADMMError, ValueError):
    """A hyper-parameter or an argument is out of its range."""


class PairingError(FedADMMError, ValueError):
    """Two parts were combined that do not fit each other; says what is missing."""


class DataError(FedADMMError):
    """A file or a data set is missing, damaged or unusable; names the file."""


class ConfigError(FedADMMError, ValueError):
    """A configuration cannot be understood; names the key."""


class StateError(FedADMMError):
    """Stored client or server state is missing or damaged."""


class EngineError(FedADMMError, RuntimeError):
    """The machinery that runs clients failed (a worker died, a wait timed out)."""


ANOTHER_VERSION = (
    "it may be of another version of fedadmm: finish the run with that one, or begin it anew"
)
"""What to do about state that does not look like this version's."""


def check_range(
    owner: object,
    field: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Refuse a number outside its interval, naming the owner, the field and the interval."""
    if not isinstance(value, bool) and isinstance(value, Real):  # numpy's numbers are Real too
        try:
            number = float(value)
        except OverflowError:  # a whole number longer than any float
            number = math.nan
        above_low = number > low if open_low else number >= low
        below_high = number < high if open_high else number <= high
        if above_low and below_high:
            return
    bounds = []
    if low > -math.inf:
        bounds.append(f"{'>' if open_low else '>='} {low:g}")
    if high < math.inf:
        bounds.append(f"{'<' if open_high else '<='} {high:g}")
    elif open_high:
        bounds.append("finite")
    allowed = " and ".join(bounds) or "a number"
    raise ParameterError(f"{_named(owner)}: {field} is {value!r}, but must be {allowed}")


def _named(owner: object) -> str:
    return owner if isinstance(owner, str) else type(owner).__name__


def check_positive(owner: object, field: str, value: object) -> None:
    """Refuse a number that is not finite and greater than zero."""
    check_range(owner, field, value, 0.0, math.inf, open_low=True, open_high=True)


def check_count(owner: object, field: str, value: object, low: int = 1) -> None:
    """Refuse anything but an integer of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise ParameterError(
            f"{_named(owner)}: {field} is {value!r}, but must be a whole number of at least {low}"
        )


def check_choice(owner: object, field: str, value: object, allowed: tuple[object, ...]) -> None:
    """Refuse a value that is not one of the allowed ones."""
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ParameterError(f"{_named(owner)}: {field} is {value!r}, but must be one of {choices}")


def check_kind(owner: object, field: str, value: object, role: type[object]) -> None:
    """Refuse an argument that is no part of its kind: a class, a word, something else."""
    if isinstance(value, role):
        return
    if isinstance(value, type) and issubclass(value, role):
        given = f"the class {value.__name__}"
        hint = f"; call it with its options, as in {value.__name__}(...)"
    else:
        given, hint = repr(value) if isinstance(value, str) else f"a {type(value).__name__}", ""
        if isabstract(role) and type(value).__module__ != "builtins":
            members = ", ".join(sorted(role.__abstractmethods__))  # type: ignore[attr-defined]
            hint = f"; make {type(value).__name__} a subclass of it that defines {members}"
    raise ParameterError(
        f"{_named(owner)}: {field} is {given}, but must be of the kind {role.__name__}{hint}"
    )
