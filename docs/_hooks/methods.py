"""One page per method, from the docstring of its module and the fields of its class."""

from __future__ import annotations

import sys

from maths import described, prose
from settings import fields_of
from sources import docstring, one_line

from fedadmm.algorithms import REGISTRY
from fedadmm.core.contracts import AnyAlgorithm


def pages() -> dict[str, str]:
    """The overview and every method."""
    result = {"methods/index.md": _overview()}
    for method in _sorted():
        result[f"methods/{method.name}.md"] = _page(method)
    return result


def _sorted() -> list[type[AnyAlgorithm]]:
    return sorted(REGISTRY.values(), key=lambda method: method.title.casefold())


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _overview() -> str:
    rows = [
        f"| [{method.title}]({method.name}.md) | `{method.name}` | {method.paper} | "
        f"{_yes(method.accepts_partial)} | {_yes(method.accepts_regularizer)} |"
        for method in _sorted()
    ]
    return "\n".join(
        [
            "# All methods",
            "",
            "Every page below is made from the docstring of the module that runs.",
            "",
            "| method | name | paper | partial participation | regulariser g |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _page(method: type[AnyAlgorithm]) -> str:
    module = sys.modules[method.__module__]
    parts = [
        f"# {method.title}",
        f"`{method.name}` in configurations and on the command line, "
        f"`fedadmm.{method.__name__}` in Python.",
        described(docstring(module)),
        f"## `{method.__name__}`",
        prose(docstring(method).split("\n\nArgs:")[0]),
        fields_of(method),
        _facts(method),
        "## Use",
        _use(method),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(method: type[AnyAlgorithm]) -> str:
    names = {"Server": "The server keeps", "Client": "A client keeps", "Message": "A client sends"}
    module = sys.modules[method.__module__]
    lines = [
        f"* Clients may be absent from a round: {_yes(method.accepts_partial)}.",
        f"* The server step applies the prox of a regulariser: {_yes(method.accepts_regularizer)}.",
    ]
    for name, words in names.items():
        state = getattr(module, name, None)
        if state is not None and state.__module__ == method.__module__:
            about = prose(one_line(docstring(state)))
            lines.append(f"* {words} `{', '.join(state._fields)}`. {about}")
    return "\n".join(lines)


def _use(method: type[AnyAlgorithm]) -> str:
    return "\n".join(
        [
            "```python",
            f"fedadmm.{method.__name__}()",
            "```",
            "",
            "```",
            f"fedadmm run quickstart --algorithm {method.name}"
            + ("" if method.accepts_partial else " --set sampler.name=full"),
            "```",
        ]
    )
