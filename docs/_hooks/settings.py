"""The configuration reference, from the models that check configurations."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from maths import prose
from sources import default_of, field_docs, one_line

from fedadmm.core.parts import FAMILIES
from fedadmm.study.config import TABLES, RunConfig, run_model
from fedadmm.study.parts import model_of
from fedadmm.study.registry import defaults, families

INTRODUCTION = """
A configuration is a TOML file; `fedadmm run FILE --print-config` prints it with every default
filled in. A table names a part, and its other keys are the arguments of that part's constructor in
Python. TOML has no null: the word `none` stands for it. Unknown keys are refused, with the nearest
right one. `--set algorithm.rho=0.1` changes one key from the command line.
"""


def page() -> str:
    """Every key with its type and default."""
    schema = run_model().model_json_schema()
    parts = ["# Configuration", INTRODUCTION.strip(), "## Top level", _plain(schema, schema)]
    for name in ("evaluate", "target", "store", "checkpoint"):
        table = _resolved(schema["properties"][name], schema)
        parts += [f"## \\[{name}\\]", table.get("description", ""), _plain(table, schema)]
    for family in TABLES:
        parts.append(f"## \\[{family}\\]")
        for name in families()[family]:
            parts += _part(family, name)
    parts.append("## \\[\\[upload\\]\\]")
    parts.append(
        "A list of tables: what happens to a client's message before the sum, in this order."
    )
    for name in families()["upload"]:
        parts += _part("upload", name)
    parts.append("## Schedules")
    parts.append("Where a number may change over the rounds, a table stands in its place.")
    for name in FAMILIES["schedule"]:
        parts += _part("schedule", name)
    return "\n\n".join(part for part in parts if part) + "\n"


def fields_of(part: type[Any], family: str) -> str:
    """The fields of a part's class, as Python sees them, with their types in words."""
    schema = model_of(family, part.name).model_json_schema()
    told, usual = field_docs(part), defaults().get(family, {}).get(part.name, {})
    rows = []
    for field in fields(part):
        default = default_of(field)
        if field.name in usual and default == "required":
            default = f"required; `{usual[field.name]}` in configurations"
        kind = _type(schema["properties"][field.name], schema)
        about = prose(told.get(field.name, ""))
        rows.append(f"| `{field.name}` | {kind} | {default} | {about} |")
    if not rows:
        return "No parameters of its own."
    return "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows])


def _part(family: str, name: str) -> list[str]:
    model = model_of(family, name)
    schema = model.model_json_schema()
    told = field_docs(model.made_from) if isinstance(model.made_from, type) else {}
    rows = [
        _row(key, value, schema, told.get(key, ""))
        for key, value in schema["properties"].items()
        if key != "name"
    ]
    return [f'### name = "{name}"', one_line(model.__doc__ or ""), _table(rows)]


def _plain(table: dict[str, Any], schema: dict[str, Any]) -> str:
    parts = {*TABLES, *(key for key in RunConfig.model_fields if key in schema["properties"])}
    tables = {key for key in parts if _is_table(schema["properties"].get(key, {}), schema)}
    rows = [
        _row(key, value, schema, value.get("description", ""))
        for key, value in table.get("properties", {}).items()
        if not (table is schema and key in tables)
    ]
    return _table(rows)


def _is_table(value: dict[str, Any], schema: dict[str, Any]) -> bool:
    if "oneOf" in value or "discriminator" in value:
        return True
    return "properties" in _resolved(value, schema) or any(
        _is_table(choice, schema) for choice in value.get("anyOf", [])
    )


def _table(rows: list[str]) -> str:
    if not rows:
        return "No further keys."
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])


def _row(key: str, value: dict[str, Any], schema: dict[str, Any], about: str) -> str:
    default = f"`{json.dumps(value['default'])}`" if "default" in value else ""
    if default == "`null`":
        default = ""
    return f"| `{key}` | {_type(value, schema)} | {default} | {prose(one_line(about))} |"


def _resolved(value: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    choices = [choice for choice in value.get("anyOf", []) if choice.get("type") != "null"]
    if len(choices) == 1:
        value = choices[0]
    if "$ref" in value:
        return dict(schema["$defs"][value["$ref"].split("/")[-1]])
    return value


def _type(value: dict[str, Any], schema: dict[str, Any]) -> str:
    """A key's type in words, from its JSON schema."""
    if "$ref" in value:
        name = value["$ref"].split("/")[-1]
        return f"{name.removeprefix('schedule-')} schedule" if "schedule" in name else name
    for several in ("anyOf", "oneOf"):
        if several in value:
            choices = [_type(choice, schema) for choice in value[several]]
            return " or ".join(dict.fromkeys(choice for choice in choices if choice != "null"))
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "enum" in value:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in value["enum"])
    kind = str(value.get("type", "any"))
    names = {"number": "number", "integer": "whole number", "boolean": "true or false"}
    if kind == "array":
        return f"list of {_type(value.get('items', {}), schema)}"
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {value[key]}" for key, sign in bounds.items() if key in value]
    return " ".join([names.get(kind, kind), " and ".join(limits)]).strip()
