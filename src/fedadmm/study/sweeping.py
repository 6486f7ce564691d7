"""One configuration over many values: every combination of a grid, or lists in step."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.core.errors import ConfigError
from fedadmm.core.tables import Tree, flattened
from fedadmm.run.experiment import Experiment
from fedadmm.study import loading, overriding, tables
from fedadmm.study.config import resolve
from fedadmm.study.grid import Cell, check_distinct, complete
from fedadmm.study.overriding import Setting, part_in
from fedadmm.study.pool import Watch, nobody
from fedadmm.study.rundir import toml_tables, write_json
from fedadmm.study.tables import Table

MOST_CELLS = 10_000
OVERVIEW = "sweep.json"


class Axis(NamedTuple):
    """A key and the values it takes."""

    key: str
    values: Sequence[Any]


class Point(NamedTuple):
    """One cell of a sweep before it has a folder: what is set, and the run that it makes."""

    values: dict[str, Any]
    """Dotted key -> value, as the configuration holds it."""
    run: Experiment
    applied: Sequence[Setting] = ()
    """What is set in every cell that has the key, as far as this one has it."""

    @property
    def label(self) -> str:
        """What is set, in one line."""
        shown = (f"{key}={_shown(value)}" for key, value in self.values.items())
        return " ".join(shown) or "the only cell"


def axis(text: str, option: str) -> Axis:
    """The axis of `key=a,b,c`; the values are TOML, or else strings."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise ConfigError(f"{option} is {text!r}, but must be KEY=A,B, as in algorithm.rho=0.1,1")
    try:
        parsed = toml_tables(f"values = [{values}]")["values"]
    except ValueError:
        parsed = [loading.plain_value(value.strip()) for value in values.split(",")]
    if len(parsed) == 1 and isinstance(parsed[0], list):
        parsed = parsed[0]
    return Axis(key.strip(), parsed)


def points_of(
    tree: Tree, grid: Sequence[Axis], lists: Sequence[Axis], settings: Sequence[Setting] = ()
) -> list[Point]:
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
    ground, above = overriding.below(tree, settings, (one.key for one in [*grid, *lists]))
    points = [point_of(ground, dict(combination), above) for combination in combinations]
    runs, applied = [point.run.tree for point in points], [point.applied for point in points]
    overriding.check_reached(above, runs, applied)
    return points


def point_of(tree: Tree, values: dict[str, Any], settings: Sequence[Setting] = ()) -> Point:
    """The cell that a configuration makes with some keys varied, and others set."""
    changed = deepcopy(tree)
    for key, value in values.items():
        loading.assign(changed, key, deepcopy(value))
    applied = overriding.apply(changed, settings)
    where = " ".join(f"{key}={_shown(value)}" for key, value in values.items())
    return Point(values, resolve(changed, f"{where}: " if where else ""), applied)


def reached(points: Sequence[Point]) -> list[str]:
    """What was set in parts of the cells, and in which parts, a line for each."""
    applied = [point.applied for point in points]
    settings = [one for some in applied for one in some]
    return [
        overriding.reach(one, [part_in(point.run.tree, one[0]) for point in points], applied)
        for number, one in enumerate(settings)
        if one not in settings[:number]
    ]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def cell_of(out: Path, point: Point) -> Cell:
    """Where a cell of a sweep or a search lies."""
    return Cell.by_hash(out / "cells", point.label, point.run)


def short_keys(keys: Sequence[str]) -> list[str]:
    """The last word of each key, where that is enough to tell them apart."""
    last = [key.split(".")[-1] for key in keys]
    return [word if last.count(word) == 1 else key for key, word in zip(keys, last, strict=True)]


def setting(values: Mapping[str, Any]) -> dict[str, str]:
    """What a cell sets besides its seed, for people: short keys, and methods by their titles."""
    from fedadmm.algorithms import REGISTRY

    shown = {key: _shown(value) for key, value in values.items() if key != "seed"}
    name = shown.pop("algorithm.name", None)
    method = {} if name is None else {"method": REGISTRY[name].title if name in REGISTRY else name}
    return method | dict(zip(short_keys(list(shown)), shown.values(), strict=True))


def sweep(
    points: Sequence[Point],
    out: Path,
    *,
    fresh: bool = False,
    processes: int = 1,
    watch: Watch = nobody,
) -> dict[str, Any]:
    """Run every cell that is not finished and return what is written to sweep.json."""
    cells = [cell_of(out, one) for one in points]
    if fresh:
        for cell in cells:
            cell.forget()
    complete(cells, processes, watch)
    rows = []
    for point, cell in zip(points, cells, strict=True):
        found = cell.read()
        rows.append(
            {
                "set": point.values,
                "directory": str(cell.directory.relative_to(out)),
                "code": found.code,
                "status": found.status,
                "seed": found.seed,
                "rounds": found.tally["rounds"],
                "rounds_to_target": found.to_target("rounds"),
                "bytes_to_target": found.to_target("bytes"),
                "target": point.run.tree.get("target"),
                "final": found.final,
            }
        )
    result = {"cells": rows}
    write_json(out / OVERVIEW, result)
    tables.write(out, {"cells": table(result)})
    return result


def table(result: Mapping[str, Any]) -> Table:
    """One line a cell: what was set, and what came out."""
    rows = result["cells"]
    targeted = any(row["target"] is not None for row in rows)
    metrics = list(dict.fromkeys(name for row in rows for name in row["final"]))
    columns = ["rounds done", *(["rounds to target"] if targeted else []), *metrics]
    lines = []
    for row in rows:
        done = f"{row['rounds']} (diverged)" if row["code"] == "diverged" else row["rounds"]
        reached = [row["rounds_to_target"]] if targeted else []
        finals = (row["final"].get(name) for name in metrics)
        lines.append(
            [tables.number_cell(value) for value in [*row["set"].values(), done, *reached, *finals]]
        )
    keys = short_keys(list(rows[0]["set"])) if rows else []
    data = [flattened(row) for row in rows]
    return Table("Sweep", [*keys, *columns], lines, data=data)
