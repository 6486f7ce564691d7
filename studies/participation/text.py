"""What the study found out, in words and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedadmm.study import formatting
from fedadmm.study.formatting import Table, markdown as as_text

_WIDTH = 48
"""Characters between the first and the last mean rank of a picture."""


def tables(found: Mapping[str, Any]) -> Iterator[Table]:
    """All that a study found out, the verdict first."""
    yield from _verdict(found["verdict"])
    yield from map(_ranking, found["rankings"])
    yield from _comparisons(found["comparisons"])
    yield from _transfers(found["transfers"])
    yield from _sensitivities(found["sensitivities"])


def markdown(found: Mapping[str, Any]) -> list[str]:
    """The tables as lines of Markdown."""
    return [line for table in tables(found) for line in ["", *as_text(table).splitlines()]]


def _verdict(verdict: Mapping[str, Any]) -> Iterator[Table]:
    chosen = verdict["chosen"]
    lines = []
    for name, judged in verdict["candidates"].items():
        score = verdict["scores"][name]
        head = [f"**{name}**" if name == chosen else name]
        head.append(formatting.NOTHING if score is None else f"{score:.1f}")
        goals = [_goal(goal) for goal in judged["goals"]]
        lines.append([*head, *goals, _behind(judged)])
    goals = next(iter(verdict["candidates"].values()))["goals"]
    titles = [_goal_title(goal) for goal in goals]
    yield Table(
        "Goals",
        ["candidate", "score", *titles, "never behind"],
        lines,
        "The score is the geometric mean of a candidate's median rounds on the development "
        "problems; the best one (bold) is what the confirmation problems judge. A goal is the "
        "median over the confirmation problems of the rounds saved against the best baseline "
        "there.",
    )
    if chosen is None:
        return
    for goal in verdict["candidates"][chosen]["goals"]:
        yield Table(
            f"{chosen}: {_goal_title(goal)}",
            ["problem", "rounds", "best baseline", "its rounds", "fewer", "95 %", "by chance"],
            [_lead(one) for one in goal["problems"]],
            f"Median {_share(goal['median'])}, wanted at least {_share(goal['fewer'])}: "
            f"{_met(goal['met'])}.",
        )


def _goal_title(goal: Mapping[str, Any]) -> str:
    also = f" or {goal['output']}" if goal["output"] else ""
    return f"{goal['percent']} %, baselines as printed{also}"


def _goal(goal: Mapping[str, Any]) -> str:
    if goal["median"] is None:
        return "not run"
    return f"{_share(goal['median'])} (wanted {_share(goal['fewer'])}): {_met(goal['met'])}"


def _behind(judged: Mapping[str, Any]) -> str:
    worst = judged["worst"]
    if worst is None:
        return "not run"
    where = f"{_share(worst['reduction'])} on {worst['problem']}, {worst['percent']} %"
    return f"worst {where}: {_met(judged['never_behind'])}"


def _met(met: bool | None) -> str:
    return "not decided" if met is None else "met" if met else "not met"


def _share(value: float | None) -> str:
    return formatting.NOTHING if value is None else f"{100 * value:+.0f} %".replace("-", "−")


def _rounds(value: float | None) -> str:
    return "missed" if value is None else f"{value:.4g}"


def _lead(one: Mapping[str, Any]) -> list[str]:
    interval = formatting.NOTHING
    if one["low"] is not None and one["high"] is not None:
        interval = f"{_share(one['low'])} to {_share(one['high'])}"
    return [
        one["problem"],
        _rounds(one["rounds"]),
        one["best"],
        _rounds(one["best_rounds"]),
        _share(one["reduction"]),
        interval,
        _chance(one["chance"]),
    ]


def _chance(value: float | None) -> str:
    return formatting.NOTHING if value is None else f"{value:.3f}"


def _ranking(found: Mapping[str, Any]) -> Table:
    names, ranks, critical = found["names"], found["ranks"], found["critical"]
    reach = ranks[0] + critical if critical is not None else None
    lines = [
        [name, f"{rank:.2f}", "" if reach is None else "yes" if rank > reach else "no"]
        for name, rank in zip(names, ranks, strict=True)
    ]
    note = f"Mean ranks of median rounds on {', '.join(found['on'])}. "
    if critical is None:
        note += "Too few rows or problems for a test."
    else:
        note += (
            f"Friedman's test sees such ranks among equals with probability {found['chance']:.2g}; "
            f"Nemenyi's critical difference at 5 % is {critical:.2f}."
        )
    return Table(
        f"Ranks at {found['percent']} %",
        ["row", "mean rank", "differs from the first"],
        lines,
        "\n".join([note, "", "```text", *picture(names, ranks, critical), "```"]),
    )


def picture(names: Sequence[str], ranks: Sequence[float], critical: float | None) -> list[str]:
    """The critical-difference picture: a line reaches as far as its row does not differ."""
    width = max(map(len, names))
    low, high = 1.0, max(*ranks, 2.0)

    def column(rank: float) -> int:
        return round((min(rank, high) - low) / (high - low) * _WIDTH)

    lines = [f"{'':{width}}  {low:<{_WIDTH // 2}.0f}{high:>{_WIDTH // 2}.1f}"]
    for name, rank in zip(names, ranks, strict=True):
        reach = column(rank + (critical or 0.0))
        lines.append(f"{name:{width}}  {' ' * column(rank)}●{'─' * (reach - column(rank))}")
    return lines


def _comparisons(found: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """For each setting the rows, those with the fewest rounds first."""
    places = dict.fromkeys((one["problem"], one["percent"], one["role"]) for one in found)
    for problem, percent, role in places:
        own = [one for one in found if (one["problem"], one["percent"]) == (problem, percent)]
        own.sort(key=lambda one: (one["median"] is None, one["median"] or 0, -one["reached"]))
        yield Table(
            f"{problem}, {percent} % ({role})",
            ["row", "median rounds", "reached", "times the best baseline", "difference", "chance"],
            [_comparison(one) for one in own],
            f"The best baseline is {own[0]['best_baseline']}.",
        )


def _comparison(one: Mapping[str, Any]) -> list[str]:
    return [
        one["title"],
        f"{one['limit']}+" if one["median"] is None else f"{one['median']:.4g}",
        f"{one['reached']} of {one['seeds']}",
        _interval(one.get("ratio"), ".2f"),
        _interval(one.get("difference"), "+.1f"),
        _chance(one.get("chance")),
    ]


def _interval(found: Mapping[str, Any] | None, form: str) -> str:
    if found is None:
        return formatting.NOTHING
    text = f"{found['value']:{form}}"
    if found["low"] is not None:
        text += f" ({found['low']:{form}} to {found['high']:{form}})"
    return text.replace("-", "−")


def _transfers(found: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    places = list(dict.fromkeys(one["place"] for one in found))
    rows: dict[str, dict[str, str]] = {}
    for one in found:
        shown = f"{_rounds(one['shared'])} ({_rounds(one['own'])})"
        rows.setdefault(one["row"], {})[one["place"]] = shown
    if rows:
        yield Table(
            "One setting for all",
            ["row", *places],
            [[row, *(cells.get(p, "") for p in places)] for row, cells in rows.items()],
            "Rounds on the search's seed with the values that were chosen for all places together, "
            "and in brackets with those that are best in this one.",
        )


def _sensitivities(found: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    lines = [
        [
            one["row"],
            one["place"],
            one["key"],
            ", ".join(f"{value}: {_rounds(rounds)}" for value, rounds in one["rounds"].items()),
        ]
        for one in found
    ]
    if lines:
        yield Table(
            "Sensitivity to the method's own parameter",
            ["row", "place", "parameter", "value: rounds"],
            lines,
            "Rounds on the search's seed, each value with the learning rate that suits it best.",
        )
