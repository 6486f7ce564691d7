"""Run the cells of a recipe: first the declared search, then the reported seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.errors import ConfigError
from fedadmm.experiments import directory as files
from fedadmm.experiments.cells import Cells
from fedadmm.experiments.config import RunConfig, Tree
from fedadmm.experiments.pool import Watch, nobody
from fedadmm.experiments.tables import choose, standing
from fedadmm.reproduction import output
from fedadmm.reproduction.measuring import Outcome, outcome
from fedadmm.reproduction.recipe import Cell, Recipe, Search, cells, load, tuning_cell


class Plan(NamedTuple):
    """What is to be run."""

    identifier: str
    scale: str
    recipe: Recipe
    cells: list[Cell]
    seeds: list[int]
    search: Search | None

    def runs(self) -> int:
        """How many runs it takes at the most, those of the search among them."""
        tried = _search_configs(self, self.search) if self.search is not None else {}
        return len(self.cells) * len(self.seeds) + len(tried)


def plan(
    identifier: str,
    scale: str,
    seeds: int | None = None,
    patterns: Sequence[str] = (),
    searching: bool = True,
) -> Plan:
    """Check a recipe at a scale; every configuration is complete before anything runs.

    Without `searching` every method keeps the values that the recipe starts from.
    """
    recipe = load(identifier)
    count = seeds if seeds is not None else recipe.seeds_at(scale)
    search = recipe.search.at(scale) if recipe.search is not None and searching else None
    if search is not None and search.seed < count:
        raise ConfigError(
            f"--seeds is {count}, but the search's seed {search.seed} is not reported"
        )
    chosen = cells(recipe, scale, patterns)
    for cell in chosen:
        cell.config(0)
    return Plan(identifier, scale, recipe, chosen, list(range(count)), search)


def reproduce(
    todo: Plan, out: Path, *, processes: int = 1, watch: Watch = nobody, only_cached: bool = False
) -> dict[str, Any]:
    """Run what is missing, and write results.json, results.md and a report for each setting.

    With `only_cached` nothing is run: what is there is drawn again.
    """
    store = Cells(out / "cells")
    chosen = _searched(todo, store, processes, watch, only_cached)
    configs = {
        _run_label(cell, seed): cell.config(seed, chosen.get(cell.name))
        for cell in todo.cells
        for seed in todo.seeds
        if todo.search is None or cell.name in chosen
    }
    if not only_cached:
        store.run(configs, processes, watch)
    outcomes = _outcomes(todo, store, configs)
    return output.write(todo, out, outcomes, chosen)


def _run_label(cell: Cell, seed: int) -> str:
    return f"{cell.name} seed {seed}"


def _search_configs(todo: Plan, search: Search) -> dict[str, tuple[Cell, Tree, RunConfig]]:
    """Every point that is tried; cells that are tuned at the same place share its search."""
    found = {}
    for wanted in todo.cells:
        cell = tuning_cell(todo.recipe, wanted, todo.scale)
        for point in search.grid(cell.method.search) if cell.method.search else []:
            config = cell.config(search.seed, point)
            if search.rounds is not None:
                config = cell._replace(
                    tree=cell.tree | {"rounds": min(search.rounds, config.rounds)}
                ).config(search.seed, point)
            values = " ".join(f"{key}={value}" for key, value in point.items())
            found[f"search {cell.name} {values}"] = (cell, point, config)
    return found


def _searched(
    todo: Plan, store: Cells, processes: int, watch: Watch, only_cached: bool
) -> dict[str, Tree]:
    """The chosen values for every cell whose search is finished; none where nothing is tuned."""
    if todo.search is None:
        return {}
    trials = _search_configs(todo, todo.search)
    if not only_cached:
        store.run({label: config for label, (_, _, config) in trials.items()}, processes, watch)
    tried = []
    for cell, point, config in trials.values():
        summary = store.finished(config)
        if summary is not None:
            target = config.target.model_dump() if config.target is not None else None
            row = standing(store.directory(config), summary, target)
            tried.append(row | {"label": cell.name, "key": " ".join(point), "value": point})
    best = {label: row["value"] for label, row in choose(tried).items()}
    chosen = {}
    for cell in todo.cells:
        tuned = tuning_cell(todo.recipe, cell, todo.scale).name
        if tuned in best or not cell.method.search:
            chosen[cell.name] = best[tuned] if cell.method.search else {}
    return chosen


def _outcomes(
    todo: Plan, store: Cells, configs: Mapping[str, RunConfig]
) -> dict[str, dict[int, Outcome]]:
    """What every finished run came to, by cell and seed."""
    found: dict[str, dict[int, Outcome]] = {}
    for cell in todo.cells:
        for seed in todo.seeds:
            config = configs.get(_run_label(cell, seed))
            summary = store.finished(config) if config is not None else None
            if config is not None and summary is not None:
                directory = store.directory(config)
                records = files.read_metrics(directory)
                found.setdefault(cell.name, {})[seed] = outcome(
                    directory, summary, records, cell.metric
                )
    return found
