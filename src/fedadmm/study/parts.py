"""Pydantic models made from the parts' dataclasses, so that nothing is declared twice.

A part's table is `name` and the fields of its dataclass.  TOML has no null: where a field may be
None, the word "none" says so.  Where a field may be a schedule, a table with the schedule's name
stands in its place.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    GetJsonSchemaHandler,
    PrivateAttr,
    Tag,
    create_model,
    model_validator,
)
from pydantic import Field as Key
from pydantic_core import CoreSchema

from fedadmm.core.parts import FAMILIES, annotations_of
from fedadmm.core.schedules import Schedule
from fedadmm.study.registry import Stranger, defaults, families, part_of

NONE = "none"
VALUE = "value"
"""The tag of a plain value where a schedule could stand."""


class Part(BaseModel):
    """One table of a configuration, and the part that it describes.

    The part is made when the table is checked, once: what its constructor refuses is refused there.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())
    made_from: ClassVar[type[Any]]
    _made: Any = PrivateAttr()

    name: str

    @model_validator(mode="before")
    @classmethod
    def _python_spelling(cls, table: Any) -> Any:
        """Docstrings are written for Python, where nothing is None; a configuration may say so."""
        if not isinstance(table, dict):
            return table
        return {key: NONE if value == "None" else value for key, value in table.items()}

    @model_validator(mode="after")
    def _accepted(self) -> Part:
        self._made = self.made_from(**self.arguments())
        return self

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {key: _built(getattr(self, key)) for key in type(self).model_fields if key != "name"}

    def build(self) -> Any:
        """The part itself."""
        return self._made


def _built(value: Any) -> Any:
    if isinstance(value, Part):
        return value.build()
    if isinstance(value, list):
        return tuple(_built(item) for item in value)
    return None if value == NONE and isinstance(value, str) else value


NOBODY: frozenset[Stranger] = frozenset()


@cache
def model_of(family: str, name: str, strangers: frozenset[Stranger] = NOBODY) -> type[Part]:
    """The model of one part; `strangers` are those that its schedules may be besides ours."""
    part: Any = part_of(family, name)
    hints = annotations_of(part)
    given = defaults().get(family, {}).get(name, {})
    keys: dict[str, Any] = {"name": (Literal[name], ...)}
    for field in fields(part):
        if field.init:
            keys[field.name] = (translate(hints[field.name], strangers), _default(field, given))
    model = create_model(
        f"{family}-{name}", __base__=Part, __doc__=_first_paragraph(part), **cast(Any, keys)
    )
    model.made_from = part
    return model


def _first_paragraph(part: type[Any]) -> str:
    return " ".join((part.__doc__ or "").split("\n\n")[0].split())


def _default(field: Field[Any], given: Mapping[str, Any]) -> Any:
    if field.name in given:
        return given[field.name]
    if isinstance(field.default, tuple):
        return list(field.default)  # as TOML spells it
    if field.default is not MISSING:
        return NONE if field.default is None else field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    return ...


@cache
def union_of(family: str, strangers: frozenset[Stranger] = NOBODY) -> Any:
    """The annotation of a table that can name any part of a family, these strangers included."""
    names = [*families()[family], *_names(family, strangers)]
    models = tuple(model_of(family, name, strangers) for name in names)
    if len(models) == 1:
        return models[0]
    return Annotated[Union[models], Key(discriminator="name")]  # noqa: UP007


def _names(family: str, strangers: frozenset[Stranger]) -> list[str]:
    return sorted(name for own, name in strangers if own == family)


def translate(annotation: Any, strangers: frozenset[Stranger] = NOBODY) -> Any:
    """A dataclass field's annotation as a configuration spells it."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is Schedule:
        return _with_schedules((), frozenset(), strangers)
    if annotation is type(None):
        return Literal["none"]
    if origin in (Union, types.UnionType):
        named = frozenset(arg for arg in args if arg in FAMILIES["schedule"].values())
        rest = (arg for arg in args if arg is not Schedule and arg not in named)
        plain = tuple(translate(arg, strangers) for arg in rest)
        if Schedule in args:
            return _with_schedules(plain, named, strangers)
        return Union[plain]  # noqa: UP007
    if origin is Annotated:
        return Annotated[translate(args[0], strangers), _Range(args[1:])]
    if origin is Literal or not args:
        return annotation
    if issubclass(origin, Mapping):
        keys, values = args
        table = dict.__class_getitem__((keys, translate(values, strangers)))
        return Annotated[table, BeforeValidator(_whole_keys)]
    if issubclass(origin, Sequence):
        return list[translate(args[0], strangers)]  # type: ignore[misc]
    return annotation


class _Range(NamedTuple):
    """The range of a number, for the JSON schema: the part itself refuses, in its own words."""

    rules: tuple[Any, ...]

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        told = handler(schema)
        for rule in self.rules:
            for kind, word, limit in _SCHEMA_WORDS:
                if isinstance(rule, kind):
                    told[word] = getattr(rule, limit)
        return told


_SCHEMA_WORDS = (
    (Gt, "exclusiveMinimum", "gt"),
    (Ge, "minimum", "ge"),
    (Lt, "exclusiveMaximum", "lt"),
    (Le, "maximum", "le"),
)


def _whole_keys(table: Any) -> Any:
    """TOML's keys are strings; those of a schedule are rounds."""
    if not isinstance(table, dict):
        return table
    return {int(k) if isinstance(k, str) and k.isdecimal() else k: v for k, v in table.items()}


def _with_schedules(
    plain: tuple[Any, ...], named: frozenset[type[Any]], strangers: frozenset[Stranger]
) -> Any:
    """Plain values, every schedule over rounds, and those of the family that are `named`."""
    ours = FAMILIES["schedule"].items()
    names = [name for name, kind in ours if issubclass(kind, Schedule) or kind in named]
    names += _names("schedule", strangers)
    choices = [Annotated[model_of("schedule", name), Tag(name)] for name in names]
    if plain:
        choices.insert(0, Annotated[Union[plain], Tag(VALUE)])  # noqa: UP007
    return Annotated[Union[tuple(choices)], Discriminator(_schedule_or_value)]  # noqa: UP007


def _schedule_or_value(value: Any) -> str | None:
    if isinstance(value, Part):
        return value.name
    return value.get("name") if isinstance(value, dict) else VALUE


def table_of(family: str, part: Any) -> dict[str, Any]:
    """The table that describes a part: the inverse of `build`, for parts without schedules."""
    names = {made: name for name, made in families()[family].items()}
    table = {"name": names[type(part)]}
    for field in fields(part):
        value = getattr(part, field.name)
        table[field.name] = NONE if value is None else value
    return table
