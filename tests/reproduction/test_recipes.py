"""What the recipes say is what they run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest

from fedadmm.reproduction import identifiers, load
from fedadmm.reproduction.recipe import Cell, cells

NAMED = {
    r"\blr ([\d.]+)": "solver.lr",
    r"\b(\d+) epochs\b": "stop.epochs",
    r"\bE = (\d+)": "stop.epochs",
    r"\beta ([\d.]+)": "algorithm.eta",
    r"\brho ([\d.]+)(?:, then ([\d.]+))?": "algorithm.rho",
    r"^FedProx \(([\d.]+)\)": "algorithm.rho",
    r"\bbeta = ([\d.]+)": "algorithm.beta",
    r"\bstep ([\d.]+)(?:, then ([\d.]+))?": "algorithm.step",
    r"\bstep (tracking)": "algorithm.step",
    r"\bstart (own|global)": "algorithm.start",
    r"\bsynthetic\(([\d.]+),": "problem.alpha",
    r"\bsynthetic\([\d.]+, ([\d.]+)\)": "problem.beta",
}
"""What a title can name, and the key that must hold it."""
POPULATION = {
    r"^(?!.*by writer).*?\b([\d,]+) clients\b": "problem.clients",
    r"\b(\d+) of \d+ (?:users|writers)\b": "sampler.size",
}
"""The same, for what a smaller scale makes smaller; of writers there are as many as there are."""


def _values(found: re.Match[str]) -> list[float | str]:
    texts = [text.replace(",", "") for text in found.groups() if text is not None]
    return [float(text) if text[0].isdigit() else text for text in texts]


def _held(tree: dict[str, Any], key: str) -> list[Any]:
    """The value at a key; of a schedule all its values, in the order of the rounds."""
    value: Any = reduce(lambda table, step: table[step], key.split("."), tree)
    if not isinstance(value, dict):
        return [value]
    values: dict[str, Any] = value["values"]
    return [values[start] for start in sorted(values, key=int)]


def _named(cell: Cell, patterns: dict[str, str]) -> Iterator[tuple[str, str, list[float | str]]]:
    for title in (cell.setting.title, cell.method.title):
        for pattern, key in patterns.items():
            found = re.search(pattern, title)
            if found is not None:
                yield pattern, key, _values(found)


@pytest.mark.parametrize("identifier", identifiers())
def test_a_row_runs_with_what_its_title_names(identifier: str) -> None:
    recipe = load(identifier)
    for scale, patterns in (("full", NAMED | POPULATION), ("quick", NAMED)):
        for cell in cells(recipe, scale):
            tree = cell.config(0).tree()
            for _, key, values in _named(cell, patterns):
                assert _held(tree, key) == values, f"{scale}: {cell.name}: {key}"


def test_titles_are_understood() -> None:
    # a pattern that matches nothing would let the test above pass for ever
    matched = {
        pattern
        for identifier in identifiers()
        for cell in cells(load(identifier), "full")
        for pattern, _, _ in _named(cell, NAMED | POPULATION)
    }
    assert matched == {*NAMED, *POPULATION}
