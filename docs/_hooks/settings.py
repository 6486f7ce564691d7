"""The configuration reference, from the classes that configurations describe."""

from __future__ import annotations

import json
from dataclasses import MISSING, Field
from typing import Any

from maths import prose
from sources import default_of, field_docs, one_line

from fedadmm.core.config_tree import to_config
from fedadmm.core.local_work import LocalWork
from fedadmm.core.parts import FAMILIES, annotations_of, config_fields
from fedadmm.core.validation import ROLES, allowed, kind_of, members
from fedadmm.run.evaluation import Evaluation, Target
from fedadmm.run.experiment import Checkpointing, Experiment, Storage
from fedadmm.study.config import register

register()

INTRODUCTION = """
A configuration is a TOML file; `fedadmm run FILE --print-config` prints it with every default
filled in. A config section names a component, and its other keys are the arguments of its
constructor in Python. TOML has no null: write `none`. Unknown keys are rejected, with the nearest
right one. `--set algorithm.rho=0.1` changes one key from the command line.
"""

_TABLES = {
    "evaluate": Evaluation,
    "target": Target,
    "store": Storage,
    "checkpoint": Checkpointing,
    "local": LocalWork,
}
_FAMILIES = {
    "problem": "problem",
    "regularizer": "regularizer",
    "algorithm": "algorithm",
    "solver": "local.solver",
    "stop": "local.stop",
    "personal": "local.personal",
    "sampler": "sampler",
    "engine": "engine",
    "aggregator": "aggregator",
    "output": "output",
}


def page() -> str:
    """Every key with its type and default."""
    parts = ["# Configuration", INTRODUCTION.strip(), "## Top level", _keys(Experiment)]
    for name, kind in _TABLES.items():
        parts += [f"## \\[{name}\\]", one_line((kind.__doc__ or "").split("\n\n")[0]), _keys(kind)]
    for family, key in _FAMILIES.items():
        parts.append(f"## \\[{key}\\]")
        for name in FAMILIES[family]:
            parts += _part(family, name)
    parts.append("## \\[\\[pipeline\\]\\]")
    parts.append(
        "A list of postprocessors, which act on messages and on the aggregate in this order."
    )
    for name in FAMILIES["pipeline"]:
        parts += _part("pipeline", name)
    parts.append("## \\[\\[callbacks\\]\\]")
    parts.append("A list of components that observe a run.")
    for name in FAMILIES["callback"]:
        parts += _part("callback", name)
    parts.append("## Schedules")
    parts.append("A number that changes over the rounds.")
    for name in FAMILIES["schedule"]:
        parts += _part("schedule", name)
    return "\n\n".join(part for part in parts if part) + "\n"


def fields_of(part: Any) -> str:
    """The fields of a part's class, as Python sees them, with their types in words."""
    known, about = annotations_of(part), field_docs(part)
    rows = [
        f"| `{field.name}` | {_type(known[field.name])} | {default_of(field)} | "
        f"{prose(about.get(field.name, ''))} |"
        for field in config_fields(part)
    ]
    if not rows:
        return "No parameters of its own."
    return "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows])


def _part(family: str, name: str) -> list[str]:
    kind = FAMILIES[family][name]
    summary = one_line((kind.__doc__ or "").split("\n\n")[0])
    return [f'### name = "{name}"', summary, _keys(kind)]


def _keys(kind: Any) -> str:
    known, about = annotations_of(kind), field_docs(kind)
    plain = [field for field in config_fields(kind) if not _is_table(known[field.name])]
    rows = [
        f"| `{field.name}` | {_type(known[field.name])} | {_default(field)} | "
        f"{prose(one_line(about.get(field.name, '')))} |"
        for field in plain
    ]
    if not rows:
        return "No further keys."
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])


def _is_table(annotation: Any) -> bool:
    """Whether a key only ever holds a table, which has a section of its own."""
    kinds = [kind_of(one) for one in members(annotation) if one is not type(None)]
    tables = {*_TABLES.values(), *(role for role, family in ROLES.items() if family != "schedule")}
    return kinds[0] in tables


def _default(field: Field[Any]) -> str:
    made = field.default_factory
    value = field.default if made is MISSING else made()
    return "" if value is MISSING else f"`{json.dumps(to_config(value))}`"


def _type(annotation: Any) -> str:
    """A key's type in words."""
    return allowed(annotation).replace("|", "\\|")
