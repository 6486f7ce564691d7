"""What the source says about a class and its fields, read without running it."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, Field
from functools import cache
from pathlib import Path
from typing import Any

import griffe

SRC = Path(__file__).parents[2] / "src"


@cache
def _package() -> griffe.Module:
    loaded = griffe.load("fedadmm", search_paths=[SRC])
    assert isinstance(loaded, griffe.Module)
    return loaded


@cache
def field_docs(owner: type[Any]) -> dict[str, str]:
    """Field -> what its class says about it, in `Args:` or below the field."""
    found: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        if not base.__module__.startswith("fedadmm"):
            continue
        path = f"{base.__module__}.{base.__qualname__}".removeprefix("fedadmm.")
        source = _package()[path]
        for name, member in source.members.items():
            if not member.is_alias and member.is_attribute and member.docstring:
                found[name] = one_line(member.docstring.value)
        if source.docstring is None:
            continue
        for section in source.docstring.parse("google", warnings=False):
            if section.kind is griffe.DocstringSectionKind.parameters:
                found |= {item.name: one_line(item.description) for item in section.value}
    return found


def default_of(field: Field[Any]) -> str:
    """A dataclass field's default as code, or that there is none."""
    if field.default is not MISSING:
        return f"`{field.default!r}`"
    if field.default_factory is not MISSING:
        return f"`{field.default_factory()!r}`"
    return "required"


def one_line(text: str) -> str:
    """A docstring as one table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def docstring(thing: object) -> str:
    """A cleaned docstring; every public thing has one."""
    text = inspect.getdoc(thing)
    assert text, thing
    return text


def summary(thing: object) -> str:
    """Return a docstring without its sections."""
    return re.split(r"\n\n(?:Args|Attributes|Example|Raises|Returns):\n", docstring(thing))[0]


def paragraphs(text: str, *, code: bool) -> str:
    """Return a summary whose indented paragraphs are blocks of code, or left out."""
    parts = [
        f"```text\n{inspect.cleandoc(part)}\n```" if part.startswith("    ") else part
        for part in text.split("\n\n")
        if code or not part.startswith("    ")
    ]
    return "\n\n".join(parts)


def example(thing: object) -> str:
    """Return the example of a docstring as a block of code, or nothing."""
    text = docstring(thing).partition("\n\nExample:\n")[2]
    lines = text.split("\n\n")[0]
    return f"```pycon\n{inspect.cleandoc(lines)}\n```" if lines else ""
