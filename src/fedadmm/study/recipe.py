"""A recipe: which runs make up a table or a figure, at which scale."""

from __future__ import annotations

import fnmatch
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, reduce
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedadmm.core.errors import ConfigError
from fedadmm.study import loading
from fedadmm.study.config import Run, Tree, resolve
from fedadmm.study.messages import suggestion

SCALES = ("smoke", "quick", "full")
READINGS = ("as printed", "as released", "recommended", "baseline")
_SUFFIX = ".toml"

Measure = Literal[
    "rounds_to_target",
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
    tuned_at: str | None = Field(
        default=None, description="the setting whose search decides, when it is not its own"
    )


class Reading(_Model):
    """One row: a method in one reading of its paper."""

    name: str
    title: str
    reading: Literal["as printed", "as released", "recommended", "baseline"] = "baseline"
    config: Tree = {}
    assign: Tree = {}
    search: list[str] = Field(
        default=["solver.lr"], description="the keys that it tries values of; none: not tuned"
    )
    settings: list[str] = Field(default=["*"], description="the settings it is run in")

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

    def at(self, scale: str) -> Search:
        """The search at a scale; at smoke it tries one point: it is exercised, not believed."""
        values, rounds = self.values, self.rounds
        if scale == "smoke":
            values, rounds = {key: some[:1] for key, some in values.items()}, 1
        elif scale == "quick":
            values, rounds = values | self.quick_values, self.quick_rounds or rounds
        return self.model_copy(update={"values": values, "rounds": rounds})

    def grid(self, keys: Sequence[str]) -> list[Tree]:
        """Every combination of the keys' values."""
        points = itertools.product(*(self.values[key] for key in keys))
        return [dict(zip(keys, point, strict=True)) for point in points]


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
            if setting.tuned_at is not None and setting.tuned_at not in places:
                raise ValueError(
                    f"{setting.name}: tuned_at is {setting.tuned_at!r}, "
                    f"but must be one of {', '.join(places)}"
                )
        values = self.search.values if self.search is not None else None
        for method in self.methods:
            unknown = [key for key in method.search if values is not None and key not in values]
            if unknown:
                raise ValueError(
                    f"{method.name}: search names {unknown[0]!r}, which has no values in "
                    f"[search.values]"
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
    def run(self) -> Run:
        """The complete run from seed 0, with the values that the recipe starts from."""
        return resolve(self.tree, f"{self.name}: ")

    def searched(self, point: Mapping[str, Any], rounds: int | None = None) -> Run:
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
    """The recipe of a table or figure."""
    known = identifiers()
    if identifier not in known:
        raise ConfigError(f"there is no recipe {identifier!r}; {suggestion(identifier, known)}")
    path = resources.files(__package__).joinpath("recipes", identifier + _SUFFIX)
    try:
        return Recipe.model_validate(tomllib.loads(path.read_text("utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"recipe {identifier}: {where}: {first['msg']}") from None


def cells(recipe: Recipe, scale: str, patterns: Sequence[str] = ()) -> list[TableCell]:
    """Every cell at a scale whose name matches one of the patterns; all when there are none."""
    found = [
        _cell(recipe, setting, method, scale)
        for setting in recipe.settings
        if scale in setting.scales
        for method in recipe.methods
        if any(fnmatch.fnmatch(setting.name, allowed) for allowed in method.settings)
    ]
    wanted = [c for c in found if not patterns or any(fnmatch.fnmatch(c.name, p) for p in patterns)]
    if not wanted:
        raise ConfigError(
            f"--cells is {', '.join(patterns)!r}, but matches none of "
            f"{', '.join(cell.name for cell in found)}"
        )
    return wanted


def tuning_cell(recipe: Recipe, cell: TableCell, scale: str) -> TableCell:
    """The cell whose search decides for this one: itself, or the same method where it is tuned."""
    at = cell.setting.tuned_at
    if at is None:
        return cell
    setting = next(setting for setting in recipe.settings if setting.name == at)
    return _cell(recipe, setting, cell.method, scale)


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
    return TableCell(setting, method, tree, paper, setting.metric or recipe.metric)
