"""Hyper-parameter search over a grid that grows until the optimum is inside.

The search neither runs experiments nor reads files: `search` calls a function, and `propose` hands
out what is to be evaluated, so that a study can run it in parallel.  All candidates are scored on
the first seed; after each seed only the best ones go on to the next (successive halving, Jamieson
and Talwalkar, AISTATS 2016, with seeds as the resource).  If the winner has a numeric parameter
at an edge of its grid, the grid grows beyond that edge by the ratio of the two outermost values (by
their difference if the grid holds a number that is not positive), and the race is repeated; scores
that are known are not computed again.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Value = Any
"""A number, or a category: a string, a boolean, or the table of a component."""
Values = dict[str, Value]


@dataclass(frozen=True)
class Trial:
    """One candidate: its values and its scores, one per seed on which it was evaluated."""

    values: Values
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean score; minus infinity if any score is not finite."""
        finite = all(math.isfinite(score) for score in self.scores)
        return math.fsum(self.scores) / len(self.scores) if finite else -math.inf


@dataclass(frozen=True)
class SearchResult:
    """Outcome of `search`.

    Attributes:
        chosen: values of the candidate with the best mean score over all seeds.
        trials: every candidate that was evaluated, in the order of the final grid.
        grid: the grid after all extensions, ascending for numeric parameters.
        seeds: the seeds of the search.
        interior: for every numeric parameter with more than one value, whether the chosen value
            has neighbours on both sides.
    """

    chosen: Values
    trials: tuple[Trial, ...]
    grid: dict[str, tuple[Value, ...]]
    seeds: tuple[int, ...]
    interior: dict[str, bool]

    @property
    def is_interior(self) -> bool:
        """Whether no searched parameter was chosen at an edge of its grid."""
        return all(self.interior.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a score that is not finite becomes None."""
        return {
            "chosen": self.chosen,
            "interior": self.interior,
            "grid": {name: list(values) for name, values in self.grid.items()},
            "seeds": list(self.seeds),
            "trials": [
                {
                    "values": trial.values,
                    "scores": [score if math.isfinite(score) else None for score in trial.scores],
                }
                for trial in self.trials
            ],
        }


def search(
    grid: Mapping[str, Sequence[Value]],
    evaluate: Callable[[Values, int], float],
    seeds: Sequence[int],
    *,
    keep: float = 1.0,
    max_extensions: int = 6,
    limits: Mapping[str, tuple[float, float]] | None = None,
) -> SearchResult:
    """Choose hyper-parameters by their mean score over several seeds; larger is better.

    Args:
        grid: the values of each parameter.  Numbers must be distinct; their grid is sorted and can
            grow.  Strings and booleans are categories: they have no edges.
        evaluate: (values, seed) -> score, for example a validation accuracy or minus a number of
            rounds.  A score that is not finite counts as the worst.
        seeds: the search seeds; they should be disjoint from the reported ones.
        keep: share of the candidates that goes on from one seed to the next, at least two; 1
            evaluates all candidates on all seeds.
        max_extensions: largest number of values that are added to the grid of one parameter.
        limits: inclusive range of values to which the grid of a parameter may grow.

    Returns:
        The chosen values, with everything that was tried.

    Raises:
        ValueError: if the grid, the seeds or `keep` cannot be searched.

    Example:
        >>> def score(values, seed):
        ...     return -abs(values["lr"] - 0.4)
        >>> result = search({"lr": [0.05, 0.1]}, score, seeds=[0])
        >>> result.chosen, result.grid["lr"], result.is_interior
        ({'lr': 0.4}, (0.05, 0.1, 0.2, 0.4, 0.8), True)
    """
    steps = propose(grid, seeds, keep=keep, max_extensions=max_extensions, limits=limits)
    scores: list[float] | None = None
    while True:
        try:
            wanted = next(steps) if scores is None else steps.send(scores)
        except StopIteration as end:
            found: SearchResult = end.value
            return found
        scores = [evaluate(one.values, one.seed) for one in wanted]


class TrialRequest(NamedTuple):
    """One evaluation that a search asks for."""

    values: Values
    seed: int


def propose(
    grid: Mapping[str, Sequence[Value]],
    seeds: Sequence[int],
    *,
    keep: float = 1.0,
    max_extensions: int = 6,
    limits: Mapping[str, tuple[float, float]] | None = None,
) -> Generator[list[TrialRequest], list[float], SearchResult]:
    """The search of `search` as a generator, for callers that evaluate several points in parallel.

    Yields:
        The evaluations of the next step; their scores are sent back in this order.
    """
    searched = {name: _ordered(name, values) for name, values in grid.items()}
    seeds = tuple(seeds)
    if not searched:
        raise ValueError("grid: got no parameter, expected at least one.")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds: got {list(seeds)}, expected at least one and no repetition.")
    if not 0 < keep <= 1:
        raise ValueError(f"keep: got {keep}, expected a number above 0 and at most 1.")
    scores: dict[str, list[float]] = {}
    extensions = dict.fromkeys(searched, 0)
    while True:
        winner = yield from _race(searched, seeds, keep, scores)
        grown = False
        for name, value in winner.items():
            new = _beyond(searched[name], value, (limits or {}).get(name, (-math.inf, math.inf)))
            if new is not None and extensions[name] < max_extensions:
                searched[name] = _ordered(name, [*searched[name], new])
                extensions[name] += 1
                grown = True
        if not grown:
            break
    numeric = {name: values for name, values in searched.items() if _has_edges(values)}
    return SearchResult(
        chosen=winner,
        trials=tuple(
            Trial(values, tuple(scores[_key(values)])) for values in _candidates(searched)
        ),
        grid=searched,
        seeds=seeds,
        interior={n: winner[n] not in (values[0], values[-1]) for n, values in numeric.items()},
    )


def _candidates(grid: Mapping[str, tuple[Value, ...]]) -> list[Values]:
    return [dict(zip(grid, one, strict=True)) for one in itertools.product(*grid.values())]


def _key(values: Values) -> str:
    return json.dumps(values, sort_keys=True, default=str)


def _race(
    grid: Mapping[str, tuple[Value, ...]],
    seeds: tuple[int, ...],
    keep: float,
    scores: dict[str, list[float]],
) -> Generator[list[TrialRequest], list[float], Values]:
    """Return the values that win, and add the scores that were missing to `scores`."""
    runners = _candidates(grid)
    for index, seed in enumerate(seeds):
        missing = [one for one in runners if len(scores.setdefault(_key(one), [])) == index]
        if missing:
            found = yield [TrialRequest(one, seed) for one in missing]
            for one, score in zip(missing, found, strict=True):
                scores[_key(one)].append(float(score))
        # Only the seeds that all runners have in common decide, whatever an earlier race added.
        ranked = sorted(
            runners,
            key=lambda one: Trial({}, tuple(scores[_key(one)][: index + 1])).mean,
            reverse=True,
        )
        going_on = ranked[: max(2, math.ceil(keep * len(ranked)))]
        runners = [one for one in runners if one in going_on]
    return ranked[0]


def _ordered(name: str, values: Sequence[Value]) -> tuple[Value, ...]:
    """Return the grid of one parameter, sorted if it is numeric."""
    if not values or len({_key({name: value}) for value in values}) < len(values):
        raise ValueError(f"grid.{name}: got {list(values)}, expected distinct values.")
    numbers = [one for one in values if _is_number(one)]
    if not numbers:
        return tuple(values)
    if len(numbers) < len(values):
        raise ValueError(
            f"grid.{name}: got {list(values)}, expected numbers only, or categories only."
        )
    return tuple(sorted(numbers))


def _has_edges(values: tuple[Value, ...]) -> bool:
    return len(values) > 1 and _is_number(values[0])


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _beyond(values: tuple[Value, ...], chosen: Value, limits: tuple[float, float]) -> float | None:
    """Return the next value beyond the edge at which `chosen` is, or None."""
    if not _has_edges(values) or chosen not in (values[0], values[-1]):
        return None
    outer, inner = (values[0], values[1]) if chosen == values[0] else (values[-1], values[-2])
    # Four significant digits keep a geometric grid readable in results and configurations.
    beyond = outer**2 / inner if values[0] > 0 else 2 * outer - inner
    new = float(f"{float(beyond):.4g}")
    if isinstance(outer, int) and isinstance(inner, int):
        new = round(new)
    return new if limits[0] <= new <= limits[1] and new not in values else None
