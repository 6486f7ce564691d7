"""When a run ends: diverged, at its target, within its tolerance, out of budget, or complete."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from fedadmm.core.errors import ParameterError, StateError
from fedadmm.core.messages import ClientInfo
from fedadmm.run.plan import Ending, RunState, Schedule
from fedadmm.run.record import Record, numbers, value

EXPLOSION = 1e6
"""A run has diverged when the loss or ||theta|| is this many times its first value (plus one).

No honest run comes near it: where moves do not grow, the norm grows by one of them a round.
"""
_REMEDY = "try a smaller learning rate or server step, or a larger penalty"


def broken(infos: Sequence[ClientInfo], number: int) -> Ending | None:
    """The ending when a client's result is not finite."""
    when = f"round {number}" if number else "the initial round"
    for info in infos:
        if not info.finite:
            sentence = (
                f"diverged in {when}: client {info.client} returned a vector with NaN or infinite "
                "entries"
            )
            return Ending("diverged", sentence)
    return None


def norm(params: Tensor) -> float:
    """||params||, also where half precision could not hold it."""
    wide = torch.promote_types(params.dtype, torch.float32)
    return float(torch.linalg.vector_norm(params, dtype=wide))


def first_norm(before: Tensor, after: Tensor) -> float | None:
    """What the norms of a run are compared with, from the first step that moves the model."""
    return None if torch.equal(before, after) else max(norm(before), norm(after))


def decide(
    state: RunState,
    record: Record,
    infos: Sequence[ClientInfo],
    schedule: Schedule,
    params: Tensor,
) -> Ending | None:
    """Why a run ends after a round, whose state and theta these are; None while it goes on."""
    number, best = state.round, state.best
    if number == 0:
        return None
    loss, size = record["metrics"].get("loss", 0.0), norm(params)
    if _exploded(loss, state.first_loss) or _exploded(size, state.first_norm):
        worst = max(infos, key=lambda info: info.drift, default=None)
        client = f"; client {worst.client} moved furthest from it" if worst is not None else ""
        measured = f"the loss of the global model is {loss:g} and its norm {size:g}"
        if "loss" not in record["metrics"]:
            measured = f"the norm of the global model is {size:g}"
        return Ending("diverged", f"diverged in round {number}: {measured}{client}; {_REMEDY}")
    if (met := _met(partial(value, record), number, schedule)) is not None:
        return met
    spending = schedule.spending
    if spending is not None and number < schedule.rounds and not spending.lasts(state):
        return Ending(
            "budget",
            f"spent epsilon {spending.epsilon(state):.4g} in {number} rounds; another one would "
            f"exceed the budget of {spending.budget:g}",
        )
    if number >= schedule.rounds:
        return Ending("completed", f"completed all {schedule.rounds} rounds")
    if best is not None and schedule.judge is not None and schedule.judge.gives_up(best):
        return Ending("patience", schedule.judge.sentence(best))
    return None


def _exploded(value: float, first: float | None) -> bool:
    return not math.isfinite(value) or (first is not None and value > EXPLOSION * (1 + abs(first)))


def _met(measured: Callable[[str], float | None], number: int, schedule: Schedule) -> Ending | None:
    """The ending when what was measured meets the target or the tolerance."""
    if (target := schedule.target) is not None and target.end_run:
        found = {name: measured(name) for name in target.metrics}
        reached = {name: one for name, one in found.items() if one is not None}
        if len(reached) == len(found) and all(map(target.reached, reached.values())):
            shown = f"{target.metric} {reached[target.metric]:.4g}"
            return Ending("target", f"{shown} reached the target in round {number}", reached)
    mapping = measured("gradient_mapping")
    if schedule.tolerance is not None and mapping is not None and mapping <= schedule.tolerance:
        sentence = f"gradient mapping {mapping:.3g} met the tolerance in round {number}"
        return Ending("tolerance", sentence, {"gradient_mapping": mapping})
    return None


def taken_up(ending: Ending | None, state: RunState, schedule: Schedule) -> Ending | None:
    """The ending of a run that is taken up, unless this schedule lets it go on.

    More rounds, another target or tolerance, and more patience do.
    """
    code, spending = ending and ending.code, schedule.spending
    spent = code == "budget" and spending is not None and not spending.lasts(state)
    if code == "diverged" or spent:
        return ending
    if ending is not None and code in ("target", "tolerance"):
        found = ending.measured
        met = ending if found is None else _met(found.get, state.round, schedule)
        if met is not None:
            return met
    judge, best = schedule.judge, state.best
    if state.round < schedule.rounds and best is not None and judge is not None:
        return Ending("patience", judge.sentence(best)) if judge.gives_up(best) else None
    return None


def check_measured(record: Record, schedule: Schedule, state: RunState) -> None:
    """Refuse an early end that waits for something that is not measured."""
    target, judge = schedule.target, schedule.judge
    ends = target is not None and target.end_run
    waited = [("target", one) for one in target.metrics] if target is not None and ends else []
    waited += [] if schedule.tolerance is None else [("tolerance", "gradient_mapping")]
    for name, metric in waited:
        if value(record, metric) is None:
            raise ParameterError(
                f"simulate: {name} waits for {metric!r}, which is not measured; "
                f"there are {', '.join(sorted(numbers(record)))}"
            )
    if judge is not None and judge.patience is not None and state.best is None:
        raise ParameterError(
            f"simulate: patience is {judge.patience}, but no metric is measured that a model could "
            "be better by; evaluate something"
        )


def check_budget(schedule: Schedule, state: RunState) -> None:
    """Refuse to go on with a run that can't afford another round."""
    spending = schedule.spending
    if spending is None or state.round >= schedule.rounds or spending.lasts(state):
        return
    raise StateError(
        f"the run has spent epsilon {spending.epsilon(state):.4g} in {state.round} rounds, "
        f"but its budget is {spending.budget:g}, which another round would exceed"
    )
