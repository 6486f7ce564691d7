"""Where a configuration comes from: a preset, a file, a run directory, and keys set by hand."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any, cast

from fedadmm.core.errors import ConfigError
from fedadmm.core.tables import Tree, suggestion
from fedadmm.core.validation import shown
from fedadmm.data import problems
from fedadmm.study.rundir import CONFIG, toml_tables

SUFFIX = ".toml"
COMPARISON_KEYS = ("seeds", "methods", "search")
"""The keys of a file that `compare` reads and a single run leaves alone."""


def presets() -> dict[str, str]:
    """Every preset's name and its text; the first comment says what it is."""
    folder = resources.files(__package__).joinpath("presets")
    texts = {
        entry.name.removesuffix(SUFFIX): entry.read_text("utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(SUFFIX)
    }
    return dict(sorted(texts.items()))


def about(text: str) -> str:
    """The first paragraph of a preset's opening comment."""
    lines = itertools.takewhile(lambda line: len(line) > 1 and line[0] == "#", text.splitlines())
    return " ".join(" ".join(line.strip("# ") for line in lines).split())


def read(source: str) -> Tree:
    """The tables of a preset, a TOML file, a run directory's config.toml, or a problem's name."""
    path = Path(source)
    known = presets()
    if path.is_dir() and source not in known:
        path = path / CONFIG
        if not path.is_file():
            raise ConfigError(
                f"'{source}' is a folder without {CONFIG}, but must be a run directory, a TOML "
                "file or a preset"
            )
    if not path.is_file() and source in known:
        return parse(known[source], f"preset {source}")
    if not path.is_file() and problems.canonical(source) in problems.names():
        return of_problem(source)
    if not path.is_file():
        is_path = path.suffix == SUFFIX or len(path.parts) > 1
        kind = "file" if is_path else "file, preset or problem"
        words = [*known, *problems.names()]
        near = "name an existing one, or a preset" if is_path else suggestion(source, words)
        raise ConfigError(f"there is no {kind} {source!r}; {near}")
    tree = table(path)
    if not tree:
        raise ConfigError(
            f"{path}: is empty, but must say at least what is solved, as in problem.name = "
            "'digits'; fedadmm config show quickstart prints a whole one"
        )
    return tree


def of_problem(name: str) -> Tree:
    """A problem's name alone: a tenth of many clients, 5 epochs, batches of 20."""
    usual = {field.name: field.default for field in fields(cast(Any, problems.options(name)))}
    count = usual.get("clients")
    sampler: dict[str, Any] = {"name": "full"}
    if isinstance(count, int) and count >= 50:
        sampler = {"name": "uniform", "size": 0.1}
    return {
        "problem": {"name": name},
        "local": {
            "solver": {"name": "sgd", "batch_size": 20},
            "stop": {"name": "epochs", "epochs": 5},
        },
        "sampler": sampler,
    }


def table(path: Path) -> Tree:
    """The tables of a TOML file."""
    try:
        return parse(path.read_text("utf-8-sig"), str(path))  # some editors write a byte-order mark
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not a text in UTF-8 ({error.reason})") from None


def parse(text: str, origin: str) -> Tree:
    """Tables from TOML."""
    try:
        return toml_tables(text)
    except ValueError as error:
        raise ConfigError(f"{origin}: is not TOML ({error})") from None


def write(tree: Mapping[str, Any]) -> str:
    """TOML from tables."""
    import tomli_w

    return tomli_w.dumps(tree)


def run_only(tree: Mapping[str, Any]) -> Tree:
    """The keys of a single run."""
    return {key: value for key, value in tree.items() if key not in COMPARISON_KEYS}


def assignment(text: str) -> tuple[str, Any]:
    """Key and value of `a.b=value`; the value is TOML, or else a string."""
    key, equals, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path):
        raise ConfigError(f"--set is {shown(text)}, but must be KEY=VALUE, as in algorithm.rho=0.1")
    return ".".join(path), plain_value(value.strip())


def plain_value(text: str) -> Any:
    """A value in TOML's syntax; what is none is a string, so that quotes may be left out."""
    try:
        parsed = toml_tables(f"value = {text}")
    except ValueError:
        return text
    return parsed["value"] if set(parsed) == {"value"} else text


def assign(tree: Tree, key: str, value: Any) -> None:
    """Set one key; naming another part in a table starts that table afresh."""
    *path, last = [part.strip() for part in key.split(".")]
    table = tree
    for step in path:
        if not isinstance(table.get(step), dict):
            table[step] = {}
        table = table[step]
    if last == "name" and table.get("name") != value:
        table.clear()
        if key == "algorithm.name" and isinstance(tree.get("local"), dict):
            tree["local"].pop("start", None)  # where training starts was chosen for another method
    table[last] = value


def _over(below: Any, table: Any) -> Any:
    same = table.get("name", below.get("name")) == below.get("name")
    return merged(below, table) if same else table


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Tree:
    """Tables over tables; a table that names another part replaces the one below it."""
    result = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        result[key] = _over(below, value) if both else value
    return result
