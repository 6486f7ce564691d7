"""Configurations: read from TOML, presets and run directories, changed by keys, made experiments.

Reading and changing tables needs no torch; `resolve` imports every part.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedadmm.core.config_tree import Tree, flattened, from_config, suggestion
from fedadmm.core.errors import ConfigError
from fedadmm.core.parts import FAMILIES, TRUSTS_CODE, is_external, part_of
from fedadmm.core.validation import CLIENT_LIMIT, shown

if TYPE_CHECKING:
    from fedadmm.run.experiment import Experiment

CONFIG, SUFFIX = "config.toml", ".toml"
COMPARISON_KEYS = ("seeds", "methods", "search", "reference")
"""The keys of a file that `compare` reads and a single run leaves alone."""
REGISTERED = (
    *("data.problems", "algorithms", "core.regularizers", "core.schedules", "core.solvers"),
    *("core.stopping", "core.sampling", "run.engines", "core.outputs"),
    *("core.pipeline", "core.aggregation", "run.diagnostics", "theory.certificates"),
    *("study.trackers", "theory.incentives"),
)
"""Importing these modules of the package fills the families of parts."""
_LONGEST, _DEEPEST = 10**7, 1000
"""Characters of a TOML text, and dots of a key: far more than people write."""
_CODE = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")
_DOTTED = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)++""")

USUAL: dict[str, Any] = {
    "problem": {"name": "digits"},
    "algorithm": {"name": "fedadmm"},
    "local": {"solver": {"name": "sgd"}},
}
"""What a configuration may leave out although an experiment asks for it."""
_NAMES = {
    "regularizer": "zero",
    "sampler": "full",
    "aggregator": "sum",
    "output": "last-iterate",
}
"""The parts that tables without a name describe."""
TABLES = {
    key: key
    for key in ("problem", "regularizer", "algorithm", "sampler", "engine", "aggregator", "output")
}
TABLES |= {"local.solver": "solver", "local.stop": "stop"}
"""The tables that name a part -> its family."""
_MOST = {"problem.clients": CLIENT_LIMIT, "engine.workers": 1024}
"""Larger numbers would not fail but hang."""


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
    path, known = Path(source), presets()
    if path.is_dir() and source not in known:
        path = path / CONFIG
        if not path.is_file():
            raise ConfigError(
                f"'{source}': got a folder without {CONFIG}, expected a run directory, a TOML "
                "file or a preset"
            )
    if not path.is_file() and source in known:
        return parse(known[source], f"preset {source}")
    if not path.is_file():
        from fedadmm.data import problems

        if problems.canonical(source) in problems.names():
            return of_problem(source)
        is_path = path.suffix == SUFFIX or len(path.parts) > 1
        kind = "file" if is_path else "file, preset or problem"
        words = [*known, *problems.names()]
        near = "name an existing one, or a preset" if is_path else suggestion(source, words)
        raise ConfigError(f"there is no {kind} {source!r}; {near}")
    tree = table(path)
    if Path(source).is_dir():
        reject_code(path, tree)
    if not tree:
        raise ConfigError(
            f"{path}: is empty, but must say at least what is solved, as in problem.name = "
            "'digits'; fedadmm config show quickstart prints a whole one"
        )
    return tree


def reject_code(path: Path, tree: Mapping[str, Any]) -> None:
    """Refuse a folder that names parts from outside the package: to import them is to run them.

    What is loaded already, because the command names it itself, runs nothing.
    """
    named = [name for name in code_in(tree) if name.partition(":")[0] not in sys.modules]
    if named and not TRUSTS_CODE.get():
        raise ConfigError(
            f"{path}: names {', '.join(map(repr, named))}, which is code and would be imported "
            "from the current folder; add --trust-code if you wrote this folder, or trust whoever "
            "did (in Python, import the module first)"
        )


def code_in(tree: Any) -> list[str]:
    """Every `package.module:Name` of a configuration."""
    if isinstance(tree, str):
        return [tree] if _CODE.fullmatch(tree) else []
    inside = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ()
    return list(dict.fromkeys(name for one in inside for name in code_in(one)))


def of_problem(name: str) -> Tree:
    """A problem's name alone: a tenth of many clients, 5 epochs, batches of 20."""
    from fedadmm.data import problems

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


def toml_tables(text: str) -> dict[str, Any]:
    """The tables of a text that another person wrote; a ValueError for anything else.

    Keys of many parts are refused unread: the time for them grows with the square of their number.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text)} characters, but at most {_LONGEST} are read")
    if any(found.group().count(".") > _DEEPEST for found in _DOTTED.finditer(text)):
        raise ValueError(f"a key has more than {_DEEPEST} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


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
        raise ConfigError(f"--set: got {shown(text)}, expected KEY=VALUE, as in algorithm.rho=0.1")
    return ".".join(path), plain_value(value.strip())


def plain_value(text: str) -> Any:
    """A value in TOML's syntax; else a string or a list of strings: quotes may be left out."""
    try:
        parsed = toml_tables(f"value = {text}")
    except ValueError:
        if text.startswith("[") and text.endswith("]"):
            return [plain_value(word.strip()) for word in text[1:-1].split(",")]
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


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Tree:
    """Tables over tables; a table that names another part replaces the one below it."""
    result = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            same = value.get("name", below.get("name")) == below.get("name")
            value = merged(below, value) if same else value
        result[key] = value
    return result


def resolve(tree: Mapping[str, Any], where: str = "") -> Experiment:
    """The experiment that a configuration describes, every default filled in.

    A ConfigError names the key, the value and what is allowed; `where` says which of several
    configurations is meant.
    """
    from fedadmm.core.pipeline import UpdatePipeline
    from fedadmm.run.experiment import Experiment

    try:
        made = from_config(Experiment, completed(tree))
        UpdatePipeline.of(made.pipeline)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None
    made = made.resolve()
    _check_sizes(made.tree, where)
    return made


@cache
def register() -> None:
    """Import every module with parts that a configuration can name."""
    for name in REGISTERED:
        import_module(f"fedadmm.{name}")


def completed(tree: Mapping[str, Any]) -> Tree:
    """The tables with the usual names where they have none."""
    from fedadmm.core.compatibility import default_requirements
    from fedadmm.data import problems
    from fedadmm.run.engines import default_engine

    register()
    whole = dict(tree)
    for key, usual in USUAL.items():
        whole[key] = _over(usual, whole.get(key, {}))
    local = whole["local"]
    if isinstance(local, dict) and isinstance(local.get("stop"), dict):
        whole["local"] = local | {"stop": {"name": "epochs"} | local["stop"]}
    names = dict(_NAMES)
    method = whole["algorithm"].get("name") if isinstance(whole["algorithm"], dict) else None
    engine = whole.get("engine")
    named = not isinstance(engine, dict) or "name" in engine
    known = is_external(str(method)) or method in FAMILIES["algorithm"]
    if known and not named:
        names["engine"] = default_engine(default_requirements(part_of("algorithm", str(method))))
    for key, name in names.items():
        if isinstance(whole.get(key), dict):
            whole[key] = {"name": name} | whole[key]
    problem = whole["problem"]
    if isinstance(problem, dict):  # a short form is written out, so that a run has one name
        whole["problem"] = problem | {"name": problems.canonical(problem["name"])}
    return whole


def _over(usual: Mapping[str, Any], table: Any) -> Any:
    if not isinstance(table, dict):
        return table
    nested = {k: _over(v, table[k]) for k, v in usual.items() if isinstance(v, dict) and k in table}
    return dict(usual) | table | nested


def _check_sizes(tree: Tree, where: str) -> None:
    """Refuse numbers that the precision or this machine cannot work with."""
    import torch

    precision = tree["precision"]
    largest = math.sqrt(torch.finfo(getattr(torch, precision)).max)
    for key, value in flattened(tree).items():
        if key in _MOST and isinstance(value, int) and value > _MOST[key]:
            raise ConfigError(f"{where}{key}: got {value}, expected at most {_MOST[key]:.7g}")
        of_part = any(key.startswith(f"{table}.") for table in TABLES)
        if isinstance(value, float) and abs(value) > largest and of_part:
            raise ConfigError(
                f"{where}{key}: got {value}, expected at most {largest:.7g} in {precision}, so "
                "that products of two such numbers fit"
            )
