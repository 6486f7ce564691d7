"""A recipe: which runs make up a table or a figure, at which scale."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedadmm.core.errors import ConfigError
from fedadmm.core.tables import Tree, suggestion
from fedadmm.run.evaluation import Target
from fedadmm.run.experiment import Experiment
from fedadmm.study import loading
from fedadmm.study.config import resolve

SCALES = ("smoke", "quick", "full")
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
    "distance",
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Scales(_Model):
    """Tables that replace others at a scale."""

    smoke: Tree = {}
    quick: Tree = {}
    full: Tree = {}


class Setting(_Model):
    """One column of a table, or one panel of a figure.

    `config` holds tables below the method's, `assign` single keys above them.
    """

    name: str
    title: str
    config: Tree = {}
    assign: Tree = {}
    metric: str | None = Field(default=None, description="instead of the recipe's")
    at: Scales = Scales()
    scales: list[str] = Field(default=list(SCALES), description="at which it is run")
    tuned_at: list[str] = Field(
        default=[], description="the settings whose search decides, when it is not its own"
    )


class Reading(_Model):
    """One row: a method in one reading of its paper."""

    name: str
    title: str
    reading: Literal["as printed", "as released", "recommended", "baseline"] = "baseline"
    config: Tree = {}
    assign: Tree = {}
    search: list[str] | dict[str, list[Any]] = Field(
        default=["local.solver.lr"],
        description="the keys that it tries values of, or its own values too; none: not tuned",
    )
    settings: list[str] = Field(default=["*"], description="the settings it is run in")
    scales: list[str] = Field(default=list(SCALES), description="at which it is run")
    metric: str | None = Field(default=None, description="instead of the setting's")

    def at(self, scale: str) -> Reading:
        """The row at a scale; at smoke it tries one point."""
        if scale != "smoke" or not isinstance(self.search, dict):
            return self
        return self.model_copy(
            update={"search": {key: own[:1] for key, own in self.search.items()}}
        )

    @property
    def label(self) -> str:
        """The title with its reading."""
        return self.title if self.reading == "baseline" else f"{self.title}, {self.reading}"


class Search(_Model):
    """The values of every key that methods try, on a seed that is not reported."""

    values: dict[str, list[Any]]
    quick_values: dict[str, list[Any]] = Field(default={}, description="instead, at quick scale")
    seed: int = 1000
    rounds: int | None = None
    quick_rounds: int | None = None
    budget: int | None = Field(
        default=None, description="how many points everybody who is tuned tries, no more, no less"
    )

    def at(self, scale: str) -> Search:
        """The search at a scale; at smoke it tries one point: it is exercised, not believed."""
        values, rounds = self.values, self.rounds
        if scale == "smoke":
            values, rounds = {key: some[:1] for key, some in values.items()}, 1
        elif scale == "quick":
            values, rounds = values | self.quick_values, self.quick_rounds or rounds
        return self.model_copy(update={"values": values, "rounds": rounds})

    def grid(self, wanted: Sequence[str] | Mapping[str, list[Any]]) -> list[Tree]:
        """Every combination of the keys' values: a method's own, or those that all share."""
        if not wanted:
            return []
        own = wanted if isinstance(wanted, Mapping) else {key: self.values[key] for key in wanted}
        points = itertools.product(*own.values())
        return [dict(zip(own, point, strict=True)) for point in points]


class Recipe(_Model):
    """The content of a recipe file; `paper` holds values by setting, then by method title."""

    title: str
    source: str
    measures: list[Measure]
    metric: str = "test_accuracy"
    reference: str | None = Field(default=None, description="the method others are measured by")
    notes: str = ""
    seeds: int = 3
    quick_seeds: int = 3
    base: Tree
    search: Search | None = None
    settings: list[Setting]
    methods: list[Reading]
    paper: dict[str, dict[str, float | str]] = {}
    scales: Scales = Scales()
    assign: Scales = Field(default=Scales(), description="single keys, above everything else")

    @model_validator(mode="after")
    def _names_are_known(self) -> Recipe:
        places = [setting.name for setting in self.settings]
        for setting in self.settings:
            for place in setting.tuned_at:
                if place not in places:
                    raise ValueError(
                        f"{setting.name}: tuned_at is {place!r}, "
                        f"but must be one of {', '.join(places)}"
                    )
        return self

    @model_validator(mode="after")
    def _searches_are_alike(self) -> Recipe:
        wanted = self.search
        for method in self.methods if wanted is not None else []:
            assert wanted is not None
            own = method.search if isinstance(method.search, dict) else wanted.values
            unknown = [key for key in method.search if key not in own]
            if unknown:
                raise ValueError(
                    f"{method.name}: search names {unknown[0]!r}, which has no values in "
                    f"[search.values]"
                )
            tried = len(wanted.grid(method.search))
            if wanted.budget is not None and tried not in (0, wanted.budget):
                raise ValueError(
                    f"{method.name}: search tries {tried} points, but must try {wanted.budget}"
                )
        return self

    def seeds_at(self, scale: str) -> int:
        """How many seeds are run unless somebody asks for another number."""
        return {"smoke": 1, "quick": self.quick_seeds}.get(scale, self.seeds)


@dataclass(frozen=True)
class TableCell:
    """One method in one setting: its configuration for any seed and searched values."""

    setting: Setting
    method: Reading
    tree: Tree
    paper: float | str | None
    metric: str

    @property
    def name(self) -> str:
        """setting/method, which `--cells` patterns are matched against."""
        return f"{self.setting.name}/{self.method.name}"

    @cached_property
    def run(self) -> Experiment:
        """The complete run from seed 0, with the values that the recipe starts from."""
        return resolve(self.tree, f"{self.name}: ")

    @property
    def target(self) -> Target | None:
        """What is to be reached: the run's target, by the model that the method hands out."""
        target, own = self.run.target, self.method.metric
        return target if target is None or own is None else replace(target, metric=own)

    def searched(self, point: Mapping[str, Any], rounds: int | None = None) -> Experiment:
        """The run with other values of the searched keys, and perhaps fewer rounds."""
        tree = deepcopy(self.tree)
        for key, value in point.items():
            loading.assign(tree, key, value)
        if rounds is not None:
            tree["rounds"] = min(rounds, self.run.rounds)
        return resolve(tree, f"{self.name}: ")


def identifiers() -> list[str]:
    """Every recipe's id."""
    entries = resources.files(__package__).joinpath("recipes").iterdir()
    return sorted(e.name.removesuffix(_SUFFIX) for e in entries if e.name.endswith(_SUFFIX))


def load(identifier: str) -> Recipe:
    """The recipe of a table or figure by its id, or a recipe of one's own by its file."""
    if identifier.endswith(_SUFFIX):
        tree = loading.table(Path(identifier))
    elif identifier in (known := identifiers()):
        path = resources.files(__package__).joinpath("recipes", identifier + _SUFFIX)
        tree = loading.parse(path.read_text("utf-8"), f"recipe {identifier}")
    else:
        raise ConfigError(f"there is no recipe {identifier!r}; {suggestion(identifier, known)}")
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"recipe {identifier}: {where}: {first['msg']}") from None


def name_of(identifier: str) -> str:
    """The id of a recipe; a file's is its name."""
    return Path(identifier).name.removesuffix(_SUFFIX)


def cells(recipe: Recipe, scale: str, patterns: Sequence[str] = ()) -> list[TableCell]:
    """Every cell at a scale whose name matches one of the patterns; all when there are none."""
    found = [
        _cell(recipe, setting, method, scale)
        for setting in settings_at(recipe, scale)
        for method in recipe.methods
        if scale in method.scales
        if any(fnmatch.fnmatch(setting.name, allowed) for allowed in method.settings)
    ]
    wanted = [c for c in found if not patterns or any(fnmatch.fnmatch(c.name, p) for p in patterns)]
    if not wanted:
        raise ConfigError(
            f"--cells is {', '.join(patterns)!r}, but matches none of "
            f"{', '.join(cell.name for cell in found)}"
        )
    return wanted


def settings_at(recipe: Recipe, scale: str) -> list[Setting]:
    """The settings that are run at a scale."""
    return [setting for setting in recipe.settings if scale in setting.scales]


def tuning_cells(recipe: Recipe, cell: TableCell, scale: str) -> list[TableCell]:
    """The cells whose search decides for this one: itself, or the same method where it is tuned."""
    if not cell.setting.tuned_at:
        return [cell]
    places = [one for one in recipe.settings if one.name in cell.setting.tuned_at]
    here = [one for one in places if one in settings_at(recipe, scale)]
    return [_cell(recipe, setting, cell.method, scale) for setting in here or places]


def _cell(recipe: Recipe, setting: Setting, method: Reading, scale: str) -> TableCell:
    layers = [
        recipe.base,
        setting.config,
        method.config,
        getattr(recipe.scales, scale),
        getattr(setting.at, scale),
    ]
    tree: Tree = deepcopy(reduce(loading.merged, layers, {}))  # cells share the recipe's tables
    keys = setting.assign | method.assign | getattr(recipe.assign, scale)
    for key, value in keys.items():
        loading.assign(tree, key, value)
    paper = recipe.paper.get(setting.name, {}).get(method.title)
    metric = method.metric or setting.metric or recipe.metric
    return TableCell(setting, method.at(scale), tree, paper, metric)
