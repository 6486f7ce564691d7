"""From a configuration's tables to an experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from fedadmm import algorithms
from fedadmm.core import (
    adaptive_sampling,
    aggregation,
    outputs,
    regularizers,
    sampling,
    schedules,
    solvers,
    stopping,
    uploads,
)
from fedadmm.core.errors import ConfigError
from fedadmm.core.parts import FAMILIES, is_external, part_of
from fedadmm.core.tables import Tree, flattened, from_table
from fedadmm.core.uploads import Uploads
from fedadmm.data import problems
from fedadmm.run import diagnostics, engines
from fedadmm.run.engines import default_engine
from fedadmm.run.experiment import Experiment, resolved
from fedadmm.study import trackers
from fedadmm.theory import certificates, incentives

REGISTERED = (
    *(problems, algorithms, regularizers, schedules, solvers, stopping),
    *(sampling, adaptive_sampling, engines, outputs, uploads, aggregation),
    *(diagnostics, certificates, trackers, incentives),
)
"""Importing these fills the families of parts."""

USUAL: dict[str, Any] = {
    "problem": {"name": "digits"},
    "algorithm": {"name": "fedadmm"},
    "local": {"solver": {"name": "sgd"}},
}
"""What a configuration may leave out although an experiment asks for it."""
_NAMES = {
    "regularizer": "zero",
    "sampler": "full",
    "aggregate": "sum",
    "output": "last-iterate",
}
"""The parts that tables without a name describe."""
TABLES = {
    key: key
    for key in ("problem", "regularizer", "algorithm", "sampler", "engine", "aggregate", "output")
}
TABLES |= {"local.solver": "solver", "local.stop": "stop"}
"""The tables that name a part -> its family."""
MOVED = {
    "solver": "local.solver, as in [local.solver]",
    "stop": "local.stop, as in [local.stop]",
    "algorithm.start": "local.start",
    "algorithm.absent": "algorithm.name = 'aligned-admm' for 'aligned', and nothing for 'kept'",
    "algorithm.alignment": "algorithm.sigma, with algorithm.name = 'aligned-admm'",
    "algorithm.increment": "algorithm.name = 'fedadmm-released' or 'fedadmm-printed'",
    "trackers": 'callbacks = [{ name = "tensorboard" }]',
    "evaluate.certificate": 'callbacks = [{ name = "certificate", theorem = "auto" }]',
    "evaluate.diagnose": 'callbacks = [{ name = "diagnostics", every = 10 }]',
    "evaluate.diagnosed_clients": 'callbacks = [{ name = "diagnostics", clients = 5 }]',
    "evaluate.duality": 'callbacks = [{ name = "diagnostics", clients = 0, duality = true }]',
}
"""Keys of version 0.1.0 -> what to write in their place."""
_MOST = {"problem.clients": 1_000_000, "engine.workers": 1024}
"""Larger numbers would not fail but hang."""


def resolve(tree: Mapping[str, Any], where: str = "") -> Experiment:
    """The experiment that a configuration describes, every default filled in.

    A ConfigError names the key, the value and what is allowed; `where` says which of several
    configurations is meant.
    """
    given = flattened(tree)
    for old, new in MOVED.items():
        if any(f"{key}.".startswith(f"{old}.") for key in given):
            raise ConfigError(f"{where}{old} is of version 0.1.0; write {new}")
    try:
        made = from_table(Experiment, completed(tree))
        Uploads.of(made.upload)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None
    made = resolved(made)
    _check_sizes(made.tree, where)
    return made


def completed(tree: Mapping[str, Any]) -> Tree:
    """The tables with the usual names where they have none."""
    whole = dict(tree)
    for key, usual in USUAL.items():
        whole[key] = _over(usual, whole.get(key, {}))
    local = whole["local"]
    if isinstance(local, dict) and isinstance(local.get("stop"), dict):
        whole["local"] = local | {"stop": {"name": "epochs"} | local["stop"]}
    names = dict(_NAMES)
    method = whole["algorithm"].get("name") if isinstance(whole["algorithm"], dict) else None
    if isinstance(method, str) and (is_external(method) or method in FAMILIES["algorithm"]):
        names["engine"] = default_engine(part_of("algorithm", method))
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
    precision = tree["precision"]
    largest = math.sqrt(torch.finfo(getattr(torch, precision)).max)
    for key, value in flattened(tree).items():
        if key in _MOST and isinstance(value, int) and value > _MOST[key]:
            raise ConfigError(f"{where}{key} is {value}, but must be at most {_MOST[key]:.7g}")
        of_part = any(key.startswith(f"{table}.") for table in TABLES)
        if isinstance(value, float) and abs(value) > largest and of_part:
            raise ConfigError(
                f"{where}{key} is {value}, but must be at most {largest:.7g} in {precision}, so "
                "that products of two such numbers fit"
            )
