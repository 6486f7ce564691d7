"""The Python reference: every name that `import fedadmm` offers."""

from __future__ import annotations

import inspect
from itertools import groupby

import fedadmm

ROLES = (
    ("fedadmm.core.protocols", ("Algorithm", "LocalProblem", "LocalResult", "Received", "Needs")),
    ("fedadmm.core.outputs", ("Output", "Iterate")),
    ("fedadmm.study.report", ("write_report",)),
)
"""What somebody who adds a method, or writes a report from Python, needs besides."""


def page(names: list[str] | None = None) -> str:
    """One entry a name, grouped by the package that a reader would look in."""
    offered = [name for name in names or fedadmm.__all__ if name != "__version__"]
    homes = sorted((_package(name), name) for name in offered)
    parts = ["# Python", "`import fedadmm` offers these names; `fedadmm.__version__` besides."]
    for package, entries in groupby(homes, key=lambda pair: pair[0]):
        parts.append(f"## {package}")
        # The methods' functions are the roles of `Algorithm`, once described for all of them.
        brief = "\n    options:\n      members: false" if package.endswith("algorithms") else ""
        parts += [f"::: {_address(name)}{brief}" for _, name in entries]
    parts.append("## For those who add to it")
    for module, own in ROLES:
        parts += [f"::: {module}.{name}" for name in own]
    return "\n\n".join(parts) + "\n"


def _address(name: str) -> str:
    value = getattr(fedadmm, name)
    if inspect.ismodule(value):
        return str(value.__name__)
    return f"{value.__module__}.{value.__qualname__}"


def _package(name: str) -> str:
    return ".".join(_address(name).split(".")[:2])
