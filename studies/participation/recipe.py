"""The study's two files as recipes that `fedadmm reproduce` runs.

`participation.toml` names every problem once, with a target for each percentage of participants,
and every method once, with the two models that it is measured by.  A recipe has a setting for each
percentage and a row for each model.  `participation-final.toml` names the methods that it takes
from there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.study.recipes import SCALES

FOLDER = Path(__file__).parent
STUDY, FINAL = "participation", "participation-final"

Tree = dict[str, Any]


class Place(NamedTuple):
    """One problem at one percentage of participants."""

    problem: str
    percent: int
    role: str
    """`development`: methods may be chosen on it; `confirmation`: it only judges."""


def read(name: str) -> Tree:
    """One of the study's files."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))


def recipe(name: str) -> Tree:
    """The recipe of a file."""
    return _to_a_target(read(STUDY)) if name == STUDY else _to_a_horizon(read(name))


def places(study: Tree) -> dict[str, Place]:
    """The problem and the percentage of each of the recipe's settings."""
    return {
        f"{setting['name']}-{percent}": Place(setting["name"], int(percent), setting["role"])
        for setting in study["settings"]
        for percent in setting["targets"]
    }


def _to_a_target(study: Tree) -> Tree:
    metric = study.get("metric", "test_accuracy")
    settings = [one for setting in study["settings"] for one in _at_percentages(setting, study)]
    methods = [one for row in study["methods"] for one in _with_outputs(row, study, metric)]
    own = _without(study, "verdict", "outputs", "percentages")
    return own | {"settings": settings, "methods": methods}


def _at_percentages(setting: Tree, study: Tree) -> Iterator[Tree]:
    for key, target in setting["targets"].items():
        percent = int(key)
        run_at = [
            scale
            for scale in setting.get("scales", SCALES)
            if percent in study["percentages"].get(scale, [percent])
        ]
        yield _without(setting, "role", "targets") | {
            "name": f"{setting['name']}-{percent}",
            "title": f"{setting['title']}, {percent} %",
            "assign": {"sampler.size": percent / 100, "target.value": target},
            "tuned_at": [f"{place}-{percent}" for place in setting["tuned_at"]],
            "scales": run_at,
        }


def _with_outputs(row: Tree, study: Tree, metric: str) -> list[Tree]:
    """A row for each of the two models, both read off the same runs."""
    printed, beside = row.get("outputs", study["outputs"])
    other = f"{metric}_{beside}"
    shared = _without(row, "outputs") | {
        "assign": {
            "output": {"name": "two-outputs", "handed": printed, "measured": beside},
            "target.also": [other],
        }
    }
    name, title = f"{row['name']}+{beside}", f"{row['title']}, {beside}"
    return [shared, shared | {"name": name, "title": title, "metric": other}]


def _to_a_horizon(final: Tree) -> Tree:
    """The study's problems, search and some of its methods, without targets."""
    study = read(STUDY)
    chosen = [row for row in study["methods"] if row["name"] in final["methods"]]
    return final | {
        "search": study["search"],
        "settings": [_without(setting, "role", "targets") for setting in study["settings"]],
        "methods": [_without(row, "outputs", "scales") for row in chosen],
    }


def _without(table: Tree, *keys: str) -> Tree:
    return {key: value for key, value in table.items() if key not in keys}
