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
from support.rejections import naming

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
                raise ParameterError("Sample: size: got 1, expected larger with mode='b'")

    yield Sample
    del FAMILIES["test-family"]


def test_it_is_registered_named_and_frozen(kind):
    assert FAMILIES["test-family"] == {"sample": kind}
    made = kind(1)
    assert (made.name, made.rho, made) == ("sample", 1, kind(rho=1))
    with pytest.raises(AttributeError):
        made.rho = 2.0


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"rho": 0.0}, "Sample rho 0.0 0"),
        ({"rho": float("nan")}, "Sample rho nan 0"),
        ({"rho": "x"}, "Sample rho 'x' 0 piecewise geometric"),
        ({"rho": True}, "Sample rho True 0 piecewise geometric"),
        ({"size": 0}, "Sample size 0 1"),
        ({"size": 1.5}, "Sample size 1.5 1"),
        ({"share": 1.0}, "Sample share 1.0 0 1"),
        ({"mode": "c"}, "Sample mode 'c' 'a' 'b'"),
        ({"weights": [1.0, -1.0]}, "Sample weights[1] -1.0 0"),
        ({"free": "x"}, "Sample free 'x'"),
        ({"mode": "b"}, "Sample size 1 mode='b'"),
    ],
)
def test_an_invalid_field_is_rejected(kind, options, names):
    with pytest.raises(ParameterError, match=naming(names)):
        kind(**({"rho": 1.0} | options))


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

    with pytest.raises(ParameterError, match=naming("Narrow share 0.5 1")):
        Narrow(1.0, share=0.5)
    with pytest.raises(ParameterError, match=naming("Sample size mode='b'")):
        Narrow(1.0, mode="b")


def test_a_name_belongs_to_one_class_which_may_be_defined_again(kind):
    class Other:
        pass

    with pytest.raises(ParameterError, match=naming("test-family 'sample'")):
        part("test-family", "sample")(Other)
    assert FAMILIES["test-family"]["sample"] is kind
    again = part("test-family", "narrow")(type("Sample", (kind,), {"__qualname__": "Same"}))
    redefined = part("test-family", "narrow")(type("Sample", (kind,), {"__qualname__": "Same"}))
    assert FAMILIES["test-family"]["narrow"] is redefined is not again


@checked_arguments
def _scaled(size: Count, /, share: Share = 2.0, *, mode: Literal["a", "b"] = "a") -> float:
    return size * share


def test_a_function_rejects_an_argument_outside_its_annotation():
    assert _scaled(3, 0.5) == 1.5
    assert _scaled(3) == 6.0  # a default is the function's own business
    for call, names in (
        (lambda: _scaled(0), "_scaled size 0 1"),
        (lambda: _scaled(1, share=1.5), "_scaled share 1.5 0 1"),
        (lambda: _scaled(1, mode="c"), "_scaled mode 'c' 'a' 'b'"),
    ):
        with pytest.raises(ParameterError, match=naming(names)):
            call()
    with pytest.raises(TypeError, match="missing a required"):
        _scaled()
