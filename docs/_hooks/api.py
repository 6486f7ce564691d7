"""The Python reference: every public name, on one page per subpackage."""

from __future__ import annotations

import inspect
from itertools import groupby
from typing import Any

from maths import prose
from settings import fields_of
from sources import example, paragraphs, summary

import fedadmm
import fedadmm.flower
from fedadmm.core.parts import FAMILIES

ROLES = (
    (
        "fedadmm.core.contracts",
        (
            "LocalProblem",
            "LocalResult",
            "LocalNeeds",
            "Requirements",
            "Cohort",
            "Round",
        ),
    ),
    ("fedadmm.study.report", ("write_report",)),
)
"""Names for those who add a method, or write a report from Python."""


FIRST = ("simulate", "Experiment", "Problem", "Result")
"""What every program uses."""
ABOUT = {
    "algorithms": "Methods",
    "core": "Problems, objectives, solvers, samplers and other components",
    "data": "Data sets, partitions and problems",
    "run": "Running and recording",
    "study": "Estimators, predictions and reports",
    "theory": "Constants, bounds and certificates",
}


def pages() -> dict[str, str]:
    """Address -> Markdown: the names used first, then one page per subpackage."""
    offered = [name for name in fedadmm.__all__ if name not in ("__version__", *FIRST)]
    homes = sorted((_package(name), name) for name in offered)
    found: dict[str, str] = {}
    for package, entries in groupby(homes, key=lambda pair: pair[0]):
        room = package.partition(".")[2] or package
        parts = [f"# {package}", f"{ABOUT.get(room, '')}."]
        parts += [_entry(name) for _, name in entries]
        found[f"reference/api-{room}.md"] = "\n\n".join(parts) + "\n"
    flower = [f"::: {_home(getattr(fedadmm.flower, name))}" for name in fedadmm.flower.__all__]
    found["reference/api-flower.md"] = "\n\n".join(["# fedadmm.flower", *flower]) + "\n"
    own = [f"::: {module}.{name}" for module, names in ROLES for name in names]
    own.append("::: fedadmm.testing.check_algorithm")
    found["reference/api-extending.md"] = "\n\n".join(["# For extensions", *own]) + "\n"
    links = [f"* [`{address[14:-3]}`]({address[10:]})" for address in sorted(found)]
    start = [
        "# simulate, Experiment, Problem, Result",
        "`import fedadmm as fa` has every name of the reference; those of `extending` and "
        "`flower` are imported from where their pages say.",
        "\n".join(links),
        *(_entry(name) for name in FIRST),
    ]
    first = {"reference/api.md": "\n\n".join(start) + "\n"}
    return {**first, **dict(sorted(found.items()))}


def _entry(name: str) -> str:
    """Return the entry of a name.

    A component is documented from its class at run time, because its decorator makes it a
    dataclass; its functions are documented by its base class.
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
        _about(value),
        fields_of(value),
        example(value),
        *page,
    ]
    return "\n\n".join(parts)


def _about(value: object) -> str:
    """Return the summary of a component: formulas in sentences, recursions as code."""
    parts = paragraphs(summary(value), code=True).split("\n\n")
    return "\n\n".join(part if part.startswith("```") else prose(part) for part in parts)


def _address(name: str) -> str:
    value = getattr(fedadmm, name)
    return str(value.__name__) if inspect.ismodule(value) else _home(value)


def _home(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _package(name: str) -> str:
    return ".".join(_address(name).split(".")[:2])
