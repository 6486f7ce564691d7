"""One door to every theorem: its bound after a number of rounds, and the rounds for an accuracy."""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Callable
from typing import Literal

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Positive, checked_arguments
from fedadmm.core.validation import check
from fedadmm.theory.async_feddr import async_feddr_bound
from fedadmm.theory.feddr import feddr_bound, feddr_corollary_bound, wang_bound
from fedadmm.theory.gong import gong_bound

_BOUNDS: dict[str, Callable[..., float]] = {
    "gong": gong_bound,
    "feddr": feddr_bound,
    "feddr_corollary": feddr_corollary_bound,
    "wang": wang_bound,
    "async_feddr": async_feddr_bound,
}
THEOREMS = tuple(_BOUNDS)

_ROUNDS_LIMIT = 10**15


def _checked_bound(theorem: str, quantities: dict[str, float]) -> Callable[..., float]:
    check("bound", "theorem", theorem, Literal[THEOREMS])
    function = _BOUNDS[theorem]
    parameters = inspect.signature(function).parameters
    known = [name for name in parameters if name != "rounds"]
    unknown = sorted(set(quantities) - set(known))
    missing = [
        name
        for name in known
        if parameters[name].default is inspect.Parameter.empty and name not in quantities
    ]
    if unknown or missing:
        wrong = f"does not know {', '.join(unknown)}" if unknown else f"needs {', '.join(missing)}"
        raise ParameterError(f"bound: theorem {theorem!r} {wrong}; it takes {', '.join(known)}")
    return function


def bound(theorem: str, rounds: int, **quantities: float) -> float:
    """The right-hand side of a theorem after `rounds` rounds.

    Args:
        theorem: "gong" bounds the mean of V^t/n over the states before each of the rounds; "feddr",
            "feddr_corollary", "wang" and "async_feddr" the mean of ||G_eta(xbar^k)||² over the
            rounds + 1 models that the server has had.
        rounds: communication rounds; server steps for "async_feddr".
        **quantities: what the theorem's own function takes: `gong_bound`, `feddr_bound`,
            `feddr_corollary_bound`, `wang_bound`, `async_feddr_bound`.
    """
    return _checked_bound(theorem, quantities)(rounds=rounds, **quantities)


@checked_arguments
def rounds_needed(theorem: str, accuracy: Positive, **quantities: float) -> int:
    """The smallest number of rounds after which the theorem's bound is at most `accuracy`.

    Args:
        theorem: as in `bound`.
        accuracy: the wanted mean of the squared measure (eps² of FedDR's Definition 2.2).
        **quantities: as in `bound`.
    """
    function = _checked_bound(theorem, quantities)

    def enough(rounds: int) -> bool:  # once true, true for more rounds
        return function(rounds=rounds, **quantities) <= accuracy

    high = 1
    while not enough(high):
        if high >= _ROUNDS_LIMIT:
            floor = function(rounds=high, **quantities)
            raise ParameterError(
                f"rounds_needed: accuracy is {accuracy!r}, but the bound of {theorem!r} stays "
                f"above {floor:.4g} however many rounds are made"
            )
        high = min(2 * high, _ROUNDS_LIMIT)
    return bisect_left(range(high), True, lo=high // 2 + 1, key=enough)
