"""One configuration over many values: every combination of a grid, or lists in step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.core.config_tree import Tree
from fedadmm.core.errors import ConfigError
from fedadmm.study import config, formatting
from fedadmm.study.config import resolve, toml_tables
from fedadmm.study.run_dir import create, write_toml
from fedadmm.study.runner import OnEvent, ignore_event, run_study
from fedadmm.study.spec import (
    PLAN,
    Cell,
    Override,
    Study,
    apply,
    below,
    check_distinct,
    check_reached,
    part_in,
    reach,
    setting_of,
    shown_value,
)
from fedadmm.study.study_result import StudyResult, runs_table, write_results

MOST_CELLS = 10_000
PLAN_KEY = "sweep"
"""The section of a sweep's study.toml with its grid, lists and settings."""


class SweptKey(NamedTuple):
    """A key and the values it takes."""

    key: str
    values: Sequence[Any]


def axis(text: str, option: str) -> SweptKey:
    """The axis of `key=a,b,c`; the values are TOML, or else strings."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise ConfigError(f"{option}: got {text!r}, expected KEY=A,B, as in algorithm.rho=0.1,1")
    try:
        parsed = toml_tables(f"values = [{values}]")["values"]
    except ValueError:
        parsed = [config.plain_value(value.strip()) for value in values.split(",")]
    if len(parsed) == 1 and isinstance(parsed[0], list):
        parsed = parsed[0]
    return SweptKey(key.strip(), parsed)


def plan(
    tree: Tree,
    grid: Sequence[SweptKey],
    lists: Sequence[SweptKey],
    settings: Sequence[Override] = (),
) -> Study:
    """Every cell's complete configuration; all are checked before any is run.

    `settings` go to every cell that has the key.
    """
    lengths = {len(one.values) for one in lists}
    if len(lengths) > 1:
        shown = ", ".join(f"{one.key} ({len(one.values)})" for one in lists)
        raise ConfigError(f"--list: the lists must be of one length, but are {shown}")
    for one in grid:
        check_distinct(one.key, one.values)
    steps = list(zip(*([(one.key, v) for v in one.values] for one in lists), strict=True))
    products = itertools.product(*([(one.key, v) for v in one.values] for one in grid))
    combinations = [(*step, *cell) for cell in products for step in steps or [()]]
    if len(combinations) > MOST_CELLS:
        raise ConfigError(f"the sweep has {len(combinations)} cells, but at most {MOST_CELLS}")
    ground, above = below(tree, settings, (one.key for one in [*grid, *lists]))
    found = [cell_of(ground, dict(combination), above) for combination in combinations]
    cells, applied = [cell for cell, _ in found], [taken for _, taken in found]
    check_reached(above, [cell.run.tree for cell in cells], applied)
    reached = [
        reach(one, [part_in(cell.run.tree, one[0]) for cell in cells], applied)
        for place, one in enumerate(above)
        if one not in above[:place]
    ]
    axes = {"grid": grid, "list": lists}
    plan: Tree = {name: [one._asdict() for one in found] for name, found in axes.items()}
    plan["set"] = [{"key": key, "value": value} for key, value in settings]
    return Study("sweep", cells, plan={**tree, PLAN_KEY: plan}, reached=reached)


def planned(tree: Tree) -> tuple[Tree, list[SweptKey], list[SweptKey], list[Override]]:
    """Return what `plan` was called with, from the `study.toml` of a sweep."""
    kept = tree.get(PLAN_KEY, {})
    base = {key: value for key, value in tree.items() if key != PLAN_KEY}
    grid, lists = ([SweptKey(**one) for one in kept.get(name, ())] for name in ("grid", "list"))
    return base, grid, lists, [(one["key"], one["value"]) for one in kept.get("set", ())]


def cell_of(
    tree: Tree, values: dict[str, Any], settings: Sequence[Override] = ()
) -> tuple[Cell, list[Override]]:
    """The cell that a configuration makes with some keys varied, and what else was set there."""
    made = deepcopy(tree)
    for key, value in values.items():
        config.assign(made, key, deepcopy(value))
    applied = apply(made, settings)
    name = " ".join(f"{key}={shown_value(value)}" for key, value in values.items())
    run = resolve(made, f"{name}: " if name else "")
    shown = setting_of(values)
    label = ", ".join(v if key == "method" else f"{key}={v}" for key, v in shown.items())
    cell = Cell(label or run.label, run, name or "the only cell", values=values)
    return cell, applied


def sweep(
    study: Study,
    out: Path,
    *,
    fresh: bool = False,
    processes: int = 1,
    watch: OnEvent = ignore_event,
) -> StudyResult:
    """Run every cell that is not finished, and write results.json and its table."""
    create(out)
    write_toml(out / PLAN, study.plan)
    found = run_study(study, out, fresh=fresh, processes=processes, watch=watch)
    write_results(found)
    formatting.write_tables(out, {"cells": runs_table(found.document)})
    return found
