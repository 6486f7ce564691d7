"""One configuration over many values: every combination of a grid, or lists in step."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.errors import ConfigError
from fedadmm.study import loading
from fedadmm.study import rundir as files
from fedadmm.study.config import RunConfig, Tree, resolve
from fedadmm.study.grid import Cells
from fedadmm.study.pool import Watch, nobody

MOST_CELLS = 10_000


class Axis(NamedTuple):
    """A key and the values it takes."""

    key: str
    values: Sequence[Any]


def axis(text: str, option: str) -> Axis:
    """The axis of `key=a,b,c`; the values are TOML, or else strings."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise ConfigError(f"{option} is {text!r}, but must be KEY=A,B, as in algorithm.rho=0.1,1")
    try:
        parsed = tomllib.loads(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError:
        parsed = [loading.plain_value(value.strip()) for value in values.split(",")]
    if len(parsed) == 1 and isinstance(parsed[0], list):
        parsed = parsed[0]
    return Axis(key.strip(), parsed)


def cells_of(tree: Tree, grid: Sequence[Axis], lists: Sequence[Axis]) -> dict[str, RunConfig]:
    """Every cell's complete configuration by its label; all are checked before any is run."""
    lengths = {len(one.values) for one in lists}
    if len(lengths) > 1:
        shown = ", ".join(f"{one.key} ({len(one.values)})" for one in lists)
        raise ConfigError(f"--list: the lists must be of one length, but are {shown}")
    steps = list(zip(*([(one.key, v) for v in one.values] for one in lists), strict=True))
    products = itertools.product(*([(one.key, v) for v in one.values] for one in grid))
    combinations = [(*step, *cell) for cell in products for step in steps or [()]]
    if len(combinations) > MOST_CELLS:
        raise ConfigError(f"the sweep has {len(combinations)} cells, but at most {MOST_CELLS}")
    cells: dict[str, RunConfig] = {}
    for combination in combinations:
        changed = deepcopy(tree)
        for key, value in combination:
            loading.assign(changed, key, value)
        label = " ".join(f"{key}={value}" for key, value in combination) or "the only cell"
        cells[label] = resolve(changed, f"{label}: ")
    return cells


def sweep(
    cells: Mapping[str, RunConfig],
    out: Path,
    *,
    fresh: bool = False,
    processes: int = 1,
    watch: Watch = nobody,
) -> dict[str, Any]:
    """Run every cell that is not finished and return what is written to sweep.json."""
    folder = Cells(out / "cells")
    if fresh:
        for config in cells.values():
            folder.forget(config)
    summaries = folder.run(cells, processes, watch)
    rows = [
        {
            "set": _settings(label),
            "directory": str(folder.directory(cells[label]).relative_to(out)),
            **{key: summary[key] for key in _SHOWN},
        }
        for label, summary in summaries.items()
    ]
    result = {"cells": rows}
    files.write_json(out / "sweep.json", result)
    return result


_SHOWN = ("code", "status", "seed", "rounds", "rounds_to_target", "bytes_to_target", "final")


def _settings(label: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in label.split(" ") if "=" in part)
