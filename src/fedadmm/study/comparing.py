"""Methods × seeds on the same problem, with the same start and the same participation.

A comparison is a run's configuration plus

    seeds     the seeds that are reported
    methods   a label and the tables in which a method differs (algorithm, solver, stop, and for
              methods without rounds engine, evaluate and the number of rounds)
    search    one key, the same values for every method, on a seed that is not reported

The seed of a run fixes the initial model and who takes part, so methods meet the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError, create_model

from fedadmm.errors import ConfigError
from fedadmm.study import loading
from fedadmm.study import rundir as files
from fedadmm.study.config import (
    Count,
    Natural,
    RunConfig,
    Table,
    Tree,
    resolve,
    run_model,
)
from fedadmm.study.messages import refusal, suggestion
from fedadmm.study.methods import own_engine
from fedadmm.study.pool import Job, Watch, nobody, run_jobs
from fedadmm.study.registry import families
from fedadmm.study.results import choose, ranking, standing, table
from fedadmm.study.summary import Summary

PLAN = "comparison.toml"


class MethodTable(Table):
    """One method of a comparison: its label and the tables that differ from the run's."""

    label: str | None = Field(default=None, description="the algorithm's name when absent")
    algorithm: dict[str, Any] = Field(default={}, description="keys of the table algorithm")
    solver: dict[str, Any] = Field(default={}, description="keys of the table solver")
    stop: dict[str, Any] = Field(default={}, description="keys of the table stop")
    engine: dict[str, Any] = Field(default={}, description="keys of the table engine")
    evaluate: dict[str, Any] = Field(default={}, description="keys of the table evaluate")
    rounds: Count | None = Field(default=None, description="as many as the run when absent")
    search_key: str | None = Field(default=None, description="searched instead of search.key")


class SearchTable(Table):
    """A search that every method gets: the same values, seed and rounds."""

    key: str = Field(default="solver.lr", description="the key that is chosen for each method")
    values: list[Any] = Field(min_length=1, description="what is tried")
    seed: Natural = Field(default=1000, description="not one of the seeds that are reported")
    rounds: Count | None = Field(default=None, description="as many as the runs when absent")


@cache
def comparison_model() -> type[RunConfig]:
    """A run's configuration with the keys of a comparison."""
    seeds = (list[Natural], Field(default=[0], min_length=1))
    return create_model(
        "Comparison",
        __base__=run_model(),
        __doc__="One run, and the keys that make it a comparison.",
        seeds=seeds,
        methods=(list[MethodTable], []),
        search=(SearchTable | None, None),
    )


class Method(NamedTuple):
    """A method with its complete tables."""

    label: str
    tree: Tree
    search_key: str | None


class Plan(NamedTuple):
    """A comparison that has been checked."""

    tree: Tree
    methods: list[Method]
    seeds: list[int]
    search: SearchTable | None

    def runs(self) -> int:
        """How many runs it takes, those of the search among them."""
        tried = len(self.search.values) if self.search is not None else 0
        return len(self.methods) * (len(self.seeds) + tried)

    def complete(self) -> Tree:
        """The comparison with every default of every method."""
        trees = [method.tree for method in self.methods]
        differing = [
            key
            for key in ("engine", "evaluate", "rounds")
            if any(tree[key] != trees[0][key] for tree in trees)
        ]
        own = ["algorithm", "solver", "stop", *differing]
        methods = [{"label": m.label} | {key: m.tree[key] for key in own} for m in self.methods]
        shared = {key: value for key, value in self.methods[0].tree.items() if key not in own}
        search = self.search.model_dump(exclude_none=True) if self.search is not None else None
        return (
            shared
            | {"seeds": self.seeds, "methods": methods}
            | ({"search": search} if search is not None else {})
        )


def plan(tree: Mapping[str, Any], algorithms: Sequence[str] = ()) -> Plan:
    """Check a comparison; `algorithms` picks methods by name, or adds them with their defaults."""
    try:
        checked: Any = comparison_model().model_validate(dict(tree))
    except ValidationError as error:
        raise refusal(comparison_model(), error) from None
    base = loading.run_only(tree)
    chosen = _picked(checked.methods, algorithms) if algorithms else checked.methods
    chosen = chosen or [MethodTable()]
    methods = [_method(base, entry) for entry in chosen]
    labels = [method.label for method in methods]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"methods: label {label!r} stands twice, but must be unique")
    if checked.search is not None and checked.search.seed in checked.seeds:
        raise ConfigError(
            f"search.seed is {checked.search.seed}, but must not be one of the reported seeds "
            f"{checked.seeds}"
        )
    return Plan(dict(tree), methods, checked.seeds, checked.search)


def _picked(methods: Sequence[MethodTable], names: Sequence[str]) -> list[MethodTable]:
    known = families()["algorithm"]
    picked: list[MethodTable] = []
    for name in names:
        found = [entry for entry in methods if name in (entry.label, entry.algorithm.get("name"))]
        if not found and name not in known:
            raise ConfigError(f"--algorithms names {name!r}; {suggestion(name, known)}")
        picked += found or [MethodTable(algorithm={"name": name})]
    return picked


_OWN = ("algorithm", "solver", "stop", "engine", "evaluate", "rounds")


def _method(base: Tree, entry: MethodTable) -> Method:
    tables = {key: getattr(entry, key) for key in _OWN}
    tables["engine"] = own_engine(entry.algorithm.get("name")) | entry.engine
    tree = loading.merged(base, {key: value for key, value in tables.items() if value})
    name = f"methods ({entry.label or entry.algorithm.get('name', 'no label')}): "
    resolved = resolve(tree, name)
    return Method(entry.label or resolved.algorithm.name, resolved.tree(), entry.search_key)


def compare(
    comparison: Plan, out: Path, *, resume: bool = False, processes: int = 1, watch: Watch = nobody
) -> dict[str, Any]:
    """Search, run everything, and return what is written to comparison.json."""
    _prepare(comparison, out, resume)
    search = _search(comparison, out, processes, watch)
    trees = [_with_choice(method, search) for method in comparison.methods]
    jobs = [
        Job(
            method.label,
            tree | {"seed": seed},
            out / "runs" / f"{slug(method.label)}-seed{seed}",
            True,
        )
        for method, tree in zip(comparison.methods, trees, strict=True)
        for seed in comparison.seeds
    ]
    summaries = run_jobs(jobs, processes, watch)
    result = _result(comparison, out, jobs, summaries, search)
    files.write_json(out / "comparison.json", result)
    return result


def _prepare(comparison: Plan, out: Path, resume: bool) -> None:
    if (out / PLAN).is_file() and not resume:
        raise ConfigError(
            f"--out is '{out}', which already holds a comparison; add --resume to go on with it, "
            "or choose another folder"
        )
    files.create(out)
    files.write_text(out / PLAN, loading.write(comparison.complete()))


def _search(comparison: Plan, out: Path, processes: int, watch: Watch) -> dict[str, Any] | None:
    """Every method with every value, on the search's own seed."""
    search = comparison.search
    if search is None:
        return None
    jobs, keys = [], []
    for method in comparison.methods:
        key = method.search_key or search.key
        for value in search.values:
            tree = _searched(method, key, value, search)
            folder = f"{slug(method.label)}-{slug(str(value))}"
            jobs.append(
                Job(f"search {method.label} {key}={value}", tree, out / "search" / folder, True)
            )
            keys.append((method.label, key, value))
    summaries = run_jobs(jobs, processes, watch)
    target = comparison.tree.get("target")
    tried = [
        standing(job.directory, summary, target) | {"label": label, "key": key, "value": value}
        for job, summary, (label, key, value) in zip(jobs, summaries, keys, strict=True)
    ]
    return {
        "values": search.values,
        "seed": search.seed,
        "rounds": search.rounds or resolve(comparison.methods[0].tree).rounds,
        "rule": ranking(target),
        "tried": tried,
        "chosen": choose(tried),
    }


def _searched(method: Method, key: str, value: Any, search: SearchTable) -> Tree:
    tree = loading.merged(method.tree, {"seed": search.seed})
    if search.rounds is not None:
        tree["rounds"] = search.rounds
    if "target" in tree:
        tree["target"] = tree["target"] | {"end_run": True}
    tree = _set(tree, key, value)
    return resolve(tree, f"search ({method.label}): ").tree()


def _set(tree: Tree, key: str, value: Any) -> Tree:
    changed = deepcopy(tree)
    loading.assign(changed, key, value)
    return changed


def _with_choice(method: Method, search: Mapping[str, Any] | None) -> Tree:
    if search is None:
        return method.tree
    chosen = search["chosen"][method.label]
    return _set(method.tree, chosen["key"], chosen["value"])


def _result(
    comparison: Plan,
    out: Path,
    jobs: Sequence[Job],
    summaries: Sequence[Summary],
    search: Mapping[str, Any] | None,
) -> dict[str, Any]:
    first = resolve(jobs[0].tree)
    runs = [
        {key: summary[key] for key in _REPEATED}
        | {"directory": str(job.directory.relative_to(out))}
        for job, summary in zip(jobs, summaries, strict=True)
    ]
    metric = first.target.metric if first.target is not None else None
    return {
        "problem": first.problem.name,
        "target": first.target.model_dump() if first.target is not None else None,
        "seeds": comparison.seeds,
        "rounds": first.rounds,
        "learning_rate_search": search,
        "table": table(runs, metric, search),
        "runs": runs,
    }


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


def slug(text: str) -> str:
    """A label as a folder's name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "x"
