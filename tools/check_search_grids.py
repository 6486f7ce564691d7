"""List the hyper-parameter searches of committed results whose choice is at an edge of the grid.

python tools/check_search_grids.py [FOLDER ...]

Beyond such an edge a better value may exist, so that a comparison with it proves little.  A grid of
fewer than two numbers has no edge.  Exit code 1 if there is such a search.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]


class Choice(NamedTuple):
    """One number that a search chose, and the numbers that it chose from."""

    place: str
    name: str
    value: float
    grid: list[float]

    @property
    def is_at_edge(self) -> bool:
        """Whether no larger or no smaller number was evaluated."""
        return len(self.grid) > 1 and self.value in (min(self.grid), max(self.grid))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_grid(place: str, chosen: Mapping[str, Any], grid: Mapping[str, Any]) -> Iterator[Choice]:
    for name, values in grid.items():
        if name in chosen and all(map(_is_number, [*values, chosen[name]])):
            yield Choice(place, name, float(chosen[name]), [float(one) for one in values])


def _of_trials(place: str, chosen: Mapping[str, Any], trials: list[Any]) -> Iterator[Choice]:
    values = [one.get("values", one.get("value")) for one in trials]
    known = [one for one in values if isinstance(one, Mapping)]
    grid = {name: sorted({one[name] for one in known if name in one}, key=str) for name in chosen}
    yield from _of_grid(place, chosen, grid)


def choices(tree: Any, place: str) -> Iterator[Choice]:
    """Every number that a search in this document chose, in any of the studies' formats."""
    if isinstance(tree, list):
        for number, one in enumerate(tree):
            yield from choices(one, f"{place}[{number}]")
    if not isinstance(tree, Mapping):
        return
    chosen, grid, tried = (tree.get(key) for key in ("chosen", "grid", "tried"))
    if isinstance(chosen, Mapping) and isinstance(grid, Mapping):
        if all(
            isinstance(one, Mapping) for one in grid.values()
        ):  # by method, as the CLI writes it
            for label, own in grid.items():
                yield from _of_grid(f"{place} {label}", chosen[label]["value"], own)
        else:
            yield from _of_grid(place, chosen, grid)
    elif isinstance(chosen, Mapping) and isinstance(tried, list):
        by_label = {key: one for key, one in chosen.items() if isinstance(one, Mapping)}
        for label, one in by_label.items():
            own = [row for row in tried if row.get("label") == label]
            yield from _of_trials(f"{place} {label}", one["value"], own)
        if not by_label:
            yield from _of_trials(place, chosen, tried)
    elif "curves" in tree and "lr" in tree:
        rates = [float(rate) for rate in tree["curves"]]
        yield Choice(place, "lr", float(tree["lr"]), rates)
    elif isinstance(tree.get("edges"), list):  # a reproduction lists its own
        for one in tree["edges"]:
            where = f"{place} {', '.join(one['places'])}/{one['row']}"
            yield Choice(where, one["key"], one["value"], [one["value"], one["value"]])
    else:
        for key, one in tree.items():
            yield from choices(one, f"{place} {key}")


def main() -> None:
    """Check the committed results, or the given folders."""
    folders = [Path(one) for one in sys.argv[1:]] or [ROOT / "studies"]
    found: list[Choice] = []
    for path in sorted(path for folder in folders for path in folder.rglob("*.json")):
        found += choices(json.loads(path.read_text("utf-8")), str(path))
    at_edge = [one for one in found if one.is_at_edge]
    for one in at_edge:
        print(f"{one.place}: {one.name} = {one.value:g} of {one.grid}")
    print(f"{len(found)} choices, {len(at_edge)} at an edge")
    raise SystemExit(1 if at_edge else 0)


if __name__ == "__main__":
    main()
