"""Run the cells of a recipe: first the declared search, then the reported seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.errors import ConfigError
from fedadmm.study import output
from fedadmm.study import rundir as files
from fedadmm.study.config import RunConfig
from fedadmm.study.grid import Cells
from fedadmm.study.measuring import Outcome, outcome
from fedadmm.study.pool import Watch, nobody
from fedadmm.study.recipe import Cell, Recipe, Search, cells, load
from fedadmm.study.results import choose, standing


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
        tried = len(self.search.values) if self.search is not None else 0
        return len(self.cells) * (len(self.seeds) + tried)


def plan(
    identifier: str,
    scale: str,
    seeds: int | None = None,
    patterns: Sequence[str] = (),
    searching: bool = True,
) -> Plan:
    """Check a recipe at a scale; every configuration is complete before anything runs.

    Without `searching` every method keeps the learning rate that the recipe starts from.
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


def _search_configs(todo: Plan, search: Search) -> dict[str, tuple[Cell, str, Any, RunConfig]]:
    found = {}
    for cell in todo.cells:
        key = cell.method.search_key or search.key
        for value in search.values:
            config = cell.config(search.seed, (key, value))
            if search.rounds is not None:
                config = cell._replace(
                    tree=cell.tree | {"rounds": min(search.rounds, config.rounds)}
                ).config(search.seed, (key, value))
            found[f"search {cell.name} {key}={value}"] = (cell, key, value, config)
    return found


def _searched(
    todo: Plan, store: Cells, processes: int, watch: Watch, only_cached: bool
) -> dict[str, tuple[str, Any]]:
    """The value of the searched key for every cell whose search is finished."""
    if todo.search is None:
        return {}
    trials = _search_configs(todo, todo.search)
    if not only_cached:
        store.run({label: config for label, (*_, config) in trials.items()}, processes, watch)
    tried = []
    for cell, key, value, config in trials.values():
        summary = store.finished(config)
        if summary is not None:
            target = config.target.model_dump() if config.target is not None else None
            row = standing(store.directory(config), summary, target)
            tried.append(row | {"label": cell.name, "key": key, "value": value})
    return {label: (row["key"], row["value"]) for label, row in choose(tried).items()}


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
