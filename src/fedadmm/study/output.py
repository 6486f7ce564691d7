"""A reproduction in words: tables of paper and readings side by side, from results.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedadmm.study import words
from fedadmm.study.recipe import READINGS
from fedadmm.study.results import Spread
from fedadmm.study.tables import Table
from fedadmm.study.tables import markdown as as_text

NOTE = f"{words.SPREAD}; a seed that diverged did not reach the target, and no mean holds it."


def shown(measure: str, row: Mapping[str, Any]) -> str:
    """A measure as people read it: mean and deviation over the seeds, or what is missing."""
    if not row["seeds"]:
        return "not run"
    value = Spread(**row["measures"][measure])
    if measure == "rounds_to_target" and value.count == 0:
        text = f"{row['rounds']}+"
    elif measure == "distance" and value.mean is not None:
        text = f"{value.mean:.1e}"
    else:
        text = words.spread(value, share=measure.endswith("_reduction"))
    if row["diverged"]:
        text += f", {row['diverged']} of {len(row['seeds'])} diverged"
    elif 0 < value.count < value.of:
        text += f", {value.count} of {value.of} seeds"
    return text


def markdown(result: Mapping[str, Any]) -> str:
    """A table a measure: paper and readings side by side, one row a setting and method."""
    lines = [f"# {result['id']}: {result['title']}", "", f"{result['source']}. "]
    lines[-1] += f"Scale `{result['scale']}`, seeds {result['seeds']}; {NOTE}"
    if result["notes"]:
        lines += ["", result["notes"].strip()]
    for measure in result["measures"]:
        lines += ["", *as_text(measured(result, measure)).splitlines()]
        if measure == "rounds_to_target":
            lines += ["", *(f"* {sentence(found)}" for found in result["reductions"])]
    if result["edges"]:
        lines += ["", *as_text(at_an_edge(result["edges"])).splitlines()]
    return "\n".join(lines) + "\n"


def measured(result: Mapping[str, Any], measure: str) -> Table:
    """One measure of a reproduction: paper and readings side by side."""
    return Table(measure.replace("_", " "), *side_by_side(result["cells"], measure))


def tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """Every table of a reproduction, by the name of its file."""
    found = {measure: measured(result, measure) for measure in result["measures"]}
    return found | ({"edges": at_an_edge(result["edges"])} if result["edges"] else {})


def at_an_edge(edges: Sequence[Mapping[str, Any]]) -> Table:
    """The choices of a search beyond which a better value may lie."""
    return Table(
        "Choices at an edge",
        ["row", "places", "parameter", "chosen", "of what was tried"],
        [
            [one["row"], ", ".join(one["places"]), one["key"], f"{one['value']:g}", one["end"]]
            for one in edges
        ],
        "A wider search may find better values for these rows, unless there are none beyond.",
    )


def sentence(found: Mapping[str, Any]) -> str:
    """A reduction in words."""
    share = round(found["reduction"], 2)
    difference = (
        f"{abs(share):.0%} {'fewer' if share > 0 else 'more'} than" if share else "as many as"
    )
    return (
        f"{found['setting']}: {found['method']}, {found['reading']}, needs {found['rounds']:.4g} "
        f"rounds, {difference} the best baseline, "
        f"{found['best_baseline']} ({found['baseline_rounds']:.4g})"
    )


def side_by_side(
    rows: Sequence[Mapping[str, Any]], measure: str
) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of a table: the paper, then one column for each reading that occurs.

    What a paper prints is the first measure, and the speed-up where a recipe has one.
    """
    readings = [r for r in READINGS if any(row["reading"] == r for row in rows)]
    first = measure == next(iter(rows[0]["measures"]))
    papers = ["paper"] if first or measure == "speedup" else []
    groups: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["setting"], row["method"]), {})[row["reading"]] = row
    lines = []
    for (setting, method), found in groups.items():
        row = next(iter(found.values()))
        paper = [_printed(row["paper"]) if first else _times(row["paper_speedup"])]
        paper = paper if papers else []
        values = [shown(measure, found[r]) if r in found else "" for r in readings]
        lines.append([setting, method, *paper, *values])
    return ["setting", "method", *papers, *readings], lines


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}×"


def _printed(value: float | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:g}"
