"""Conversion between config sections of TOML or JSON and the dataclasses that they describe.

A table is a constructor call: its keys are the fields of a class.  Where a field takes a part, the
table's `name` chooses the class.  TOML has no null: the word "none" is None.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, is_dataclass
from typing import Any, Literal, TypeVar, cast, get_args

from fedadmm.core.errors import ConfigError, ParameterError
from fedadmm.core.parts import (
    FAMILIES,
    annotations_of,
    config_fields,
    is_external,
    name_of,
    part_of,
)
from fedadmm.core.validation import BOUNDS, ROLES, allowed, kind_of, members, shown

Made = TypeVar("Made")
Tree = dict[str, Any]

NONE = "none"


class UnknownKeyError(ConfigError):
    """A config section has an unknown key."""

    def __init__(self, key: str, owner: str, known: list[str]) -> None:
        near = suggestion(key.rpartition(".")[2], known)
        super().__init__(f"{key} is not a key of {owner}; {near}")
        self.key, self.owner, self.known = key, owner, known


def from_config(kind: type[Made], table: object, where: str = "", title: str = "") -> Made:
    """The instance of a class that a table describes; a ConfigError names the key.

    `where` is the key of the table itself, `title` what messages call the class.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: got {_spelled(table)}, expected a table")
    annotations = annotations_of(cast(Any, kind))
    known = {field.name: annotations[field.name] for field in config_fields(kind)}
    for key in table:
        if key not in known:
            owner = title or where or "the configuration"
            raise UnknownKeyError(_join(where, key), owner, list(known))
    given = {key: _value(table[key], known[key], _join(where, key)) for key in table}
    for field in config_fields(kind):
        required = field.default is MISSING and field.default_factory is MISSING
        if required and field.name not in given:
            wanted = allowed(known[field.name])
            raise ConfigError(f"{_join(where, field.name)}: got nothing, expected {wanted}")
    try:
        return kind(**given)
    except ParameterError as error:
        # A class reports `Class: field: got …` or `Class: field has …`; the key replaces the class.
        message = str(error)
        found = re.match(
            r"\w+(: (?=\S+( \([^)]*\))? (is|has|adds?|names|must|needs)\b)"
            r"|[.:] ?(?=[\w\[\]]+: got\b))",
            message,
        )
        if found is not None:
            raise ConfigError(_join(where, message[found.end() :])) from None
        raise ConfigError(f"{where}: {message}" if where else message) from None


def part_from(family: str, table: object, where: str) -> Any:
    """Return the component of a family that a config section describes."""
    known = FAMILIES[family]
    if not isinstance(table, Mapping):
        several = "one of " * (len(known) > 1)
        wanted = f"a table whose name is {several}{', '.join(known)}"
        raise ConfigError(f"{where}: got {_spelled(table)}, expected {wanted}")
    if "name" not in table:
        raise ConfigError(f"{where}.name is missing; allowed: {', '.join(known)}")
    name = table["name"]
    if not is_external(name) and (not isinstance(name, str) or name not in known):
        raise ConfigError(
            f"{where}.name is {_spelled(name)}, which is not known; {suggestion(str(name), known)}"
        )
    options = {key: value for key, value in table.items() if key != "name"}
    return from_config(part_of(family, name), options, where, name)


def to_config(value: Any) -> Any:
    """Return the config section of an instance, with all defaults."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        own = {one.name: to_config(getattr(value, one.name)) for one in config_fields(kind)}
        is_part = _family(kind) is not None or any(isinstance(value, role) for role in ROLES)
        return {"name": name_of(kind)} | own if is_part else own
    if isinstance(value, Mapping):
        return {str(key): to_config(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_config(one) for one in value]
    if value is None:
        return NONE
    return value.item() if hasattr(value, "item") else value  # NumPy's numbers


def _family(kind: Any) -> str | None:
    """Return the family of a component class, or of a base class."""
    own = (family for family, known in FAMILIES.items() if kind in known.values())
    return ROLES.get(kind) or next(own, None)


def _value(value: Any, annotation: Any, where: str) -> Any:
    """Convert a value of a config section to an argument of the constructor."""
    choices = members(annotation)
    kinds = [kind_of(choice) for choice in choices]
    only = [kind for kind in kinds if kind is not type(None)]
    if isinstance(value, str) and (only[0] not in ROLES or value in (NONE, "None")):
        # Docstrings are written for Python, where nothing is None.
        return None if value in (NONE, "None") and type(None) in kinds else value
    if isinstance(value, Mapping):
        return _from_mapping(value, choices, where)
    if isinstance(value, list | tuple):
        for choice, kind in zip(choices, kinds, strict=True):
            if isinstance(kind, type) and issubclass(kind, Sequence) and kind is not str:
                item = (get_args(choice) or (Any,))[0]
                return tuple(_value(one, item, f"{where}[{i}]") for i, one in enumerate(value))
        return value
    if len(only) == 1 and only[0] in ROLES:  # it can only be a table
        return part_from(ROLES[only[0]], value, where)
    if len(only) == 1 and isinstance(only[0], type) and is_dataclass(only[0]):
        return from_config(only[0], value, where)
    whole = isinstance(value, int) and not isinstance(value, bool) and float in kinds
    return float(value) if whole and int not in kinds and abs(value) < 2**53 else value


def _from_mapping(value: Mapping[str, Any], choices: Sequence[Any], where: str) -> Any:
    for choice in choices:
        kind = kind_of(choice)
        family = _family(kind)
        if family is not None:
            return part_from(family, value, where)
        if isinstance(kind, type) and is_dataclass(kind):
            return from_config(kind, value, where)
        if isinstance(kind, type) and issubclass(kind, Mapping):
            item = (get_args(choice) or (Any, Any))[1]
            # TOML's keys are strings; those of a schedule are rounds.
            keys = {key: int(key) if str(key).isdecimal() else key for key in value}
            return {keys[key]: _value(one, item, f"{where}.{key}") for key, one in value.items()}
    return value


def _join(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)


def _spelled(value: Any) -> str:
    """Return a value as it is written in a configuration."""
    return str(value).lower() if isinstance(value, bool) else shown(value)


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """Return advice with the most similar known name, if there is one, and all names."""
    words = [str(word) for word in known]
    near = difflib.get_close_matches(wrong, words, n=1, cutoff=0.5)
    listing = f"(allowed: {', '.join(words) or 'none'})"
    return f"did you mean {near[0]}? {listing}" if near else listing.strip("()")


def flattened(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested config sections as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def json_schema(kind: type[Any], defaults: Mapping[str, Any] | None = None) -> Tree:
    """Return the JSON schema of the config section of a class, for editors."""
    found: Tree = {}
    schema = _object(kind, found, defaults or {})
    return schema | {"$defs": found}


def _object(kind: Any, found: Tree, defaults: Mapping[str, Any], name: str = "") -> Tree:
    known = annotations_of(kind)
    properties: Tree = {"name": {"const": name}} if name else {}
    required = ["name"] if name else []
    for field in config_fields(kind):
        properties[field.name] = _schema(known[field.name], found)
        own = field.default if field.default_factory is MISSING else field.default_factory()
        default = defaults.get(field.name, own)
        if default is MISSING:
            required.append(field.name)
        else:
            properties[field.name]["default"] = to_config(default)
    about = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    shape: Tree = {"type": "object", "description": about, "properties": properties}
    return shape | {"required": required, "additionalProperties": False}


def _schema(annotation: Any, found: Tree) -> Tree:
    choices = members(annotation)
    if len(choices) > 1:
        return {"anyOf": [_schema(choice, found) for choice in choices]}
    kind, args = kind_of(annotation), get_args(annotation)
    if kind in ROLES:
        return {"oneOf": [_reference(ROLES[kind], name, found) for name in FAMILIES[ROLES[kind]]]}
    if kind is Literal:
        return {"enum": list(args)}
    if kind is type(None):
        return {"const": NONE}
    if kind in _JSON:
        rules = args[1:] if getattr(annotation, "__metadata__", ()) else ()
        limits = {w: getattr(r, at) for r in rules for k, at, _, _, w in BOUNDS if type(r) is k}
        return {"type": _JSON[kind]} | limits
    if isinstance(kind, type) and is_dataclass(kind):
        family = _family(kind)
        if family is not None:
            return _reference(family, name_of(kind), found)
        return _object(kind, found, {})
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return {"type": "object", "additionalProperties": _schema(args[1], found) if args else {}}
    if isinstance(kind, type) and issubclass(kind, Sequence):
        return {"type": "array", "items": _schema(args[0], found) if args else {}}
    return {}


_JSON = {bool: "boolean", int: "integer", float: "number", str: "string"}


def _reference(family: str, name: str, found: Tree) -> Tree:
    key = f"{family}-{name}"
    if key not in found:
        found[key] = {}  # before its fields are looked at, which may refer back to it
        found[key] = _object(FAMILIES[family][name], found, {}, name)
    return {"$ref": f"#/$defs/{key}"}


__all__ = [
    "Tree",
    "flattened",
    "from_config",
    "json_schema",
    "part_from",
    "suggestion",
    "to_config",
]
