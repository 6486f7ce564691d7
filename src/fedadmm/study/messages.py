"""One sentence from what pydantic found wrong: the key, the value and what is allowed."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fedadmm.core.errors import ConfigError

_MOST_TELLING = ("extra_forbidden", "union_tag_invalid", "union_tag_not_found", "missing")
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


class Place(NamedTuple):
    """Where in a configuration an error lies."""

    key: str
    annotation: Any
    owner: type[BaseModel] | None
    """The model of the table that the key belongs to."""


def refusal(model: type[BaseModel], error: ValidationError, where: str = "") -> ConfigError:
    """The most telling of the errors; a misspelt key comes before the one that is missing."""

    def rank(one: Any) -> int:
        kind = one["type"]
        return _MOST_TELLING.index(kind) if kind in _MOST_TELLING else len(_MOST_TELLING)

    errors = sorted(error.errors(include_url=False), key=rank)
    keys = {locate(model, one["loc"]).key for one in errors}
    others = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
    return ConfigError(f"{where}{_sentence(model, errors[0])}{others}")


def _sentence(model: type[BaseModel], error: Any) -> str:
    place = locate(model, error["loc"])
    kind, value = error["type"], error.get("input")
    if kind == "extra_forbidden":
        return unknown_key(place)
    if kind == "missing":
        return f"{place.key} is missing, but must be {allowed(place.annotation)}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _bad_name(place, value)
    if kind == "value_error":
        return _refused_by_part(place, str(error["ctx"]["error"]))
    limit = _limit(kind, error.get("ctx", {}))
    return f"{place.key} is {shown(value)}, but must be {limit or allowed(place.annotation)}"


def _limit(kind: str, context: dict[str, Any]) -> str | None:
    if kind == "greater_than_equal":
        return f"at least {context['ge']}"
    return f"greater than {context['gt']}" if kind == "greater_than" else None


def locate(model: Any, location: Iterable[int | str]) -> Place:
    """Follow an error's location through the models, leaving out the unions' tags."""
    key, annotation, owner = "", model, None
    for step in location:
        models = _models(annotation)
        table = _only_table(annotation)
        if step in models and table is None:
            annotation = models[str(step)]
        elif table is not None:
            owner, field = table, table.model_fields.get(str(step))
            key = f"{key}.{step}" if key else str(step)
            annotation = _whole(field) if field is not None else None
        elif isinstance(step, int):
            key = f"{key}[{step}]"
            annotation = next(iter(get_args(annotation)), None)
        else:
            break
    return Place(key, annotation, owner)


def _only_table(annotation: Any) -> type[BaseModel] | None:
    """The model, when an annotation has a single one and otherwise only None."""
    real = [one for one in _alternatives(annotation) if one is not type(None)]
    if len(real) == 1 and isinstance(real[0], type) and issubclass(real[0], BaseModel):
        return real[0]
    return None


def _whole(field: Any) -> Any:
    """A field's annotation with the metadata that pydantic splits off."""
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _models(annotation: Any) -> dict[str, type[BaseModel]]:
    """The models that an annotation can stand for, by their tag."""
    found: dict[str, type[BaseModel]] = {}
    for arg in _alternatives(annotation):
        if isinstance(arg, type) and issubclass(arg, BaseModel) and "name" in arg.model_fields:
            names = get_args(arg.model_fields["name"].annotation)
            found |= {str(name): arg for name in names}
    return found


def _alternatives(annotation: Any) -> list[Any]:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _alternatives(args[0])
    if origin in (Union, types.UnionType):
        return [one for arg in args for one in _alternatives(arg)]
    return [annotation]


def unknown_key(place: Place) -> str:
    """For a key that its table does not know."""
    table, _, key = place.key.rpartition(".")
    assert place.owner is not None
    keys = [name for name in place.owner.model_fields if name != "name"]
    name = place.owner.model_fields.get("name")
    label = get_args(name.annotation)[0] if name is not None else table or "the configuration"
    return f"{place.key} is not a key of {label}; {suggestion(key, keys)}"


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """The nearest right word, if one is near, and all of them."""
    words = [str(word) for word in known]
    near = difflib.get_close_matches(wrong, words, n=1, cutoff=0.5)
    listing = f"(allowed: {', '.join(words) or 'none'})"
    return f"did you mean {near[0]}? {listing}" if near else listing.strip("()")


def _bad_name(place: Place, value: Any) -> str:
    names = list(_models(place.annotation))
    key = f"{place.key}.name"
    if not isinstance(value, dict):
        return f"{place.key} is {shown(value)}, but must be {allowed(place.annotation)}"
    if "name" not in value:
        return f"{key} is missing; allowed: {', '.join(names)}"
    wrong = value["name"]
    return f"{key} is {shown(wrong)}, which is not known; {suggestion(str(wrong), names)}"


def _refused_by_part(place: Place, message: str) -> str:
    """A part's own refusal, `Class: field is …`, with the configuration's key in its place."""
    found = re.match(r"\w+: (?=\S+( \([^)]*\))? (is|has|adds?|names|must|needs)\b)", message)
    if found and place.key:
        return f"{place.key}.{message[found.end() :]}"
    return f"{place.key}: {message}" if place.key else message


def allowed(annotation: Any) -> str:
    """What a key may hold, in words."""
    names = list(_models(annotation))
    plain = (arg for arg in _alternatives(annotation) if arg is not type(None))
    words = [
        _one(arg) for arg in plain if not (isinstance(arg, type) and issubclass(arg, BaseModel))
    ]
    if float in _alternatives(annotation):
        words = [word for word in words if word != _WORDS[int]]
    if names:
        choice = names[0] if len(names) == 1 else f"one of {', '.join(names)}"
        words.append(f"a table whose name is {choice}")
    return " or ".join(dict.fromkeys(words)) or "a table"


def _one(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        choices = ", ".join(repr(arg) for arg in args)
        return f"one of {choices}" if len(args) > 1 else choices
    if origin is list:
        return f"a list, each {allowed(args[0])}" if args else "a list"
    if origin is dict:
        return f"a table of {allowed(args[0])} = {allowed(args[1])}"
    return _WORDS.get(annotation, "another value")


def shown(value: Any) -> str:
    """A value as it stands in a configuration, shortened."""
    text = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else repr(value)
    assert text is not None
    return text if len(text) <= 60 else f"{text[:57]}…"
