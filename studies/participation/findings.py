"""What a study of many problems comes to: comparisons, ranks, a verdict, and what a search shows.

Rounds are compared by their medians over the seeds.  A run that missed its target counts as the
rounds that it was given, which flatters it; a row most of whose runs missed is last.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from fedadmm.core.parts import checked
from fedadmm.study.statistics import mean_difference, median_ratio, restricted, sign_flip_p_value
from studies.participation.ranks import ranking

CONFIRMATION, DEVELOPMENT = "confirmation", "development"


@checked
class Goal:
    """How many rounds fewer than the best baseline a candidate wants to need, in the median.

    Args:
        percent: of the clients that take part.
        fewer: the share of the baseline's rounds that is saved.
        output: what baselines may hand out besides what they usually do.
    """

    percent: int
    fewer: float
    output: str | None = None


@checked
class Verdict:
    """What the settings of the role `confirmation` are to decide.

    Of several candidates the one counts that did best in the settings of the role `development`.

    Args:
        candidates: rows of the recipe.
        baselines: rows of the recipe.
        goals: what a candidate is to reach.
        behind: what no baseline may be ahead by, as a share of its rounds.
    """

    candidates: Sequence[str]
    baselines: Sequence[str]
    goals: Sequence[Goal]
    behind: float


class RowOutcome(NamedTuple):
    """One row of the study in one setting."""

    problem: str
    percent: int
    role: str | None
    row: str
    title: str
    rounds: dict[int, float | None]
    """To the target, by seed; None where it was missed."""
    limit: int
    """The rounds that a run was given."""

    @property
    def median(self) -> float:
        """Over the seeds; infinite when half of them or more missed the target."""
        return statistics.median(math.inf if r is None else r for r in self.rounds.values())


def findings(verdict: Verdict, outcomes: Sequence[RowOutcome]) -> dict[str, Any]:
    """Everything that is found out about finished runs."""
    return {
        "comparisons": [one for place in _places(outcomes) for one in _compared(verdict, place)],
        "rankings": list(_rankings(outcomes)),
        "verdict": judge(verdict, outcomes),
    }


def _places(outcomes: Sequence[RowOutcome]) -> list[list[RowOutcome]]:
    """The outcomes of every setting."""
    found: dict[tuple[str, int], list[RowOutcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.problem, outcome.percent), []).append(outcome)
    return list(found.values())


def _compared(verdict: Verdict, place: Sequence[RowOutcome]) -> Iterator[dict[str, Any]]:
    """Every row of a setting beside the best baseline as it is usually handed out."""
    best = _best(place, verdict.baselines)
    for outcome in place:
        yield {
            "problem": outcome.problem,
            "percent": outcome.percent,
            "role": outcome.role,
            "row": outcome.row,
            "title": outcome.title,
            "seeds": len(outcome.rounds),
            "reached": sum(one is not None for one in outcome.rounds.values()),
            "median": _finite(outcome.median),
            "limit": outcome.limit,
            "best_baseline": None if best is None else best.row,
            **({} if best is None else _pair(outcome, best)),
        }


def _pair(own: RowOutcome, other: RowOutcome) -> dict[str, Any]:
    """A ratio and a difference of rounds on the same seeds, with their intervals."""
    seeds = [seed for seed in own.rounds if seed in other.rounds]
    if not seeds:
        return {"ratio": None, "difference": None, "chance": None}
    a, b = (restricted([one.rounds[seed] for seed in seeds], one.limit) for one in (own, other))
    return {
        "ratio": median_ratio(a, b)._asdict(),
        "difference": mean_difference(a, b)._asdict(),
        "chance": sign_flip_p_value(a, b),
    }


def _best(place: Sequence[RowOutcome], rows: Sequence[str]) -> RowOutcome | None:
    there = [outcome for outcome in place if outcome.row in rows]
    return min(there, key=lambda outcome: outcome.median, default=None)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rankings(outcomes: Sequence[RowOutcome]) -> Iterator[dict[str, Any]]:
    """For each percentage the rows that were run on all of its confirmation problems."""
    confirmed = [outcome for outcome in outcomes if outcome.role == CONFIRMATION]
    for percent in sorted({outcome.percent for outcome in confirmed}):
        here = [outcome for outcome in confirmed if outcome.percent == percent]
        problems = list(dict.fromkeys(outcome.problem for outcome in here))
        table: dict[str, dict[str, float]] = {}
        for outcome in here:
            table.setdefault(outcome.title, {})[outcome.problem] = outcome.median
        complete = {
            title: [medians[problem] for problem in problems]
            for title, medians in table.items()
            if len(medians) == len(problems)
        }
        if len(complete) >= 2:
            yield {"percent": percent, "on": problems, **ranking(complete)._asdict()}


def judge(verdict: Verdict, outcomes: Sequence[RowOutcome]) -> dict[str, Any]:
    """Which candidate the development problems choose, and how all do on the others."""
    scores = {name: _score(verdict, outcomes, name) for name in verdict.candidates}
    known = {name: score for name, score in scores.items() if score is not None}
    chosen = min(known, key=lambda name: known[name], default=None)
    return {
        "chosen": chosen,
        "scores": scores,
        "candidates": {name: _judged(verdict, outcomes, name) for name in verdict.candidates},
    }


def _score(verdict: Verdict, outcomes: Sequence[RowOutcome], name: str) -> float | None:
    """The geometric mean of a candidate's medians on the development problems.

    A median that was missed counts as twice the limit; None unless it was run on all of them.
    """
    percents = {goal.percent for goal in verdict.goals}
    places = {
        (o.problem, o.percent) for o in outcomes if o.role == DEVELOPMENT and o.percent in percents
    }
    own = [o for o in outcomes if o.row == name and (o.problem, o.percent) in places]
    if not own or len(own) < len(places):
        return None
    return statistics.geometric_mean(min(o.median, 2.0 * o.limit) for o in own)


def _judged(verdict: Verdict, outcomes: Sequence[RowOutcome], name: str) -> dict[str, Any]:
    goals = [_met(verdict, goal, outcomes, name) for goal in verdict.goals]
    confirmed = [one for goal in goals for one in goal["problems"]]
    worst = min(confirmed, key=lambda one: one["reduction"], default=None)
    return {
        "goals": goals,
        "worst": worst,
        "behind": verdict.behind,
        "never_behind": None if worst is None else worst["reduction"] >= -verdict.behind,
    }


def _met(verdict: Verdict, goal: Goal, outcomes: Sequence[RowOutcome], name: str) -> dict[str, Any]:
    """A goal on every confirmation problem, and whether the median of them meets it."""
    rivals = [*verdict.baselines]
    if goal.output is not None:
        rivals += [f"{name}+{goal.output}" for name in verdict.baselines]
    found = []
    for place in _places(outcomes):
        own = next((o for o in place if o.row == name), None)
        best = _best(place, rivals)
        confirmed = place[0].role == CONFIRMATION and place[0].percent == goal.percent
        if confirmed and own is not None and best is not None:
            found += _lead(own, best)
    median = statistics.median(one["reduction"] for one in found) if found else None
    return {
        **asdict(goal),
        "problems": found,
        "median": median,
        "met": None if median is None else median >= goal.fewer,
    }


def _lead(own: RowOutcome, best: RowOutcome) -> list[dict[str, Any]]:
    """How many rounds fewer than the best baseline, as a share; nothing without a common seed."""
    pair = _pair(own, best)
    ratio = pair["ratio"]
    if ratio is None:
        return []
    ends = {"low": ratio["high"], "high": ratio["low"]}
    return [
        {
            "problem": own.problem,
            "percent": own.percent,
            "rounds": _finite(own.median),
            "best": best.row,
            "best_rounds": _finite(best.median),
            "reduction": 1.0 - ratio["value"],
            **{end: None if one is None else 1.0 - one for end, one in ends.items()},
            "chance": pair["chance"],
            "seeds": len(own.rounds),
        }
    ]


class Transfer(NamedTuple):
    """One setting for all: what a row's shared choice costs where it could have had its own."""

    row: str
    place: str
    own: float | None
    """Rounds on the search's seed with the values that are best there."""
    shared: float | None
    """Rounds there with the values that were chosen for all places."""


def transfers(tried: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> list[Transfer]:
    """For every row and place of a search; `best` is what was chosen by label."""
    found = []
    for label, places in _by_label_and_place(tried).items():
        chosen = json.dumps(best[label]["value"]) if label in best else None
        for place, rows in places.items():
            rounds = {json.dumps(row["value"]): row["rounds_to_target"] for row in rows}
            reached = [one for one in rounds.values() if one is not None]
            setting, _, row = place.partition("/")
            found.append(
                Transfer(row, setting, min(reached, default=None), rounds.get(chosen or ""))
            )
    return found


class Sensitivity(NamedTuple):
    """Rounds by the value of a method's own parameter, each with the learning rate best for it."""

    row: str
    place: str
    key: str
    rounds: dict[str, float | None]


def sensitivities(
    tried: Sequence[Mapping[str, Any]], shared: str = "local.solver.lr"
) -> list[Sensitivity]:
    """For every row that tried another key than the one that everybody tries."""
    found = []
    for places in _by_label_and_place(tried).values():
        for place, rows in places.items():
            keys = [key for key in rows[0]["value"] if key != shared]
            setting, _, name = place.partition("/")
            for key in keys:
                rounds: dict[str, float | None] = {}
                for row in rows:
                    value, one = str(row["value"][key]), row["rounds_to_target"]
                    known = [r for r in (rounds.get(value), one) if r is not None]
                    rounds[value] = min(known, default=None)
                found.append(Sensitivity(name, setting, key, rounds))
    return found


def _by_label_and_place(
    tried: Sequence[Mapping[str, Any]],
) -> dict[str, dict[str, list[Mapping[str, Any]]]]:
    found: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in tried:
        found.setdefault(row["label"], {}).setdefault(row["place"], []).append(row)
    return found
