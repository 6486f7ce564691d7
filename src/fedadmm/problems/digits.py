"""The problem that needs no download: scikit-learn's digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedadmm.data.digits import digits
from fedadmm.problem import Problem
from fedadmm.problems.federation import SplitOptions, federate
from fedadmm.problems.registry import Entry, Extras, register


@dataclass(frozen=True, kw_only=True)
class DigitsOptions(SplitOptions):
    """50 clients with two label shards each, and a perceptron of 2,410 parameters."""

    clients: int | None = 50
    partition: str = "shards"
    model: str = "mlp-64-32-10"
    normalise: Literal["batch", "once"] = "once"


def _make(options: DigitsOptions, extras: Extras) -> Problem:
    return federate(digits(), options, name="digits", **extras._asdict())


register(Entry("digits", DigitsOptions, _make, "1,797 digits of 8×8 pixels, embedded"))
