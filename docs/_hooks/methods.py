"""One page per method, from the docstring of its module and the fields of its class."""

from __future__ import annotations

import dataclasses
import sys

from maths import described, prose
from settings import fields_of
from sources import docstring, example, one_line, paragraphs, summary

from fedadmm.algorithms import REGISTRY
from fedadmm.core.contracts import AnyAlgorithm, Requirements
from fedadmm.study.methods import GROUPS, group


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


def _requirements(method: type[AnyAlgorithm]) -> Requirements:
    """Return what a method requires with its default hyper-parameters, or 1 where it has none."""
    fields = dataclasses.fields(method)  # type: ignore[arg-type]
    needed = [field for field in fields if field.default is dataclasses.MISSING]
    return method(**{field.name: 1.0 for field in needed}).requirements


def _overview() -> str:
    parts = [
        "# All methods",
        "The page of each method is generated from the docstring of the module that runs, with its "
        "recursion. [Concepts](../concepts.md) has all of them in one table.",
    ]
    for title in GROUPS:
        rows = [
            f"| [{method.title}]({method.name}.md) | `{method.name}` | {method.paper} | "
            f"{_yes(not _requirements(method).full_participation)} | "
            f"{_yes(_requirements(method).regularizer)} |"
            for method in _sorted()
            if group(method.name) == title
        ]
        head = [
            "| method | name | paper | partial participation | regularizer g |",
            "|---|---|---|---|---|",
        ]
        parts += [f"## {title}", "\n".join([*head, *rows])]
    return "\n\n".join(parts) + "\n"


def _page(method: type[AnyAlgorithm]) -> str:
    module = sys.modules[method.__module__]
    parts = [
        f"# {method.title}",
        f"`{method.name}` in configurations and on the command line, "
        f"`fedadmm.{method.__name__}` in Python.",
        described(docstring(module)),
        f"## `{method.__name__}`",
        prose(paragraphs(summary(method), code=False)),
        fields_of(method),
        _facts(method),
        "## Use",
        example(method),
        _use(method),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(method: type[AnyAlgorithm]) -> str:
    names = {"Server": "The server keeps", "Client": "A client keeps", "Message": "A client sends"}
    module = sys.modules[method.__module__]
    needs = _requirements(method)
    lines = [
        f"* Clients may be absent from a round: {_yes(not needs.full_participation)}.",
        f"* The server step applies the prox of a regularizer: {_yes(needs.regularizer)}.",
    ]
    for name, words in names.items():
        state = getattr(module, name, None)
        if state is not None and state.__module__ == method.__module__:
            about = prose(one_line(docstring(state)))
            lines.append(f"* {words} `{', '.join(state._fields)}`. {about}")
    return "\n".join(lines)


def _use(method: type[AnyAlgorithm]) -> str:
    sampler = " --set sampler.name=full" if _requirements(method).full_participation else ""
    return f"```sh\nfedadmm run quickstart --algorithm {method.name}{sampler}\n```"
