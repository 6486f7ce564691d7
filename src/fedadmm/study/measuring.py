"""What a run came to, in the terms of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.round import Record
from fedadmm.study.recipe import Cell, Measure, Recipe
from fedadmm.study.results import spread


class Outcome(NamedTuple):
    """One finished run."""

    directory: Path
    summary: dict[str, Any]
    curve: list[float]
    """The cell's metric in every round that measured it."""
    epochs: float
    """Local epochs of all clients over the whole run."""


def outcome(
    directory: Path, summary: dict[str, Any], records: Sequence[Record], metric: str
) -> Outcome:
    """Read a run's records."""
    curve = [float(record[metric]) for record in records if record.get(metric) is not None]
    epochs = sum(record["epochs"] * record["participants"] for record in records)
    return Outcome(directory, summary, curve, epochs)


def measure(name: Measure, metric: str, own: Outcome, reference: Outcome | None) -> float | None:
    """One number for one run; None when it has none (target not met, reference missing)."""
    if name == "rounds_to_target":
        rounds = own.summary["rounds_to_target"]
        return None if rounds is None else float(rounds)
    if not own.curve:
        return None
    if name == "final":
        return own.curve[-1]
    if name == "best":
        return min(own.curve) if "loss" in metric else max(own.curve)
    if name == "epochs":
        return own.epochs
    if reference is None or not reference.curve:
        return None
    if name == "epoch_reduction":
        return 1.0 - own.epochs / reference.epochs
    pairs = zip(own.curve, reference.curve, strict=False)
    return max((abs(a - b) / max(1.0, abs(b)) for a, b in pairs), default=math.nan)


def measured(
    recipe: Recipe,
    cell: Cell,
    outcomes: Mapping[str, Mapping[int, Outcome]],
    seeds: Sequence[int],
) -> dict[str, dict[str, Any]]:
    """Every measure of a cell over its finished seeds: mean, deviation, range, how many."""
    own = outcomes.get(cell.name, {})
    reference = outcomes.get(f"{cell.setting.name}/{recipe.reference}", {})
    result: dict[str, dict[str, Any]] = {}
    for name in recipe.measures:
        values = [
            measure(name, cell.metric, own[seed], reference.get(seed))
            for seed in seeds
            if seed in own
        ]
        result[name] = spread(values)
    return result
