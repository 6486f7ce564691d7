"""The Python reference: every name that `import fedadmm` offers."""

from __future__ import annotations

import inspect
from itertools import groupby
from typing import Any

from maths import prose
from settings import fields_of
from sources import docstring

import fedadmm
import fedadmm.flower
from fedadmm.core.parts import FAMILIES

ROLES = (
    ("fedadmm.core.contracts", ("Algorithm", "LocalProblem", "LocalResult", "Received", "Needs")),
    ("fedadmm.core.outputs", ("Output", "Iterate")),
    ("fedadmm.study.report", ("write_report",)),
)
"""What somebody who adds a method, or writes a report from Python, needs besides."""


def page(names: list[str] | None = None) -> str:
    """One entry per name, grouped by the package that a reader would look in."""
    offered = [name for name in names or fedadmm.__all__ if name != "__version__"]
    homes = sorted((_package(name), name) for name in offered)
    parts = ["# Python", "`import fedadmm` offers these names; `fedadmm.__version__` besides."]
    for package, entries in groupby(homes, key=lambda pair: pair[0]):
        parts.append(f"## {package}")
        parts += [_entry(name) for _, name in entries]
    parts.append("## fedadmm.flower")
    parts += [f"::: {_home(getattr(fedadmm.flower, name))}" for name in fedadmm.flower.__all__]
    parts.append("## For those who add to it")
    for module, own in ROLES:
        parts += [f"::: {module}.{name}" for name in own]
    return "\n\n".join(parts) + "\n"


def _entry(name: str) -> str:
    """A part from its class as it runs, because its decorator makes it a dataclass; others as read.

    The class of its role documents the functions of a part.
    """
    value = getattr(fedadmm, name)
    family = next((own for own, parts in FAMILIES.items() if value in parts.values()), None)
    if family is None:
        return f"::: {_address(name)}"
    given = inspect.signature(value).parameters.values()
    taken = [str(one.replace(annotation=one.empty)) for one in given]
    call = ", ".join(taken)
    if len(call) > 75:
        call = "\n" + "".join(f"    {one},\n" for one in taken)
    page = [f"[Its recursion](../methods/{value.name}.md)."] if family == "algorithm" else []
    parts = [
        f"### {name} {{ #{_address(name)} }}",
        f"```python\n{name}({call})\n```",
        prose(docstring(value).split("\n\nArgs:")[0]),
        fields_of(value),
        *page,
    ]
    return "\n\n".join(parts)


def _address(name: str) -> str:
    value = getattr(fedadmm, name)
    return str(value.__name__) if inspect.ismodule(value) else _home(value)


def _home(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _package(name: str) -> str:
    return ".".join(_address(name).split(".")[:2])
