"""A study: configurations × seeds, and perhaps a search that comes before them.

compare, sweep and reproduce are three ways to write one down: `comparing`, `sweeping` and
`recipe` make a `Study`, `runner` runs it, `results` summarises it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedadmm.algorithms import REGISTRY
from fedadmm.core.config_tree import Tree, UnknownKeyError, from_config, suggestion
from fedadmm.core.errors import ConfigError
from fedadmm.core.parts import FAMILIES, config_fields
from fedadmm.core.validation import shown
from fedadmm.run.evaluation import Target
from fedadmm.run.experiment import Experiment
from fedadmm.study import config
from fedadmm.study.config import TABLES, completed, resolve

PLAN, RESULTS = "study.toml", "results.json"

Kind = Literal["comparison", "sweep", "reproduction"]

_NO_MATTER = ("engine", "device", "threads", "checkpoint")
"""How a result is computed, not what it is; an engine that shapes the run does matter."""


class Cell(NamedTuple):
    """One configuration of a study."""

    label: str
    """The row of the table that its runs belong to."""
    run: Experiment
    name: str
    """What it is called while it runs and in messages."""
    setting: str = ""
    """The column of the table, or the panel of the figure; empty where there is only one."""
    values: Mapping[str, Any] = {}
    """What was varied to make it: dotted key -> value."""
    folder: str = ""
    """Where its runs are kept; without one below `cells/`, by the hash of everything that the
    result depends on."""
    tuned: str = ""
    """The search that chooses for it; empty for none."""
    judged_by: Target | None = None
    """The target that it is read by, when that is not the run's own."""
    about: Mapping[str, Any] = {}
    """More facts for the results."""

    @property
    def target(self) -> Target | None:
        """The target that it is read by."""
        return self.judged_by or self.run.target

    def chosen(self, values: Mapping[str, Any]) -> Cell:
        """The cell with what a search chose."""
        return self._replace(run=changed(self.run, values, f"{self.name}: ")) if values else self

    def directory(self, out: Path, seed: int | None = None) -> Path:
        """Where the run of a seed is kept; without a seed that of its own."""
        if not self.folder:
            run = self.run if seed is None else self.run.with_seed(seed)
            return out / "cells" / cell_hash(run)
        return out / (self.folder if seed is None else f"{self.folder}-seed{seed}")


class SearchSpace(NamedTuple):
    """The grid of one search, and the cells in which every point of it is run."""

    name: str
    """What `Cell.tuned` refers to."""
    places: Sequence[Cell]
    grid: Mapping[str, Sequence[Any]]
    """Dotted key -> values; numeric grids grow (`fedadmm.study.search`)."""


class Search(NamedTuple):
    """The search that precedes a study's reported runs, on seeds of its own."""

    seeds: Sequence[int]
    spaces: Sequence[SearchSpace]
    rounds: int | None = None
    """Largest number of rounds of a point; None for that of the cell."""
    keep: float = 0.5
    """Share of the points that goes on from one seed to the next."""
    extend: int = 6
    """Largest number of values that are added to the grid of one key."""
    validation: float = 0.0
    """Fraction of every client's samples that search runs hold out if the problem has none."""
    changes: Mapping[str, Any] = {}
    """Further dotted keys that differ from the reported runs."""
    about: Mapping[str, Any] = {}
    """Further entries of the results."""

    def point(self, place: Cell, values: Mapping[str, Any], seed: int) -> Cell:
        """Return the run of one point of the grid.

        Its target is judged on validation samples if there are some.
        """
        rounds = min(self.rounds or place.run.rounds, place.run.rounds)
        changes = {**values, **self.changes, "seed": seed, "rounds": rounds}
        problem, target = place.run.tree.get("problem"), place.run.tree.get("target")
        held_out = problem.get("validation") if isinstance(problem, Mapping) else None
        if held_out == 0 and self.validation:
            held_out = changes["problem.validation"] = self.validation
        if held_out and target is not None:
            changes["target.metric"] = re.sub("^test_", "validation_", target["metric"])
        where = " ".join(f"{key}={value}" for key, value in values.items())
        run = changed(place.run, changes, f"search ({place.name}): ")
        folder = ""
        if place.folder:
            text = "-".join(_path_word(value) for value in values.values())
            folder = f"search/{Path(place.folder).name}-{text}-seed{seed}"
        name = f"search {place.name} {where} seed {seed}"
        return place._replace(run=run, name=name, values=values, folder=folder)


def _path_word(value: Any) -> str:
    """A number as it is; anything else with a hash, so that no two values share a folder."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    text = json.dumps(value, sort_keys=True, default=str)
    short = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:20]
    return f"{short}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class Study(NamedTuple):
    """What is to be run."""

    kind: Kind
    cells: Sequence[Cell]
    seeds: Sequence[int] = ()
    """Every cell is run with each of them; with the seed of its own where there are none."""
    search: Search | None = None
    about: Mapping[str, Any] = {}
    """More facts for the results."""
    plan: Mapping[str, Any] = {}
    """What study.toml holds, so that the study can go on without anything else."""
    reached: Sequence[str] = ()
    """What was set in the parts of some cells, and in which, a line for each."""

    def runs(self) -> int:
        """Number of runs if every grid keeps its size."""
        reported = len(self.cells) * max(len(self.seeds), 1)
        if self.search is None:
            return reported
        searched = 0
        for space in self.search.spaces:
            points = math.prod(map(len, space.grid.values()))
            for _ in self.search.seeds:
                searched += points * len(space.places)
                points = min(points, max(2, math.ceil(self.search.keep * points)))
        return reported + searched


def changed(run: Experiment, values: Mapping[str, Any], where: str) -> Experiment:
    """A run with other values of some keys."""
    tree: Tree = deepcopy(run.tree)
    for key, value in values.items():
        config.assign(tree, key, deepcopy(value))
    return resolve(tree, where)


def cell_hash(run: Experiment) -> str:
    """Sixteen hexadecimal digits for everything that the result depends on."""
    tree = run.affecting(*_NO_MATTER)
    tree["store"] = run.store.primal
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def check_distinct(key: str, values: Sequence[Any]) -> None:
    """Refuse values of which one is there twice: it would count as two results."""
    texts = [repr(value) for value in values]
    for text in texts:
        if texts.count(text) > 1:
            raise ConfigError(f"{key} is [{', '.join(texts)}], but must not hold {text} twice")


def folder_names(texts: Iterable[str]) -> dict[str, str]:
    """A folder's name for each text; where another one has it already, with a hash of the text."""
    names: dict[str, str] = {}
    for text in dict.fromkeys(texts):
        name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "x"
        taken = name in names.values()
        names[text] = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}" if taken else name
    return names


def short_keys(keys: Sequence[str]) -> list[str]:
    """The last word of each key, where that is enough to tell them apart."""
    last = [key.split(".")[-1] for key in keys]
    return [word if last.count(word) == 1 else key for key, word in zip(keys, last, strict=True)]


def setting_of(values: Mapping[str, Any]) -> dict[str, str]:
    """What a cell sets apart from its seed, for people: short keys, and methods by their titles."""
    shown = {key: shown_value(value) for key, value in values.items() if key != "seed"}
    name = shown.pop("algorithm.name", None)
    method = {} if name is None else {"method": REGISTRY[name].title if name in REGISTRY else name}
    return method | dict(zip(short_keys(list(shown)), shown.values(), strict=True))


def shown_value(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


Override = tuple[str, Any]
"""A dotted key and the value that it gets by hand, over several runs.

It goes to every run that has the key: methods of a comparison and cells of a sweep differ in their
parts, and a part in its keys.  A key that no run has is refused.
"""


def table_of(key: str) -> str:
    """The table of a part that a key belongs to; empty for other keys."""
    return next((table for table in TABLES if key.startswith(f"{table}.")), "")


def part_in(tree: Tree, key: str) -> str:
    """The name of the part that a key belongs to, in the tables of a complete run."""
    found: Any = tree
    for step in table_of(key).split("."):
        found = found[step]
    return str(found["name"])


def apply(tree: Tree, settings: Sequence[Override]) -> list[Override]:
    """Set what this run has the keys for, in order; what was set."""
    applied = []
    for key, value in settings:
        if _unknown(tree, key, value) is None:
            config.assign(tree, key, deepcopy(value))
            applied.append((key, value))
    return applied


def below(
    tree: Tree, settings: Sequence[Override], varied: Iterable[str]
) -> tuple[Tree, list[Override]]:
    """The configuration below the varied keys, and the settings that `apply` puts over them.

    Names come first, because another name starts its table afresh.
    """
    keys = list(varied)
    for key, value in settings:
        for other in keys:
            if f"{key}.".startswith(f"{other}."):
                raise ConfigError(
                    f"{key} is set to {shown(value)}, but {other} is varied; leave one of them out"
                )
    ground, above = deepcopy(tree), []
    for key, value in settings:
        if not table_of(key) or key.endswith(".name"):
            config.assign(ground, key, value)
        else:
            above.append((key, value))
    return ground, above


def check_reached(
    settings: Sequence[Override], trees: Sequence[Tree], runs: Sequence[Sequence[Override]]
) -> None:
    """Refuse a setting that none of these runs took; `trees` are the runs without it."""
    for setting in settings:
        if not any(setting in applied for applied in runs):
            raise _refused(*setting, trees)


def reach(setting: Override, names: Sequence[str], runs: Sequence[Sequence[Override]]) -> str:
    """Which of the runs of these names took a setting, in one line."""
    took = [setting in applied for applied in runs]
    sides = [
        "; ".join(dict.fromkeys(name for name, one in zip(names, took, strict=True) if one is side))
        for side in (True, False)
    ]
    key, value = setting
    return f"{key} = {shown(value)} for {sides[0]}" + (f"; not for {sides[1]}" if sides[1] else "")


def _unknown(tree: Tree, key: str, value: Any) -> UnknownKeyError | None:
    """What a run says to a key that it does not have.

    Whatever else is wrong does not matter here: the whole run is checked when all keys are set.
    """
    if not table_of(key):
        return None
    asked = deepcopy(tree)
    config.assign(asked, key, deepcopy(value))
    try:
        from_config(Experiment, completed(asked))
    except UnknownKeyError as error:
        return error if f"{key}.".startswith(f"{error.key}.") else None
    except ConfigError:
        return None
    return None


def _refused(key: str, value: Any, trees: Sequence[Tree]) -> ConfigError:
    """Names the key, what is like it in these runs, and where else there is such a key."""
    table = table_of(key)
    field = key.removeprefix(f"{table}.").partition(".")[0]
    refusals = [error for tree in trees if (error := _unknown(tree, key, value)) is not None]
    owners = ", ".join(dict.fromkeys(error.owner for error in refusals))
    known = dict.fromkeys(word for error in refusals for word in error.known)
    parts = FAMILIES[TABLES[table]]
    named = [name for name in parts if field in [one.name for one in config_fields(parts[name])]]
    others = [f"{other}.{field}" for other in TABLES if other != table]
    elsewhere = named + [one for one in others if _unknown(trees[0], one, value) is None]
    hint = f"; found in {', '.join(elsewhere)}" if elsewhere else ""
    return ConfigError(
        f"{key} is set to {shown(value)}, but is not a key of {owners}; "
        f"{suggestion(field, known)}{hint}"
    )
