"""results.json, results.md and the reports, from what the cells hold."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedadmm.study import rundir as files
from fedadmm.study.measuring import Outcome, measured
from fedadmm.study.recipe import READINGS, Cell
from fedadmm.study.results import table

if TYPE_CHECKING:
    from fedadmm.study.reproducing import Plan

Outcomes = Mapping[str, Mapping[int, Outcome]]


def write(
    todo: Plan, out: Path, outcomes: Outcomes, chosen: Mapping[str, tuple[str, Any]]
) -> dict[str, Any]:
    """Write everything that can be drawn from the finished cells; return results.json."""
    rows = [_row(todo, cell, outcomes, chosen.get(cell.name)) for cell in todo.cells]
    result = {
        "id": todo.identifier,
        "scale": todo.scale,
        "title": todo.recipe.title,
        "source": todo.recipe.source,
        "measures": todo.recipe.measures,
        "search": todo.search.model_dump() if todo.search is not None else None,
        "cells": rows,
        "reductions": reductions(rows),
        "reports": _reports(todo, out, outcomes),
    }
    files.write_json(out / "results.json", result)
    files.write_text(out / "results.md", markdown(todo, rows))
    return result


def _row(
    todo: Plan, cell: Cell, outcomes: Outcomes, searched: tuple[str, Any] | None
) -> dict[str, Any]:
    values = measured(todo.recipe, cell, outcomes, todo.seeds)
    own = outcomes.get(cell.name, {})
    return {
        "name": cell.name,
        "setting": cell.setting.title,
        "method": cell.method.title,
        "reading": cell.method.reading,
        "paper": cell.paper,
        "metric": cell.metric,
        "measured": values[todo.recipe.measures[0]]["mean"],
        "measures": values,
        "rounds": cell.config(0).rounds,
        "seeds": sorted(own),
        "missing": [seed for seed in todo.seeds if seed not in own],
        "diverged": sum(one.summary["code"] == "diverged" for one in own.values()),
        "chosen": {searched[0]: searched[1]} if searched is not None else None,
        "directories": {
            seed: str(one.directory.relative_to(one.directory.parents[1]))
            for seed, one in own.items()
        },
    }


def shown(measure: str, row: Mapping[str, Any]) -> str:
    """A measure as people read it: the mean, the range over seeds, or what is missing."""
    value = row["measures"][measure]
    if not row["seeds"]:
        return "not run"
    if value["count"] == 0:
        return f"{row['rounds']}+" if measure == "rounds_to_target" else "–"
    text = _number(measure, value["mean"])
    if value["count"] > 1 and value["max"] > value["min"]:
        text += f" ({_number(measure, value['min'])}–{_number(measure, value['max'])})"
    if value["count"] < value["of"]:
        text += f", {value['count']} of {value['of']} seeds"
    return text


def _number(measure: str, value: float) -> str:
    if measure == "rounds_to_target":
        return f"{value:.4g}"
    if measure == "distance":
        return f"{value:.1e}"
    return f"{value:.1%}" if measure == "epoch_reduction" else f"{value:.4g}"


def markdown(todo: Plan, rows: list[dict[str, Any]]) -> str:
    """A table a measure: paper and readings side by side, one row a setting and method."""
    lines = [f"# {todo.identifier}: {todo.recipe.title}", "", f"{todo.recipe.source}. "]
    lines[-1] += f"Scale `{todo.scale}`, seeds {todo.seeds}."
    if todo.recipe.notes:
        lines += ["", todo.recipe.notes.strip()]
    for measure in todo.recipe.measures:
        table_lines = _markdown_table(*side_by_side(rows, measure))
        lines += ["", f"## {measure.replace('_', ' ')}", "", *table_lines]
        if measure == "rounds_to_target":
            lines += ["", *(f"* {sentence(found)}" for found in reductions(rows))]
    return "\n".join(lines) + "\n"


def reductions(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many rounds fewer than the best baseline, for every other method that met the target.

    A method counts when all its seeds met the target, so that no mean hides a failure.
    """
    found = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        needed = {
            (row["method"], row["reading"]): value["mean"]
            for row in rows
            if row["setting"] == setting
            and (value := row["measures"].get("rounds_to_target", {"count": 0}))["count"] > 0
            and value["count"] == value["of"]
        }
        baselines = {key: mean for key, mean in needed.items() if key[1] == "baseline"}
        if not baselines:
            continue
        best = min(baselines, key=lambda key: baselines[key])
        found += [
            {
                "setting": setting,
                "method": method,
                "reading": reading,
                "rounds": mean,
                "best_baseline": best[0],
                "baseline_rounds": baselines[best],
                "reduction": 1.0 - mean / baselines[best],
            }
            for (method, reading), mean in needed.items()
            if reading != "baseline"
        ]
    return found


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


def side_by_side(rows: list[dict[str, Any]], measure: str) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of a table: the paper, then one column for each reading that occurs.

    What a paper prints is the first measure, so that the other tables do not show it.
    """
    readings = [r for r in READINGS if any(row["reading"] == r for row in rows)]
    papers = ["paper"] if measure == next(iter(rows[0]["measures"])) else []
    groups: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["setting"], row["method"]), {})[row["reading"]] = row
    lines = []
    for (setting, method), found in groups.items():
        paper = [_printed(next(iter(found.values()))["paper"])] if papers else []
        values = [shown(measure, found[r]) if r in found else "" for r in readings]
        lines.append([setting, method, *paper, *values])
    return ["setting", "method", *papers, *readings], lines


def _printed(value: float | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:g}"


def _markdown_table(headings: list[str], lines: list[list[str]]) -> list[str]:
    rule = ["---"] * len(headings)
    return [f"| {' | '.join(line)} |" for line in (headings, rule, *lines)]


def _reports(todo: Plan, out: Path, outcomes: Outcomes) -> dict[str, str]:
    """One comparison a setting, drawn by the usual report from the cached runs."""
    from fedadmm.study.report import write_report

    written: dict[str, str] = {}
    for setting in todo.recipe.settings:
        folder = out / "reports" / setting.name
        runs = [
            _run(cell, one, folder)
            for cell in todo.cells
            if cell.setting.name == setting.name
            for one in outcomes.get(cell.name, {}).values()
        ]
        if not runs:
            continue
        files.create(folder)
        target = runs[0]["target"]
        comparison = {
            "problem": f"{todo.recipe.title}: {setting.title}",
            "target": target,
            "seeds": todo.seeds,
            "rounds": runs[0]["rounds"],
            "learning_rate_search": None,
            "table": table(runs, target["metric"] if target else None, None),
            "runs": runs,
        }
        files.write_json(folder / "comparison.json", comparison)
        written[setting.name] = str(write_report(folder).relative_to(out))
    return written


def _run(cell: Cell, one: Outcome, folder: Path) -> dict[str, Any]:
    return one.summary | {
        "label": cell.method.label,
        "directory": os.path.relpath(one.directory, folder),
    }
