"""Tables and figures of the papers, run again: the paper's value and each variant's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedadmm.study import formatting, run_history
from fedadmm.study.formatting import Table, markdown as as_text
from fedadmm.study.recipes import READINGS, Measure
from fedadmm.study.report import write_report
from fedadmm.study.run_dir import RecordedRun, write_text
from fedadmm.study.runner import OnEvent, ignore_event, run_study
from fedadmm.study.spec import Cell, Study
from fedadmm.study.statistics import Spread, spread
from fedadmm.study.study_result import StudyResult, write_results

NOTE = f"{formatting.SPREAD}; a seed that diverged did not reach the target and is in no mean."

RowDocument = Mapping[str, Any]
"""One method in one setting, as results.json has it."""


def reproduce(
    study: Study,
    out: Path,
    *,
    processes: int = 1,
    watch: OnEvent = ignore_event,
    only_cached: bool = False,
) -> StudyResult:
    """Run what is missing, and write results.json, results.md, their tables and a report.

    With `only_cached` nothing is run: what is there is drawn again.
    """
    result = run_study(study, out, processes=processes, watch=watch, only_cached=only_cached)
    search = result.search or {"tried": [], "chosen": {}}
    table = _rows(study, result)
    result.document.update(edges=edges(search["tried"], search["chosen"]), table=table)
    write_results(result)
    write_text(out / "results.md", markdown(result.document))
    formatting.write_tables(out, measured_tables(result.document))
    write_report(out, found=result)
    return result


def edges(tried: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The choices at an end of what was tried, beyond which a better value may lie.

    For every number that a row chose among at least three.
    """
    found = []
    for label, choice in best.items():
        rows = [one for one in tried if one["label"] == label]
        settings, (name, *_) = zip(*(one["place"].split("/") for one in rows), strict=True)
        for key, value in choice["value"].items():
            values = {one["value"][key] for one in rows}
            if len(values) < 3 or not all(isinstance(one, int | float) for one in values):
                continue
            end = {min(values): "smallest", max(values): "largest"}.get(value)
            if end is not None:
                places = list(dict.fromkeys(settings))
                found.append(
                    {"row": name, "places": places, "key": key, "value": value, "end": end}
                )
    return found


def _rows(study: Study, found: StudyResult) -> list[dict[str, Any]]:
    """A row for every cell, also for one that was not run."""
    about, seeds = study.about, study.seeds
    known = {(row["setting"], row["label"]): row for row in found.document["table"]}
    names = {(cell.setting, cell.label): cell.name for cell in study.cells}
    runs: dict[str, dict[int, RecordedRun]] = {cell.name: {} for cell in study.cells}
    for row, run in zip(found.document["runs"], found.runs, strict=True):
        runs[names[row["setting"], row["label"]]][run.seed or 0] = run
    rows = []
    for cell in study.cells:
        own, reference = runs[cell.name], runs.get(f"{cell.setting}/{about['reference']}", {})
        by_seed = {
            name: {
                str(seed): measure(name, cell.about["metric"], run, reference.get(seed))
                for seed, run in own.items()
            }
            for name in about["measures"]
        }
        rows.append(
            {
                **known.get((cell.setting, cell.label), _not_run(cell)),
                **cell.about,
                **{name: asdict(spread(list(one.values()))) for name, one in by_seed.items()},
                "by_seed": by_seed,
                "missing": [seed for seed in seeds if seed not in own],
            }
        )
    return rows


def _not_run(cell: Cell) -> RowDocument:
    about = {"setting": cell.setting, "label": cell.label, "method": cell.label, "seeds": 0}
    return about | {"chosen": None, "diverged": 0, "ratio": None, "compared_with": None}


def measure(
    name: Measure, metric: str, own: RecordedRun, reference: RecordedRun | None
) -> float | None:
    """One number for one run; None when it has none (diverged, target not met, no reference)."""
    if name.endswith("_to_target"):
        return own.to_target(name.removesuffix("_to_target"))
    if name == "speedup":  # how many times as many rounds the reference needs
        rounds = own.to_target("rounds")
        other = reference.to_target("rounds") if reference is not None else None
        return None if rounds is None or other is None else other / rounds
    curve = own.columns.measured(metric)
    if not curve or own.diverged:
        return None
    if name == "final":
        return curve[-1]
    if name == "best":
        return max(curve) if run_history.metric(metric).up else min(curve)
    if name == "penalty_mean":  # over the participants of the last round
        return own.columns.measured(name)[-1]
    if name in ("epochs", "passes"):
        return own.columns.work(name)
    if reference is None or not (theirs := reference.columns.measured(metric)):
        return None
    if name in ("epoch_reduction", "pass_reduction"):
        counted = "epochs" if name == "epoch_reduction" else "passes"
        done, needed = (run.columns.work(counted) for run in (own, reference))
        return None if done is None or not needed else 1.0 - done / needed
    pairs = zip(curve, theirs, strict=False)
    return max((abs(a - b) / max(1.0, abs(b)) for a, b in pairs), default=math.nan)


def markdown(result: Mapping[str, Any]) -> str:
    """A table a measure: paper and readings side by side, one row a setting and method."""
    lines = [f"# {result['id']}: {result['title']}", "", f"{result['source']}. "]
    lines[-1] += f"Scale `{result['scale']}`, seeds {result['seeds']}; {NOTE}"
    if result["notes"]:
        lines += ["", result["notes"].strip()]
    for name, table in measured_tables(result).items():
        lines += ["", *as_text(table).splitlines()]
        if name == "rounds_to_target":
            lines += ["", *(f"* {sentence}" for sentence in reductions(result))]
    return "\n".join(lines) + "\n"


def measured_tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """Every table of a reproduction, by the name of its file."""
    found = {
        measure: Table(measure.replace("_", " "), *side_by_side(result["table"], measure, number))
        for number, measure in enumerate(result["measures"])
    }
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


def reductions(result: Mapping[str, Any]) -> list[str]:
    """Compare the rounds of every method that met the target with those of the best other one."""
    rows = result["table"] if "rounds_to_target" in result["measures"] else []
    known = {(row["setting"], row["label"]): row for row in rows}
    return [
        reduction(row, known[row["setting"], row["compared_with"]])
        for row in rows
        if row.get("ratio") is not None and row["reached"] == row["seeds"]
    ]


def reduction(row: RowDocument, other: RowDocument) -> str:
    """Describe one of these comparisons."""
    share = round(1 - row["ratio"], 2)
    words = f"{abs(share):.0%} {'fewer' if share > 0 else 'more'} than" if share else "as many as"
    return (
        f"{row['setting_title']}: {row['title']}, {row['reading']}, needs "
        f"{row['rounds_to_target']['mean']:.4g} rounds, {words} the best other method, "
        f"{other['label']} ({other['rounds_to_target']['mean']:.4g})"
    )


def side_by_side(
    rows: Sequence[RowDocument], measure: str, number: int = 0
) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of a table: the paper, then one column for each reading that occurs.

    What a paper prints is the first measure, and the speed-up where a recipe has one.
    """
    readings = [r for r in READINGS if any(row["reading"] == r for row in rows)]
    papers = ["paper"] if number == 0 or measure == "speedup" else []
    groups: dict[tuple[str, str], dict[str, RowDocument]] = {}
    for row in rows:
        groups.setdefault((row["setting_title"], row["title"]), {})[row["reading"]] = row
    lines = []
    for names, found in groups.items():
        row = next(iter(found.values()))
        printed = row["paper"] if number == 0 else row["paper_speedup"]
        if printed is not None and not isinstance(printed, str):
            printed = f"{printed:g}" if number == 0 else f"{printed:.1f}×"
        values = [shown(measure, found[r]) if r in found else "" for r in readings]
        lines.append([*names, *([printed or ""] if papers else []), *values])
    return ["setting", "method", *papers, *readings], lines


def shown(measure: str, row: RowDocument) -> str:
    """A measure as people read it: mean and deviation over the seeds, or what is missing."""
    if not row["seeds"]:
        return "not run"
    value = Spread(**row[measure])
    if measure == "rounds_to_target" and value.count == 0:
        text = f"{row['rounds']}+"
    elif measure == "distance" and value.mean is not None:
        text = f"{value.mean:.1e}"
    else:
        text = formatting.spread(value, share=measure.endswith("_reduction"))
    if row["diverged"]:
        text += f", {row['diverged']} of {row['seeds']} diverged"
    elif 0 < value.count < value.of:
        text += f", {value.count} of {value.of} seeds"
    return text
