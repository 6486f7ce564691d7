"""Methods × seeds on the same problem, with the same start and the same participation.

A comparison is a run's configuration plus

    seeds     the seeds that are reported
    methods   a label and the tables in which a method differs (algorithm, local, and for methods
              without rounds engine, evaluate and the number of rounds)
    search    one key, the same values for every method, on a seed that is not reported

The seed of a run fixes the initial model and who takes part, so methods meet the same ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import field
from pathlib import Path
from typing import Any

from fedadmm.core.config_tree import Tree, from_config, json_schema, suggestion, to_config
from fedadmm.core.errors import ConfigError, FedADMMError, ParameterError
from fedadmm.core.parts import FAMILIES, Count, Natural, Positive, checked, is_external
from fedadmm.run.experiment import Experiment
from fedadmm.study import config
from fedadmm.study.config import USUAL, resolve
from fedadmm.study.methods import own_engine
from fedadmm.study.run_dir import create, write_toml
from fedadmm.study.runner import OnEvent, ignore_event, run_study
from fedadmm.study.spec import (
    PLAN,
    Cell,
    Override,
    Search,
    SearchSpace,
    Study,
    apply,
    check_distinct,
    check_reached,
    folder_names,
    reach,
    table_of,
)
from fedadmm.study.study_result import StudyResult, write_results

Keys = Mapping[str, Any]


@checked
class MethodConfig:
    """One method of a comparison: its label and the tables that differ from the run's.

    Args:
        label: the algorithm's name when absent.
        algorithm, local, output, engine, evaluate: keys of these tables.
        rounds: as many as the run when absent.
    """

    label: str | None = None
    algorithm: Keys = field(default_factory=dict)
    local: Keys = field(default_factory=dict)
    output: Keys = field(default_factory=dict)
    engine: Keys = field(default_factory=dict)
    evaluate: Keys = field(default_factory=dict)
    rounds: Count | None = None


@checked
class SearchConfig:
    """A hyper-parameter search that every method gets: the same first grid, seeds and rounds.

    If the problem holds validation samples out (`problem.validation`), they decide; test samples
    are used for reported numbers only.  See `fedadmm.study.search` for the procedure.

    Args:
        values: the first grid of the key.  While the best value is at an edge, the grid grows.
        key: the key that is chosen for each method.
        seeds: seeds of the search; none of them is reported.
        rounds: largest number of rounds of a run; as many as the reported runs when absent.
        keep: share of the values that goes on from one seed to the next, at least two values.
        extend: largest number of values that are added to the grid of a method; 0 keeps the grid.
    """

    values: Sequence[Any]
    key: str = "local.solver.lr"
    seeds: Sequence[Natural] = (1000, 1001, 1002)
    rounds: Count | None = None
    keep: Positive = 0.5
    extend: Natural = 6

    def __post_init__(self) -> None:
        _not_empty(self, "values", self.values)
        _not_empty(self, "seeds", self.seeds)
        check_distinct("search.seeds", self.seeds)
        if self.keep > 1:
            raise ParameterError(f"search.keep: got {self.keep}, expected at most 1.")


@checked
class ComparisonConfig:
    """The keys that make a run's configuration a comparison."""

    seeds: Sequence[Natural] = (0,)
    methods: Sequence[MethodConfig] = ()
    search: SearchConfig | None = None
    reference: str | None = None
    """Method or label that all others are compared with; without it the best other one."""

    def __post_init__(self) -> None:
        _not_empty(self, "seeds", self.seeds)


def _not_empty(owner: object, key: str, values: Sequence[Any]) -> None:
    if not values:
        raise ParameterError(
            f"{type(owner).__name__}: {key} is {list(values)}, expected at least one"
        )


def schema() -> Tree:
    """The JSON schema of configuration files: a run's keys with those of a comparison."""
    config.register()
    run, keys = json_schema(Experiment, USUAL), json_schema(ComparisonConfig)
    return run | {
        "title": "One run, and the keys that make it a comparison.",
        "properties": run["properties"] | keys["properties"],
        "$defs": run["$defs"] | keys["$defs"],
    }


def plan(
    tree: Mapping[str, Any], algorithms: Sequence[str] = (), settings: Sequence[Override] = ()
) -> Study:
    """Check a comparison; `algorithms` picks methods by name, or adds them with their defaults.

    `settings` come last: those of the methods' own tables go to every method that has the key.
    """
    own = [(key, value) for key, value in settings if _is_own(key)]
    written = deepcopy(dict(tree))
    for key, value in settings:
        if not _is_own(key):
            config.assign(written, key, value)
    base = config.run_only(written)
    tables = {key: written[key] for key in config.COMPARISON_KEYS if key in written}
    keys = from_config(ComparisonConfig, tables, title="a comparison")
    check_distinct("seeds", keys.seeds)
    chosen = (_picked(keys.methods, algorithms) if algorithms else keys.methods) or [MethodConfig()]
    for key, value in settings:
        if all(_keeps(entry, key) for entry in chosen):
            hint = "; choose methods with --algorithms" if key == _NAME else ""
            raise ConfigError(
                f"{key} is set to {value!r}, but every method compared brings its own{hint}"
            )
    trees = [_tree(base, entry) for entry in chosen]
    applied = [
        apply(one, [setting for setting in own if not _keeps(entry, setting[0])])
        for one, entry in zip(trees, chosen, strict=True)
    ]
    check_reached(own, trees, applied)
    cells = _cells(trees, chosen, keys.search is not None)
    labels = [cell.label for cell in cells]
    reached = [reach(one, labels, applied) for one in own if table_of(one[0])]
    search = None if keys.search is None else _search(keys.search, keys.seeds, cells, dict(own))
    about = {}
    if keys.reference is not None:
        about = {"compared_with": _reference(cells, keys.reference)}
    whole = _complete(cells, keys)
    return Study("comparison", cells, keys.seeds, search, about, plan=whole, reached=reached)


def _reference(cells: Sequence[Cell], name: str) -> str:
    """Return the label of the method that others are compared with."""
    for cell in cells:
        if name in (cell.label, cell.run.name("algorithm"), cell.run.algorithm.title):
            return cell.label
    known = ", ".join(cell.label for cell in cells)
    raise ConfigError(f"reference: got {name!r}, expected one of the methods {known}.")


def _complete(cells: Sequence[Cell], keys: ComparisonConfig) -> Tree:
    """The comparison with every default of every method."""
    trees = [cell.run.tree for cell in cells]
    differing = [
        key
        for key in ("output", "engine", "evaluate", "rounds")
        if any(tree[key] != trees[0][key] for tree in trees)
    ]
    own = ["algorithm", "local", *differing]
    methods = [{"label": cell.label} | {key: cell.run.tree[key] for key in own} for cell in cells]
    shared = {key: value for key, value in trees[0].items() if key not in own}
    search = {} if keys.search is None else {"search": to_config(keys.search)}
    reference = {} if keys.reference is None else {"reference": keys.reference}
    return shared | {"seeds": list(keys.seeds), "methods": methods} | search | reference


_NAME = "algorithm.name"
_OWN = ("algorithm", "local", "output", "engine", "evaluate", "rounds")


def _is_own(key: str) -> bool:
    """Whether a setting goes over the methods' tables: all of theirs but the method's name."""
    return key.partition(".")[0] in _OWN and key != _NAME


def _keeps(entry: MethodConfig, key: str) -> bool:
    """Return whether a method keeps its own value: its name, or the engine that it needs."""
    name = entry.algorithm.get("name")
    return (key == _NAME and name is not None) or (key == "engine.name" and bool(own_engine(name)))


def _picked(methods: Sequence[MethodConfig], names: Sequence[str]) -> list[MethodConfig]:
    config.register()
    known = FAMILIES["algorithm"]
    picked: list[MethodConfig] = []
    for name in names:
        found = [entry for entry in methods if name in (entry.label, entry.algorithm.get("name"))]
        if not found and name not in known and not is_external(name):
            raise ConfigError(f"--algorithms names {name!r}; {suggestion(name, known)}")
        picked += found or [MethodConfig(algorithm={"name": name})]
    return picked


def _tree(base: Tree, entry: MethodConfig) -> Tree:
    tables = {key: getattr(entry, key) for key in _OWN}
    tables["engine"] = {**own_engine(entry.algorithm.get("name")), **entry.engine}
    return deepcopy(config.merged(base, {key: value for key, value in tables.items() if value}))


def _cells(trees: Sequence[Tree], entries: Sequence[MethodConfig], tuned: bool) -> list[Cell]:
    runs: list[tuple[str, Experiment]] = []
    for tree, entry in zip(trees, entries, strict=True):
        own = entry.label or entry.algorithm.get("name")
        run = resolve(tree, f"methods ({own}): " if own is not None else "")
        runs.append((entry.label or run.label, run))
    labels = [label for label, _ in runs]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"methods: label: got {label!r} twice, expected different labels")
    names = folder_names(labels)
    return [
        Cell(label, run, label, folder=f"runs/{names[label]}", tuned=label if tuned else "")
        for label, run in runs
    ]


def _search(
    wanted: SearchConfig, seeds: Sequence[int], cells: Sequence[Cell], given: Mapping[str, Any]
) -> Search:
    """Return the search that every method gets."""
    key = wanted.key
    shared = sorted(set(wanted.seeds) & set(seeds))
    if shared:
        raise ConfigError(
            f"search.seeds: got {list(wanted.seeds)}, expected none of the reported seeds "
            f"{list(seeds)}."
        )
    if key in given:
        raise ConfigError(
            f"{key} is set to {given[key]!r}, but the search chooses it; "
            f"set search.values=[{given[key]!r}] instead"
        )
    first = cells[0].run
    target = first.tree.get("target")
    spaces = [SearchSpace(cell.label, [cell], {key: wanted.values}) for cell in cells]
    about = {
        "values": list(wanted.values),
        "rounds": wanted.rounds or first.rounds,
        "rule": _ranking(target),
    }
    changes = {} if target is None else {"target.end_run": True}
    return Search(
        wanted.seeds,
        spaces,
        wanted.rounds,
        wanted.keep,
        wanted.extend,
        changes=changes,
        about=about,
    )


def _ranking(target: Mapping[str, Any] | None) -> str:
    """How a search chooses, in words."""
    if target is None:
        return "best mean of the last measurement; divergence ranks last"
    return (
        f"fewest rounds to {target['metric'].removeprefix('test_')} {target['value']} in the mean, "
        "a miss counting at least all rounds; divergence ranks last"
    )


def compare(
    study: Study,
    out: Path,
    *,
    resume: bool = False,
    processes: int = 1,
    watch: OnEvent = ignore_event,
) -> StudyResult:
    """Search, run everything, and write results.json."""
    if (out / PLAN).is_file() and not resume:
        raise ConfigError(
            f"--out is '{out}', which already holds a comparison; add --resume to go on with it, "
            "or choose another folder"
        )
    create(out)
    write_toml(out / PLAN, study.plan)
    try:
        found = run_study(study, out, processes=processes, watch=watch)
    except FedADMMError:
        if {path.name for path in out.rglob("*") if path.is_file()} == {PLAN}:
            shutil.rmtree(out)  # rejected before its first run, so that the next try may have it
        raise
    write_results(found)
    return found
