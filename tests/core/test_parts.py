"""Parts check their fields against their annotations, and keep their own rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import pytest
from annotated_types import Ge, Gt, Lt

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import FAMILIES, Count, Positive, Share, checked_arguments, part
from fedadmm.core.schedules import Geometric, Schedule

SCHEDULES = "a schedule: piecewise, per-work, geometric"


@pytest.fixture
def kind():
    @part("test-family", "sample")
    class Sample:
        rho: Positive | Schedule
        size: Count = 1
        share: Annotated[float, Ge(0), Lt(1)] = 0.5
        mode: Literal["a", "b"] = "a"
        weights: Sequence[Positive] | None = None
        free: float = 0.0

        def __post_init__(self) -> None:
            if self.mode == "b" and self.size == 1:
                raise ParameterError("Sample: size is 1, but must be larger with mode='b'")

    yield Sample
    del FAMILIES["test-family"]


def test_it_is_registered_named_and_frozen(kind):
    assert FAMILIES["test-family"] == {"sample": kind}
    made = kind(1)
    assert (made.name, made.rho, made) == ("sample", 1, kind(rho=1))
    with pytest.raises(AttributeError):
        made.rho = 2.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rho": 0.0}, "Sample: rho is 0.0, but must be > 0 and finite"),
        ({"rho": float("nan")}, "Sample: rho is nan, but must be > 0 and finite"),
        (
            {"rho": "x"},
            f"Sample: rho is 'x', but must be > 0 and finite, or {SCHEDULES}",
        ),
        (
            {"rho": True},
            f"Sample: rho is True, but must be > 0 and finite, or {SCHEDULES}",
        ),
        ({"size": 0}, "Sample: size is 0, but must be a whole number of at least 1"),
        ({"size": 1.5}, "Sample: size is 1.5, but must be a whole number of at least 1"),
        ({"share": 1.0}, "Sample: share is 1.0, but must be >= 0 and < 1"),
        ({"mode": "c"}, "Sample: mode is 'c', but must be one of 'a', 'b'"),
        ({"weights": [1.0, -1.0]}, "Sample: weights[1] is -1.0, but must be > 0 and finite"),
        ({"free": "x"}, "Sample: free is 'x', but must be a number"),
        ({"mode": "b"}, "Sample: size is 1, but must be larger with mode='b'"),
    ],
)
def test_a_field_that_does_not_fit_is_refused_in_a_sentence(kind, options, message):
    with pytest.raises(ParameterError) as refusal:
        kind(**({"rho": 1.0} | options))
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    "options",
    [
        {"rho": Geometric(1.0)},
        {"rho": np.float32(0.5)},
        {"size": np.int64(3)},
        {"weights": (1, 2.5)},
        {"free": float("inf")},
        {"mode": "b", "size": 2},
    ],
)
def test_what_fits_is_kept_as_it_is(kind, options):
    made = kind(**({"rho": 1.0} | options))
    assert all(getattr(made, name) is value for name, value in options.items())


def test_a_subclass_keeps_the_rules_of_its_parent_and_adds_its_own_ranges(kind):
    @part("test-family", "narrow")
    class Narrow(kind):
        share: Annotated[float, Gt(0.5), Lt(1)] = 0.6

    with pytest.raises(ParameterError, match=r"Narrow: share is 0.5, but must be > 0.5 and < 1"):
        Narrow(1.0, share=0.5)
    with pytest.raises(ParameterError, match="must be larger with mode='b'"):
        Narrow(1.0, mode="b")


def test_a_name_belongs_to_one_class_which_may_be_defined_again(kind):
    class Other:
        pass

    with pytest.raises(ParameterError, match=r"^test-family: name 'sample' is taken already$"):
        part("test-family", "sample")(Other)
    assert FAMILIES["test-family"]["sample"] is kind
    again = part("test-family", "narrow")(type("Sample", (kind,), {"__qualname__": "Same"}))
    redefined = part("test-family", "narrow")(type("Sample", (kind,), {"__qualname__": "Same"}))
    assert FAMILIES["test-family"]["narrow"] is redefined is not again


@checked_arguments
def _scaled(size: Count, /, share: Share = 2.0, *, mode: Literal["a", "b"] = "a") -> float:
    return size * share


def test_a_function_refuses_an_argument_outside_its_annotation():
    assert _scaled(3, 0.5) == 1.5
    assert _scaled(3) == 6.0  # a default is the function's own business
    for call, message in (
        (lambda: _scaled(0), "_scaled: size is 0, but must be a whole number of at least 1"),
        (lambda: _scaled(1, share=1.5), "_scaled: share is 1.5, but must be > 0 and <= 1"),
        (lambda: _scaled(1, mode="c"), "_scaled: mode is 'c', but must be one of 'a', 'b'"),
    ):
        with pytest.raises(ParameterError) as refusal:
            call()
        assert str(refusal.value) == message
    with pytest.raises(TypeError, match="missing a required"):
        _scaled()
