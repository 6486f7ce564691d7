"""Every component rejects values that its annotations do not allow.

The message names the component, the field, the value and the limits.  The invalid values come from
the annotations alone; `RANGES` repeats by name which values the common fields allow, so that an
annotation that became too generous is noticed as well.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from numbers import Real
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, Lt

import fedadmm as fa
from fedadmm.core.parts import FAMILIES
from fedadmm.run.evaluation import Evaluation
from fedadmm.study.config import register
from support.rejections import naming

register()

COMPONENTS = {
    f"{family}-{name}": kind
    for family, known in FAMILIES.items()
    for name, kind in known.items()
    if kind.__module__.startswith("fedadmm.")
}
KINDS = COMPONENTS | {"evaluation": Evaluation}
SIGNS = {Gt: (">", "gt"), Ge: (">=", "ge"), Lt: ("<", "lt"), Le: ("<=", "le")}
UNBOUNDED = {"FedSplit.alpha", "Box.low", "Box.high", "TraceSampling.rounds", "Evaluation.extra"}
"""Numbers without a range in their annotation, because their classes check them."""

POSITIVE, NOT_NEGATIVE, UNIT, FRACTION = "(0, inf)", "[0, inf)", "[0, 1]", "(0, 1)"
RANGES = {
    **dict.fromkeys(("lr", "eta", "step", "tau", "slope", "pull", "initial", "factor"), POSITIVE),
    **dict.fromkeys(("epochs", "epsilon", "M", "theta", "c", "radius", "clip", "norm"), POSITIVE),
    **dict.fromkeys(("multiplier", "budget", "timeout", "deadline"), POSITIVE),
    **dict.fromkeys(("dirichlet_alpha", "smoothness", "compute_time"), POSITIVE),
    **dict.fromkeys(("rho", "beta", "beta_min", "beta_max"), POSITIVE),
    **dict.fromkeys(("lam", "l1", "l2", "weak_convexity", "memory", "exponent"), NOT_NEGATIVE),
    **dict.fromkeys(("grace", "size_sigma", "heterogeneity", "ridge"), NOT_NEGATIVE),
    **dict.fromkeys(("weights", "spread", "network_time", "floor", "wave"), NOT_NEGATIVE),
    **dict.fromkeys(("momentum", "beta1", "beta2", "skip_probability"), "[0, 1)"),
    **dict.fromkeys(("dropout", "validation"), "[0, 1)"),
    **dict.fromkeys(("sigma", "safety", "delta", "quantile"), FRACTION),
    **dict.fromkeys(("p", "probability", "availability"), "(0, 1]"),
    **dict.fromkeys(("size", "blocks", "steps", "history", "batch_size", "every"), "[1, inf)"),
    **dict.fromkeys(("clients", "max_epochs", "workers", "block", "buffer"), "[1, inf)"),
    **dict.fromkeys(("ratio", "conditioning"), "[1, inf)"),
    **dict.fromkeys(("data_seed", "partition_seed"), NOT_NEGATIVE),
    "Diagnostics.clients": NOT_NEGATIVE,  # 0 for all
    "AlignedADMM.sigma": UNIT,
    "AFedPD.sigma": "[1, 1]",
    "FedADMMInSa.mu": "(1, inf)",
    "FedADMMInSa.tau": "(1, inf)",
    "FedDR.alpha": "(0, 2)",
    "FedCM.alpha": "(0, 1]",
    "FedAsync.alpha": "(0, 1]",
    "AdaBest.beta": UNIT,
    "AdaBest.mu": NOT_NEGATIVE,
    "FedProx.rho": NOT_NEGATIVE,
    "FedAsync.rho": NOT_NEGATIVE,
    "UniformSampling.size": "(0, inf)",  # a fraction or a count
    "CyclicSampling.size": "(0, inf)",
    "SyntheticOptions.beta": NOT_NEGATIVE,
}
"""The range of a field of this name in every component; an entry of one class takes precedence."""


def members(annotation: Any) -> tuple[Any, ...]:
    union = get_origin(annotation) in (Union, types.UnionType)
    return get_args(annotation) if union else (annotation,)


def kind_of(annotation: Any) -> Any:
    origin = get_origin(annotation)
    return get_args(annotation)[0] if origin is Annotated else origin or annotation


def bounds(annotation: Any) -> list[tuple[str, float]]:
    """Sign and number of every bound of one kind of number."""
    rules = getattr(annotation, "__metadata__", ())
    return [(SIGNS[type(rule)][0], getattr(rule, SIGNS[type(rule)][1])) for rule in rules]


def fits(value: object, annotation: Any) -> bool:
    """Whether one member of a union takes a number or a word."""
    kind = kind_of(annotation)
    if kind is Literal:
        return value in get_args(annotation)
    if kind not in (int, float) or isinstance(value, bool) or not isinstance(value, Real):
        return False
    if kind is int and not isinstance(value, int):
        return False
    met = {">": value.__gt__, ">=": value.__ge__, "<": value.__lt__, "<=": value.__le__}
    return math.isfinite(value) and all(
        met[sign](bound) is True for sign, bound in bounds(annotation)
    )


def bad(annotation: Any) -> Iterator[tuple[object, object, list[str]]]:
    """Yield values that one member of an annotation rejects: value, invalid entry, named limits."""
    kind = kind_of(annotation)
    if kind is Literal:
        choices = get_args(annotation)
        wrong = "no-such-word" if isinstance(choices[0], str) else max(choices) + 1
        yield wrong, wrong, [repr(one) for one in choices]
    elif kind is int:
        for sign, bound in bounds(annotation):
            outside = bound if sign == ">" else bound - 1
            yield outside, outside, [str(bound)]
    elif kind is float:
        words = [f"{bound:g}" for _, bound in bounds(annotation)]
        for sign, bound in bounds(annotation):
            away = -math.inf if sign[0] == ">" else math.inf
            outside = float(bound) if len(sign) == 1 else math.nextafter(bound, away)
            yield outside, outside, words
        endless = (math.nan, math.inf, -math.inf) if words else (math.nan,)
        yield from ((one, one, words) for one in endless)
    elif kind is bool:
        yield "yes", "yes", ["True", "False"]
    elif kind is str:
        yield 3, 3, []
    elif isinstance(kind, type) and issubclass(kind, Mapping):
        for value, entry, words in bad(get_args(annotation)[1]):
            yield {0: value}, entry, words
    elif isinstance(kind, type) and issubclass(kind, Sequence):
        for item in members(get_args(annotation)[0]):
            for value, entry, words in bad(item):
                if not any(fits(value, other) for other in members(get_args(annotation)[0])):
                    yield [good(annotation)[0], value], entry, words


def good(annotation: Any) -> Any:
    """Something that an annotation allows."""
    first = members(annotation)[0]
    kind = kind_of(first)
    if kind is Literal:
        return get_args(first)[0]
    if kind is str:
        return "text"
    if kind in (int, float):
        options = (0, 1, 2) if kind is int else (0.5, 1.0, 2.0)
        return next(one for one in options if fits(one, first))
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return {0: good(get_args(first)[1])}
    return [good(get_args(first)[0])]


def annotations(kind: Any) -> dict[str, Any]:
    known = get_type_hints(kind, include_extras=True)
    return {one.name: known[one.name] for one in fields(kind) if one.init}


def rejection(kind: Any, field: str, value: object) -> str:
    needed = [
        one.name
        for one in fields(kind)
        if one.init and one.default is MISSING and one.default_factory is MISSING
    ]
    given = {name: good(annotations(kind)[name]) for name in needed}
    with pytest.raises(fa.errors.ParameterError) as error:
        kind(**(given | {field: value}))
    return str(error.value)


@pytest.mark.parametrize("name", KINDS)
def test_an_invalid_value_is_named_with_its_field_and_limits(name: str) -> None:
    kind = KINDS[name]
    for field, annotation in annotations(kind).items():
        for member in members(annotation):
            for given, entry, words in bad(member):
                if any(fits(given, other) for other in members(annotation)):
                    continue
                message = rejection(kind, field, given)
                where = r"\[\w+\]" if given is not entry else ""
                found = re.match(
                    rf"{kind.__name__}\W+{field}{where}\W.*?{re.escape(repr(entry))}", message
                )
                assert found is not None, message
                assert [one for one in words if one not in message[found.end() :]] == [], message


@pytest.mark.parametrize("name", KINDS)
def test_a_value_of_another_type_is_rejected(name: str) -> None:
    kind = KINDS[name]
    for field, annotation in annotations(kind).items():
        if Any in members(annotation):
            continue
        wrong: list[object] = [{1, 2}]
        if not any(kind_of(one) is bool for one in members(annotation)):
            wrong.append(True)
        for value in wrong:
            message = rejection(kind, field, value)
            pattern = rf"{kind.__name__}\W+{field}\W.*?{re.escape(repr(value))}.+\w"
            assert re.match(pattern, message), message


def numbers(annotation: Any) -> Iterator[Any]:
    for member in members(annotation):
        if kind_of(member) in (int, float):
            yield member
        elif get_origin(member) not in (Literal, Annotated):
            for inner in get_args(member)[-1:]:
                yield from numbers(inner)


@pytest.mark.parametrize("name", KINDS)
def test_every_number_has_a_range(name: str) -> None:
    kind = KINDS[name]
    without = {
        f"{kind.__name__}.{field}"
        for field, annotation in annotations(kind).items()
        if any(not bounds(number) for number in numbers(annotation))
    }
    assert without <= UNBOUNDED


def inside_out(words: str, whole: bool) -> list[float]:
    """The nearest numbers outside a range that is written as an interval."""
    low, high = (float(one) for one in words[1:-1].split(","))
    below = low if words[0] == "(" else low - 1 if whole else math.nextafter(low, -math.inf)
    above = high if words[-1] == ")" else math.nextafter(high, math.inf)
    found = [below, above] if math.isfinite(high) else [below]
    return [int(one) for one in found] if whole else found


@pytest.mark.parametrize("name", KINDS)
def test_fields_of_one_name_have_one_range(name: str) -> None:
    kind = KINDS[name]
    for field, annotation in annotations(kind).items():
        homes = [f"{one.__name__}.{field}" for one in kind.__mro__]
        key = next((one for one in [*homes, field] if one in RANGES), None)
        found = list(numbers(annotation))
        if key is None or not found or homes[0] in UNBOUNDED:
            continue
        whole = all(kind_of(one) is int for one in found)
        plain = any(kind_of(one) in (int, float) for one in members(annotation))
        for outside in inside_out(RANGES[key], whole):
            shape = outside if plain else {0: outside} if field == "values" else [outside]
            message = rejection(kind, field, shape)
            assert re.match(naming(f"{kind.__name__} {field} {outside!r}"), message), message


def test_every_listed_range_belongs_to_a_field() -> None:
    names = {
        name
        for kind in KINDS.values()
        for field in annotations(kind)
        for name in (field, *(f"{one.__name__}.{field}" for one in kind.__mro__))
    }
    assert set(RANGES) <= names


def test_numpy_numbers_are_accepted() -> None:
    assert fa.UniformSampling(np.int64(2)).sample(0, 0, 5)
    assert fa.FedADMM(np.float32(0.5)).rho == 0.5
