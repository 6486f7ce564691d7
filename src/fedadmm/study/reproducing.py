"""Tables and figures of the papers, run again: the paper's figure beside each reading of it.

A recipe (recipes/ID.toml) is data: base tables, settings (columns), methods with their readings
(rows), the paper's values, a declared search, and what changes with the scale.  Every cell is a
complete run, found again by its hash: first the declared search, then the reported seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedadmm.core.errors import ConfigError
from fedadmm.core.tables import Tree
from fedadmm.run.experiment import Experiment
from fedadmm.study import output, records, tables
from fedadmm.study.comparing import write_overview
from fedadmm.study.grid import Cell, Trial, choose, complete, search
from fedadmm.study.pool import Watch, nobody
from fedadmm.study.recipe import (
    Measure,
    Recipe,
    Search,
    TableCell,
    cells,
    load,
    name_of,
    tuning_cells,
)
from fedadmm.study.recorded import RecordedRun
from fedadmm.study.results import Results, results, spread
from fedadmm.study.rundir import create, write_json, write_text


class Reproduction(NamedTuple):
    """What is to be run."""

    identifier: str
    scale: str
    recipe: Recipe
    cells: list[TableCell]
    seeds: list[int]
    search: Search | None

    def runs(self) -> int:
        """How many runs it takes at the most, those of the search among them."""
        tried = _points(self, self.search) if self.search is not None else []
        return len(self.cells) * len(self.seeds) + len(tried)


Chosen = dict[str, Tree]
"""The values that the search chose, by cell; none where a method is not tuned."""
Found = dict[str, dict[int, RecordedRun]]
"""The finished runs, by cell and seed."""


def plan(
    identifier: str,
    scale: str,
    seeds: int | None = None,
    patterns: Sequence[str] = (),
    searching: bool = True,
) -> Reproduction:
    """Check a recipe at a scale; every configuration is complete before anything runs.

    Without `searching` every method keeps the values that the recipe starts from.
    """
    recipe = load(identifier)
    count = seeds if seeds is not None else recipe.seeds_at(scale)
    wanted = recipe.search.at(scale) if recipe.search is not None and searching else None
    if wanted is not None and wanted.seed < count:
        raise ConfigError(
            f"--seeds is {count}, but the search's seed {wanted.seed} is not reported"
        )
    chosen = cells(recipe, scale, patterns)
    for cell in chosen:
        cell.run  # noqa: B018 - refuses what is wrong
    return Reproduction(name_of(identifier), scale, recipe, chosen, list(range(count)), wanted)


def reproduce(
    todo: Reproduction,
    out: Path,
    *,
    processes: int = 1,
    watch: Watch = nobody,
    only_cached: bool = False,
) -> dict[str, Any]:
    """Run what is missing, and write results.json, results.md and a report for each setting.

    With `only_cached` nothing is run: what is there is drawn again.
    """
    root = out / "cells"
    create(root)
    searched = _search(todo, root, processes, watch, only_cached)
    grid = {
        (cell.name, seed): Cell.by_hash(
            root, f"{cell.name} seed {seed}", run.with_seed(seed), cell.target
        )
        for cell in todo.cells
        if (run := _chosen_run(todo, cell, searched.chosen)) is not None
        for seed in todo.seeds
    }
    if not only_cached:
        complete(list(grid.values()), processes, watch)
    found: Found = {}
    for (name, seed), cell in grid.items():
        if cell.finished() is not None:
            found.setdefault(name, {})[seed] = cell.read()
    return _write(todo, out, found, searched)


def _chosen_run(todo: Reproduction, cell: TableCell, chosen: Chosen) -> Experiment | None:
    """The run with what its search chose; None while the search is not finished."""
    if todo.search is None:
        return cell.run
    point = chosen.get(cell.name)
    return cell.searched(point) if point is not None else None


class Point(NamedTuple):
    """One point of a search: where it is tried, and who is tuned by it."""

    tuned: str
    cell: TableCell
    values: Tree

    @property
    def label(self) -> str:
        """What its run is called."""
        values = " ".join(f"{key}={value}" for key, value in self.values.items())
        return f"search {self.cell.name} {values}"


def _points(todo: Reproduction, wanted: Search) -> list[Point]:
    """Every point that is tried; cells that are tuned at the same places share their search."""
    found = {
        (tuned, place.name): (place, wanted.grid(cell.method.search))
        for cell in todo.cells
        for tuned, places in [_tuned(todo, cell)]
        for place in places
    }
    return [
        Point(tuned, place, values)
        for (tuned, _), (place, points) in found.items()
        for values in points
    ]


def _tuned(todo: Reproduction, cell: TableCell) -> tuple[str, list[TableCell]]:
    """Where a cell is tuned, as a name for all of it and one by one."""
    places = tuning_cells(todo.recipe, cell, todo.scale)
    return " ".join(place.name for place in places), places


class Searched(NamedTuple):
    """What a search tried, and the values that it chose for every cell whose search is finished.

    Cells that are not tuned have no values.
    """

    tried: list[dict[str, Any]]
    best: dict[str, dict[str, Any]]
    chosen: Chosen


def _search(
    todo: Reproduction, root: Path, processes: int, watch: Watch, only_cached: bool
) -> Searched:
    wanted = todo.search
    if wanted is None:
        return Searched([], {}, {})
    trials = []
    for point in _points(todo, wanted):
        run = point.cell.searched(point.values, wanted.rounds).with_seed(wanted.seed)
        tried_in = Cell.by_hash(root, point.label, run, point.cell.target)
        keys = " ".join(point.values)
        trials.append(Trial(point.tuned, keys, point.values, tried_in, point.cell.name))
    if not only_cached:
        complete([trial.cell for trial in trials], processes, watch)
    tried = search(trials)
    best = choose(tried)
    chosen: Chosen = {}
    for cell in todo.cells:
        tuned, _ = _tuned(todo, cell)
        if not cell.method.search:
            chosen[cell.name] = {}
        elif tuned in best:
            chosen[cell.name] = best[tuned]["value"]
    return Searched(tried, best, chosen)


class Edge(NamedTuple):
    """A choice at an end of what was tried, beyond which a better value may lie."""

    row: str
    places: list[str]
    key: str
    value: float
    end: Literal["smallest", "largest"]


def edges(tried: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> list[Edge]:
    """For every number that a row chose among at least three."""
    found = []
    for label, choice in best.items():
        rows = [one for one in tried if one["label"] == label]
        settings, (name, *_) = zip(*(one["place"].split("/") for one in rows), strict=True)
        for key, value in choice["value"].items():
            values = {one["value"][key] for one in rows}
            if len(values) < 3 or not all(isinstance(one, int | float) for one in values):
                continue
            ends: dict[float, Literal["smallest", "largest"]]
            ends = {min(values): "smallest", max(values): "largest"}
            if value in ends:
                found.append(Edge(name, list(dict.fromkeys(settings)), key, value, ends[value]))
    return found


def _write(todo: Reproduction, out: Path, found: Found, searched: Searched) -> dict[str, Any]:
    """Write everything that can be drawn from the finished cells; return results.json."""
    compared = {
        setting.title: _compared(todo, setting.name, found) for setting in todo.recipe.settings
    }
    rows = [_row(todo, cell, found, searched.chosen.get(cell.name)) for cell in todo.cells]
    result = {
        "id": todo.identifier,
        "scale": todo.scale,
        "title": todo.recipe.title,
        "source": todo.recipe.source,
        "notes": todo.recipe.notes,
        "seeds": todo.seeds,
        "measures": todo.recipe.measures,
        "search": todo.search.model_dump() if todo.search is not None else None,
        "tried": searched.tried,
        "edges": [edge._asdict() for edge in edges(searched.tried, searched.best)],
        "cells": rows,
        "reductions": _reductions(todo, compared),
        "reports": _reports(todo, out, found),
    }
    write_json(out / "results.json", result)
    write_text(out / "results.md", output.markdown(result))
    tables.write(out, output.tables(result))
    return result


def _runs(todo: Reproduction, setting: str, found: Found) -> list[RecordedRun]:
    """The finished runs of a setting under their methods' labels."""
    return [
        run.relabelled(cell.method.label, baseline=cell.method.reading == "baseline")
        for cell in todo.cells
        if cell.setting.name == setting
        for run in found.get(cell.name, {}).values()
    ]


def _compared(todo: Reproduction, setting: str, found: Found) -> Results | None:
    runs = _runs(todo, setting, found)
    cell = next((c for c in todo.cells if c.setting.name == setting), None)
    return results(runs, cell.run.target) if runs and cell is not None else None


def _reductions(todo: Reproduction, compared: Mapping[str, Results | None]) -> list[dict[str, Any]]:
    """How many rounds fewer than the best baseline, for every other method that met the target."""
    readings = {cell.method.label: cell.method for cell in todo.cells}
    found = []
    for setting, table in compared.items():
        best = table.baseline if table is not None else None
        if table is None or best is None or "rounds_to_target" not in todo.recipe.measures:
            continue
        found += [
            {
                "setting": setting,
                "method": readings[row.label].title,
                "reading": readings[row.label].reading,
                "rounds": row.rounds.mean,
                "best_baseline": best.label,
                "baseline_rounds": best.rounds.mean,
                "reduction": row.reduction,
            }
            for row in table.rows
            if row.reduction is not None and not row.baseline
        ]
    return found


def _row(todo: Reproduction, cell: TableCell, found: Found, point: Tree | None) -> dict[str, Any]:
    own = found.get(cell.name, {})
    reference = found.get(f"{cell.setting.name}/{todo.recipe.reference}", {})
    values = {
        name: {s: measure(name, cell.metric, run, reference.get(s)) for s, run in own.items()}
        for name in todo.recipe.measures
    }
    measures = {name: spread(list(by_seed.values())) for name, by_seed in values.items()}
    return {
        "name": cell.name,
        "setting": cell.setting.title,
        "method": cell.method.title,
        "reading": cell.method.reading,
        "paper": cell.paper,
        "paper_speedup": _paper_speedup(todo.recipe, cell),
        "metric": cell.metric,
        "measured": measures[todo.recipe.measures[0]].mean,
        "measures": {name: vars(value) for name, value in measures.items()},
        "by_seed": values,
        "rounds": cell.run.rounds,
        "seeds": sorted(own),
        "missing": [seed for seed in todo.seeds if seed not in own],
        "diverged": sum(run.diverged for run in own.values()),
        "chosen": point,
        "directories": {
            seed: str(run.directory.relative_to(run.directory.parents[1]))
            for seed, run in own.items()
        },
    }


def _paper_speedup(recipe: Recipe, cell: TableCell) -> float | None:
    """The speed-up over the reference that the paper's rounds amount to."""
    titles = [method.title for method in recipe.methods if method.name == recipe.reference]
    other = recipe.paper.get(cell.setting.name, {}).get(titles[0]) if titles else None
    if "speedup" not in recipe.measures or isinstance(cell.paper, str | None):
        return None
    return None if isinstance(other, str | None) else other / cell.paper


def measure(
    name: Measure, metric: str, own: RecordedRun, reference: RecordedRun | None
) -> float | None:
    """One number for one run; None when it has none (diverged, target not met, no reference)."""
    if name.endswith("_to_target"):
        return own.to_target(name.removesuffix("_to_target"))
    if name == "speedup":
        return _speedup(own, reference)
    curve = _curve(own, metric)
    if not curve or own.diverged:
        return None
    if name == "final":
        return curve[-1]
    if name == "best":
        return max(curve) if records.metric(metric).up else min(curve)
    if name in ("epochs", "passes"):
        return records.work(own.records, name)
    if reference is None or not (other := _curve(reference, metric)):
        return None
    if name in ("epoch_reduction", "pass_reduction"):
        counted = "epochs" if name == "epoch_reduction" else "passes"
        done, needed = (records.work(run.records, counted) for run in (own, reference))
        return None if done is None or not needed else 1.0 - done / needed
    pairs = zip(curve, other, strict=False)
    return max((abs(a - b) / max(1.0, abs(b)) for a, b in pairs), default=math.nan)


def _speedup(own: RecordedRun, reference: RecordedRun | None) -> float | None:
    """How many times as many rounds the reference needs; None unless both met the target."""
    other = reference.to_target("rounds") if reference is not None else None
    rounds = own.to_target("rounds")
    return None if rounds is None or other is None else other / rounds


def _curve(run: RecordedRun, metric: str) -> list[float]:
    """The metric in every round that measured it."""
    return [one for record in run.records if (one := records.value(record, metric)) is not None]


def _reports(todo: Reproduction, out: Path, found: Found) -> dict[str, str]:
    """One comparison a setting, drawn by the usual report from the cached runs."""
    from fedadmm.study.report import write_report

    written: dict[str, str] = {}
    for setting in todo.recipe.settings:
        folder = out / "reports" / setting.name
        runs = _runs(todo, setting.name, found)
        if not runs:
            continue
        create(folder)
        first = next(cell for cell in todo.cells if cell.setting.name == setting.name).run
        write_overview(
            folder,
            runs,
            problem=f"{todo.recipe.title}: {setting.title}",
            target=first.tree.get("target"),
            seeds=todo.seeds,
            rounds=first.rounds,
        )
        written[setting.name] = str(write_report(folder).relative_to(out))
    return written
