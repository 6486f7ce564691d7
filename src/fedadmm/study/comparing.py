"""Methods × seeds on the same problem, with the same start and the same participation.

A comparison is a run's configuration plus

    seeds     the seeds that are reported
    methods   a label and the tables in which a method differs (algorithm, local, and for methods
              without rounds engine, evaluate and the number of rounds)
    search    one key, the same values for every method, on a seed that is not reported

The seed of a run fixes the initial model and who takes part, so methods meet the same ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.core.errors import ConfigError, ParameterError
from fedadmm.core.parts import FAMILIES, Count, Natural, checked, is_external
from fedadmm.core.tables import Tree, from_table, json_schema, suggestion, to_table
from fedadmm.run.experiment import Experiment
from fedadmm.study import loading, overriding
from fedadmm.study.config import USUAL, resolve
from fedadmm.study.grid import (
    Cell,
    Trial,
    check_distinct,
    choose,
    complete,
    folder_names,
    ranking,
    search,
    target_of,
)
from fedadmm.study.methods import own_engine
from fedadmm.study.overriding import Setting, table_of
from fedadmm.study.pool import Watch, nobody
from fedadmm.study.recorded import RecordedRun
from fedadmm.study.results import document, results
from fedadmm.study.rundir import create, write_json, write_toml

PLAN, OVERVIEW = "comparison.toml", "comparison.json"


Keys = Mapping[str, Any]


@checked
class MethodTable:
    """One method of a comparison: its label and the tables that differ from the run's.

    Args:
        label: the algorithm's name when absent.
        algorithm, local, output, engine, evaluate: keys of these tables.
        rounds: as many as the run when absent.
        search_key: searched instead of search.key.
    """

    label: str | None = None
    algorithm: Keys = field(default_factory=dict)
    local: Keys = field(default_factory=dict)
    output: Keys = field(default_factory=dict)
    engine: Keys = field(default_factory=dict)
    evaluate: Keys = field(default_factory=dict)
    rounds: Count | None = None
    search_key: str | None = None


@checked
class SearchTable:
    """A search that every method gets: the same values, seed and rounds.

    Args:
        values: what is tried.
        key: the key that is chosen for each method.
        seed: not one of the seeds that are reported.
        rounds: as many as the runs when absent.
    """

    values: Sequence[Any]
    key: str = "local.solver.lr"
    seed: Natural = 1000
    rounds: Count | None = None

    def __post_init__(self) -> None:
        _not_empty(self, "values", self.values)


@checked
class ComparisonKeys:
    """The keys that make a run's configuration a comparison."""

    seeds: Sequence[Natural] = (0,)
    methods: Sequence[MethodTable] = ()
    search: SearchTable | None = None

    def __post_init__(self) -> None:
        _not_empty(self, "seeds", self.seeds)


def _not_empty(owner: object, key: str, values: Sequence[Any]) -> None:
    if not values:
        raise ParameterError(
            f"{type(owner).__name__}: {key} is {list(values)}, but must hold at least one"
        )


def schema() -> Tree:
    """The JSON schema of configuration files: a run's keys with those of a comparison."""
    run, keys = json_schema(Experiment, USUAL), json_schema(ComparisonKeys)
    return run | {
        "title": "One run, and the keys that make it a comparison.",
        "properties": run["properties"] | keys["properties"],
        "$defs": run["$defs"] | keys["$defs"],
    }


class Method(NamedTuple):
    """A method with its complete run, from the first seed."""

    label: str
    run: Experiment
    search_key: str | None


class Comparison(NamedTuple):
    """A comparison that has been checked."""

    methods: list[Method]
    seeds: Sequence[int]
    search: SearchTable | None
    reached: Sequence[str] = ()
    """What was set in the parts of methods, and in which methods, a line for each."""

    def runs(self) -> int:
        """How many runs it takes, those of the search among them."""
        tried = len(self.search.values) if self.search is not None else 0
        return len(self.methods) * (len(self.seeds) + tried)

    def complete(self) -> Tree:
        """The comparison with every default of every method."""
        trees = [method.run.tree for method in self.methods]
        differing = [
            key
            for key in ("output", "engine", "evaluate", "rounds")
            if any(tree[key] != trees[0][key] for tree in trees)
        ]
        own = ["algorithm", "local", *differing]
        methods = [
            {"label": method.label} | {key: tree[key] for key in own}
            for method, tree in zip(self.methods, trees, strict=True)
        ]
        shared = {key: value for key, value in trees[0].items() if key not in own}
        search = {} if self.search is None else {"search": to_table(self.search)}
        return shared | {"seeds": list(self.seeds), "methods": methods} | search


def plan(
    tree: Mapping[str, Any], algorithms: Sequence[str] = (), settings: Sequence[Setting] = ()
) -> Comparison:
    """Check a comparison; `algorithms` picks methods by name, or adds them with their defaults.

    `settings` come last: those of the methods' own tables go to every method that has the key.
    """
    own = [(key, value) for key, value in settings if _is_own(key)]
    written = deepcopy(dict(tree))
    for key, value in settings:
        if not _is_own(key):
            loading.assign(written, key, value)
    base, keys = loading.run_only(written), _keys(written)
    check_distinct("seeds", keys.seeds)
    chosen = (_picked(keys.methods, algorithms) if algorithms else keys.methods) or [MethodTable()]
    for key, value in settings:
        if all(_keeps(entry, key) for entry in chosen):
            hint = "; choose methods with --algorithms" if key == _NAME else ""
            raise ConfigError(
                f"{key} is set to {value!r}, but every method compared brings its own{hint}"
            )
    trees = [_tree(base, entry) for entry in chosen]
    applied = [
        overriding.apply(one, [setting for setting in own if not _keeps(entry, setting[0])])
        for one, entry in zip(trees, chosen, strict=True)
    ]
    overriding.check_reached(own, trees, applied)
    methods = [_method(one, entry) for one, entry in zip(trees, chosen, strict=True)]
    labels = [method.label for method in methods]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"methods: label {label!r} stands twice, but must be unique")
    if keys.search is not None:
        _check_search(keys.search, keys.seeds, methods, dict(own))
    reached = [overriding.reach(one, labels, applied) for one in own if table_of(one[0])]
    return Comparison(methods, keys.seeds, keys.search, reached)


_NAME = "algorithm.name"
_OWN = ("algorithm", "local", "output", "engine", "evaluate", "rounds")


def _is_own(key: str) -> bool:
    """Whether a setting goes over the methods' tables: all of theirs but the method's name."""
    return key.partition(".")[0] in _OWN and key != _NAME


def _keeps(entry: MethodTable, key: str) -> bool:
    """A method keeps its name, and one without rounds the engine that it needs."""
    name = entry.algorithm.get("name")
    return (key == _NAME and name is not None) or (key == "engine.name" and bool(own_engine(name)))


def _check_search(
    search: SearchTable, seeds: Sequence[int], methods: Sequence[Method], given: Mapping[str, Any]
) -> None:
    if search.seed in seeds:
        raise ConfigError(
            f"search.seed is {search.seed}, but must not be one of the reported seeds {seeds}"
        )
    for method in methods:
        key = method.search_key or search.key
        if key in given:
            raise ConfigError(
                f"{key} is set to {given[key]!r}, but the search chooses it for {method.label}; "
                f"set search.values=[{given[key]!r}] instead"
            )


def _keys(tree: Mapping[str, Any]) -> ComparisonKeys:
    own = {key: tree[key] for key in loading.COMPARISON_KEYS if key in tree}
    return from_table(ComparisonKeys, own, title="a comparison")


def _picked(methods: Sequence[MethodTable], names: Sequence[str]) -> list[MethodTable]:
    known = FAMILIES["algorithm"]
    picked: list[MethodTable] = []
    for name in names:
        found = [entry for entry in methods if name in (entry.label, entry.algorithm.get("name"))]
        if not found and name not in known and not is_external(name):
            raise ConfigError(f"--algorithms names {name!r}; {suggestion(name, known)}")
        picked += found or [MethodTable(algorithm={"name": name})]
    return picked


def _tree(base: Tree, entry: MethodTable) -> Tree:
    tables = {key: getattr(entry, key) for key in _OWN}
    tables["engine"] = {**own_engine(entry.algorithm.get("name")), **entry.engine}
    return deepcopy(loading.merged(base, {key: value for key, value in tables.items() if value}))


def _method(tree: Tree, entry: MethodTable) -> Method:
    own = entry.label or entry.algorithm.get("name")
    run = resolve(tree, f"methods ({own}): " if own is not None else "")
    return Method(entry.label or run.label, run, entry.search_key)


def compare(
    comparison: Comparison,
    out: Path,
    *,
    resume: bool = False,
    processes: int = 1,
    watch: Watch = nobody,
) -> dict[str, Any]:
    """Search, run everything, and return what is written to comparison.json."""
    if (out / PLAN).is_file() and not resume:
        raise ConfigError(
            f"--out is '{out}', which already holds a comparison; add --resume to go on with it, "
            "or choose another folder"
        )
    create(out)
    write_toml(out / PLAN, comparison.complete())
    found = _search(comparison, out, processes, watch)
    names = folder_names(method.label for method in comparison.methods)
    cells = [
        Cell(label, run.with_seed(seed), out / "runs" / f"{names[label]}-seed{seed}")
        for label, run in _chosen(comparison, found)
        for seed in comparison.seeds
    ]
    complete(cells, processes, watch)
    first = comparison.methods[0].run
    return write_overview(
        out,
        [cell.read() for cell in cells],
        problem=first.name("problem"),
        target=first.tree.get("target"),
        seeds=comparison.seeds,
        rounds=first.rounds,
        search=found,
    )


def _search(
    comparison: Comparison, out: Path, processes: int, watch: Watch
) -> dict[str, Any] | None:
    """Every method with every value, on the search's own seed."""
    wanted = comparison.search
    if wanted is None:
        return None
    trials = []
    labels = [method.label for method in comparison.methods]
    names = folder_names(f"{label} {value!r}" for label in labels for value in wanted.values)
    for method in comparison.methods:
        key = method.search_key or wanted.key
        for value in wanted.values:
            folder = out / "search" / names[f"{method.label} {value!r}"]
            label = f"search {method.label} {key}={value}"
            run = _searched(method, key, value, wanted)
            trials.append(Trial(method.label, key, value, Cell(label, run, folder)))
    complete([trial.cell for trial in trials], processes, watch)
    tried = search(trials)
    first = comparison.methods[0].run
    return {
        "values": wanted.values,
        "seed": wanted.seed,
        "rounds": wanted.rounds or first.rounds,
        "rule": ranking(first.tree.get("target")),
        "tried": tried,
        "chosen": choose(tried),
    }


def _searched(method: Method, key: str, value: Any, wanted: SearchTable) -> Experiment:
    tree = deepcopy(method.run.tree) | {"seed": wanted.seed}
    if wanted.rounds is not None:
        tree["rounds"] = wanted.rounds
    if "target" in tree:
        tree["target"] |= {"end_run": True}
    loading.assign(tree, key, value)
    return resolve(tree, f"search ({method.label}): ")


def _chosen(
    comparison: Comparison, found: Mapping[str, Any] | None
) -> list[tuple[str, Experiment]]:
    """Every method's run, with what its search chose."""
    if found is None:
        return [(method.label, method.run) for method in comparison.methods]
    runs = []
    for method in comparison.methods:
        choice, tree = found["chosen"][method.label], deepcopy(method.run.tree)
        loading.assign(tree, choice["key"], choice["value"])
        runs.append((method.label, resolve(tree, f"methods ({method.label}): ")))
    return runs


def write_overview(
    folder: Path,
    runs: Sequence[RecordedRun],
    *,
    problem: str,
    target: Mapping[str, Any] | None,
    seeds: Sequence[int],
    rounds: int,
    search: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write comparison.json about these runs, which may lie anywhere, and return it."""
    found = results(runs, target_of(target))
    overview = {
        "problem": problem,
        "target": target,
        "seeds": list(seeds),
        "rounds": rounds,
        "learning_rate_search": search,
        "table": document(found, search["chosen"] if search is not None else None),
        "runs": [
            {key: run.summary.get(key) for key in _REPEATED}
            | {"label": run.label, "method": run.method, "baseline": run.baseline}
            | {"directory": os.path.relpath(run.directory, folder)}
            for run in runs
        ],
        **(more or {}),
    }
    write_json(folder / OVERVIEW, overview)
    return overview


_REPEATED = (
    "label",
    "algorithm",
    "seed",
    "status",
    "code",
    "rounds",
    "rounds_to_target",
    "bytes_to_target",
    "bytes_up",
    "bytes_down",
    "seconds",
    "final",
    "params_sha256",
)
