"""One page a method, from the docstring of its module and the fields of its class."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

from sources import default_of, docstring, field_docs, one_line, type_of

from fedadmm.algorithms import REGISTRY
from fedadmm.core.protocols import AnyAlgorithm
from fedadmm.study.registry import defaults


def pages() -> dict[str, str]:
    """The overview and every method."""
    result = {"methods/index.md": _overview()}
    for name, method in REGISTRY.items():
        result[f"methods/{name}.md"] = _page(method)
    return result


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _overview() -> str:
    rows = [
        f"| [{method.__name__}]({name}.md) | `{name}` | {method.paper} | "
        f"{_yes(method.accepts_partial)} | {_yes(method.accepts_regularizer)} |"
        for name, method in REGISTRY.items()
    ]
    return "\n".join(
        [
            "# All methods",
            "",
            "Every page below is made from the docstring of the module that runs.",
            "",
            "| class | name | paper | partial participation | regulariser g |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _page(method: type[AnyAlgorithm]) -> str:
    module = sys.modules[method.__module__]
    parts = [
        f"# {method.__name__}",
        f"`{method.name}` in configurations and on the command line, "
        f"`fedadmm.{method.__name__}` in Python.",
        docstring(module),
        f"## `{method.__name__}`",
        docstring(method).split("\n\nArgs:")[0],
        _parameters(method),
        _facts(method),
        "## Use",
        _use(method),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _parameters(method: type[Any]) -> str:
    told = field_docs(method)
    usual = defaults().get("algorithm", {}).get(method.name, {})
    rows = []
    for field in fields(method):
        default = default_of(field)
        if field.name in usual and default == "required":
            default = f"required; `{usual[field.name]}` in configurations"
        rows.append(
            f"| `{field.name}` | {type_of(field)} | {default} | {told.get(field.name, '')} |"
        )
    if not rows:
        return "No hyper-parameters of its own."
    return "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows])


def _facts(method: type[AnyAlgorithm]) -> str:
    names = {"Server": "The server keeps", "Client": "A client keeps", "Message": "A client sends"}
    module = sys.modules[method.__module__]
    lines = [
        f"* Clients may sit a round out: {_yes(method.accepts_partial)}.",
        f"* The server step applies the prox of a regulariser: {_yes(method.accepts_regularizer)}.",
    ]
    for name, words in names.items():
        state = getattr(module, name, None)
        if state is not None and state.__module__ == method.__module__:
            about = one_line(docstring(state))
            lines.append(f"* {words} `{', '.join(state._fields)}`. {about}")
    return "\n".join(lines)


def _use(method: type[AnyAlgorithm]) -> str:
    usual = defaults().get("algorithm", {}).get(method.name, {})
    arguments = ", ".join(f"{key}={value!r}" for key, value in usual.items())
    return "\n".join(
        [
            "```python",
            f"fedadmm.{method.__name__}({arguments})",
            "```",
            "",
            "```",
            f"fedadmm run quickstart --algorithm {method.name}"
            + ("" if method.accepts_partial else " --set sampler.name=full"),
            "```",
        ]
    )
