"""A recipe: which runs make up a table or a figure of a paper, at which scale.

A recipe (recipes/ID.toml) is data: base tables, settings (columns), methods with their readings
(rows), the paper's values, a declared search, and what changes with the scale.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import field, replace
from functools import reduce
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from fedadmm.core.config_tree import Tree, from_config, suggestion
from fedadmm.core.errors import ConfigError, ParameterError
from fedadmm.core.parts import Count, Natural, Positive, Probability, checked
from fedadmm.study import config as configs
from fedadmm.study.config import resolve
from fedadmm.study.spec import Cell, Search, SearchSpace, Study

Scale = Literal["smoke", "quick", "full"]
SCALES: tuple[Scale, ...] = ("smoke", "quick", "full")
READINGS = ("as printed", "as released", "recommended", "baseline")
_SUFFIX = ".toml"

Measure = Literal[
    "rounds_to_target",
    "bytes_to_target",
    "uploads_to_target",
    "passes_to_target",
    "speedup",
    "final",
    "best",
    "epochs",
    "passes",
    "epoch_reduction",
    "pass_reduction",
    "penalty_mean",
    "distance",
]
Keys = Mapping[str, Any]
Values = Mapping[str, Sequence[Any]]
"""What is tried of every key."""


@checked
class Scales:
    """Tables that replace others at a scale."""

    smoke: Keys = field(default_factory=dict)
    quick: Keys = field(default_factory=dict)
    full: Keys = field(default_factory=dict)


@checked
class RecipeSetting:
    """One column of a table, or one panel of a figure.

    `config` holds tables below the method's, `assign` single keys above them, and `at` tables that
    replace others at a scale.  `tuned_at` names the settings whose search decides, when it is not
    its own.
    """

    name: str
    title: str
    config: Keys = field(default_factory=dict)
    assign: Keys = field(default_factory=dict)
    metric: str | None = None
    at: Scales = Scales()
    scales: Sequence[Scale] = SCALES
    tuned_at: Sequence[str] = ()


@checked
class MethodVariant:
    """One row: a method in one reading of its paper.

    `search` names the keys that it tries values of, or gives its own values; without any it is not
    tuned.  `settings` are patterns of the settings that it is run in.
    """

    name: str
    title: str
    reading: Literal["as printed", "as released", "recommended", "baseline"] = "baseline"
    config: Keys = field(default_factory=dict)
    assign: Keys = field(default_factory=dict)
    search: Sequence[str] | Values = ("local.solver.lr",)
    settings: Sequence[str] = ("*",)
    scales: Sequence[Scale] = SCALES
    metric: str | None = None

    @property
    def label(self) -> str:
        """The title with its reading."""
        return self.title if self.reading == "baseline" else f"{self.title}, {self.reading}"


@checked
class RecipeSearch:
    """The search of a recipe, on seeds that are not reported.

    Search runs hold out a fraction of every client's samples for validation, which decides; the
    reported runs train on all samples.  At smoke scale only the first value is evaluated, on the
    first seed, to exercise the search.

    Args:
        values: the first grid of each key; numeric grids grow (`fedadmm.study.search`).
        quick_values: grids that replace them at quick scale.
        seeds: seeds of the search.
        rounds, quick_rounds: largest number of rounds of a point.
        budget: number of points of the first grid of every method that is searched.
        keep, extend: as in `fedadmm.study.search`.
        validation: fraction of every client's samples that search runs hold out.
    """

    values: Values
    quick_values: Values = field(default_factory=dict)
    seeds: Sequence[Natural] = (1000, 1001, 1002)
    rounds: Count | None = None
    quick_rounds: Count | None = None
    budget: Count | None = None
    keep: Positive = 0.5
    extend: Natural = 6
    validation: Probability = 0.1

    def grid(self, wanted: Sequence[str] | Values, scale: str) -> dict[str, list[Any]]:
        """Return the first grid of a method: its own values, or those that all methods share."""
        shared = {**self.values, **(self.quick_values if scale == "quick" else {})}
        own = wanted if isinstance(wanted, Mapping) else {key: shared[key] for key in wanted}
        most = 1 if scale == "smoke" else None
        return {key: list(values[:most]) for key, values in own.items()}

    def rounds_at(self, scale: str) -> int | None:
        """The most rounds of a point at a scale; None for as many as the runs have."""
        return {"smoke": 1, "quick": self.quick_rounds or self.rounds}.get(scale, self.rounds)


@checked
class Recipe:
    """The content of a recipe file.

    `paper` holds the paper's values of the first measure by setting, then by method title;
    `reference` is the method that others are measured by, `scales` holds tables that replace others
    at a scale and `assign` single keys above everything else.
    """

    title: str
    source: str
    measures: Sequence[Measure]
    base: Keys
    settings: Sequence[RecipeSetting]
    methods: Sequence[MethodVariant]
    metric: str = "test_accuracy"
    reference: str | None = None
    notes: str = ""
    seeds: Count = 3
    quick_seeds: Count = 3
    search: RecipeSearch | None = None
    paper: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    scales: Scales = Scales()
    assign: Scales = Scales()

    def __post_init__(self) -> None:
        places = [setting.name for setting in self.settings]
        for setting in self.settings:
            for place in setting.tuned_at:
                if place not in places:
                    raise ParameterError(
                        f"{setting.name}: tuned_at is {place!r}, "
                        f"expected one of {', '.join(places)}"
                    )
        if self.search is not None:
            for method in self.methods:
                _check_search(self.search, method)


def _check_search(wanted: RecipeSearch, method: MethodVariant) -> None:
    own = method.search if isinstance(method.search, Mapping) else wanted.values
    for key in method.search:
        if key not in own:
            raise ParameterError(
                f"{method.name}: search names {key!r}, which has no values in [search.values]"
            )
    points = math.prod(map(len, wanted.grid(method.search, "full").values()))
    if wanted.budget is not None and method.search and points != wanted.budget:
        raise ParameterError(
            f"{method.name}: search tries {points} points, but must try {wanted.budget}"
        )


def identifiers() -> list[str]:
    """Every recipe's id."""
    entries = resources.files(__package__).joinpath("recipes").iterdir()
    return sorted(e.name.removesuffix(_SUFFIX) for e in entries if e.name.endswith(_SUFFIX))


def load(identifier: str) -> Recipe:
    """The recipe of a table or figure by its id, or a recipe of one's own by its file."""
    if identifier.endswith(_SUFFIX):
        tree = configs.table(Path(identifier))
    elif identifier in (known := identifiers()):
        path = resources.files(__package__).joinpath("recipes", identifier + _SUFFIX)
        tree = configs.parse(path.read_text("utf-8"), f"recipe {identifier}")
    else:
        raise ConfigError(f"there is no recipe {identifier!r}; {suggestion(identifier, known)}")
    try:
        return from_config(Recipe, tree, title="a recipe")
    except ConfigError as error:
        raise ConfigError(f"recipe {identifier}: {error}") from None


def name_of(identifier: str) -> str:
    """The id of a recipe; a file's is its name."""
    return Path(identifier).name.removesuffix(_SUFFIX)


def plan(
    identifier: str,
    scale: str,
    seeds: int | None = None,
    patterns: Sequence[str] = (),
    searching: bool = True,
) -> Study:
    """The study that a recipe describes at a scale.

    `patterns` choose cells by their names, SETTING/METHOD; without `searching` every method keeps
    the values that the recipe starts from.
    """
    recipe = load(identifier)
    usual = {"smoke": 1, "quick": recipe.quick_seeds}.get(scale, recipe.seeds)
    found = study_of(recipe, scale, patterns, searching)
    count = usual if seeds is None else seeds
    if found.search is not None and min(found.search.seeds) < count:
        raise ConfigError(
            f"--seeds: got {count}, expected at most {min(found.search.seeds)}, the first seed of "
            "the search."
        )
    about = {"id": name_of(identifier), "scale": scale, **found.about}
    return found._replace(seeds=list(range(count)), about=about)


def study_of(
    recipe: Recipe, scale: str, patterns: Sequence[str] = (), searching: bool = True
) -> Study:
    """A recipe at a scale; its cells and their search, without any seeds."""
    pairs = {
        f"{setting.name}/{method.name}": (setting, method)
        for setting in recipe.settings
        if scale in setting.scales
        for method in recipe.methods
        if scale in method.scales
        if any(fnmatch.fnmatch(setting.name, allowed) for allowed in method.settings)
    }
    wanted = {
        name: pair
        for name, pair in pairs.items()
        if not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    }
    if not wanted:
        raise ConfigError(
            f"--cells is {', '.join(patterns)!r}, but matches none of {', '.join(pairs)}"
        )
    cells = {name: _cell(recipe, *pair, scale) for name, pair in wanted.items()}
    keys = ("title", "source", "notes", "reference", "measures")
    study = Study("reproduction", list(cells.values()), about={k: getattr(recipe, k) for k in keys})
    if recipe.search is None or not searching:
        return study
    wanted_search = recipe.search
    spaces: dict[str, SearchSpace] = {}
    tuned: list[Cell] = []
    for name, (setting, method) in wanted.items():
        grid = wanted_search.grid(method.search, scale)
        places = [
            cells.get(f"{place.name}/{method.name}") or _cell(recipe, place, method, scale)
            for place in (_places(recipe, setting, scale) if grid else [])
        ]
        group = " ".join(place.name for place in places)
        tuned.append(cells[name]._replace(tuned=group))
        if places:
            spaces[group] = SearchSpace(group, places, grid)
    rounds = wanted_search.rounds_at(scale)
    search = Search(
        wanted_search.seeds[:1] if scale == "smoke" else wanted_search.seeds,
        list(spaces.values()),
        rounds,
        wanted_search.keep,
        wanted_search.extend,
        wanted_search.validation,
        about={"values": wanted_search.values, "rounds": rounds},
    )
    return study._replace(cells=tuned, search=search)


def _places(recipe: Recipe, setting: RecipeSetting, scale: str) -> list[RecipeSetting]:
    """The settings whose search decides for one: itself, or those where it is tuned."""
    if not setting.tuned_at:
        return [setting]
    places = [one for one in recipe.settings if one.name in setting.tuned_at]
    return [one for one in places if scale in one.scales] or places


def _cell(recipe: Recipe, setting: RecipeSetting, method: MethodVariant, scale: str) -> Cell:
    layers = [
        recipe.base,
        setting.config,
        method.config,
        getattr(recipe.scales, scale),
        getattr(setting.at, scale),
    ]
    tree: Tree = deepcopy(reduce(configs.merged, layers, {}))  # cells share the recipe's tables
    keys = {**setting.assign, **method.assign, **getattr(recipe.assign, scale)}
    for key, value in keys.items():
        configs.assign(tree, key, deepcopy(value))
    name = f"{setting.name}/{method.name}"
    run = resolve(tree, f"{name}: ")
    target = run.target
    if target is not None and method.metric is not None:  # by the method's output model
        target = replace(target, metric=method.metric)
    papers = recipe.paper.get(setting.name, {})
    paper = papers.get(method.title)
    titles = [one.title for one in recipe.methods if one.name == recipe.reference]
    reference = papers.get(titles[0]) if "speedup" in recipe.measures and titles else None
    speedup = None
    if isinstance(paper, float) and isinstance(reference, float):
        speedup = reference / paper
    return Cell(
        label=method.label,
        run=run,
        name=name,
        setting=setting.name,
        judged_by=target,
        about={
            "name": name,
            "setting_title": setting.title,
            "title": method.title,
            "reading": method.reading,
            "paper": paper,
            "paper_speedup": speedup,
            "metric": method.metric or setting.metric or recipe.metric,
            "rounds": run.rounds,
        },
    )
