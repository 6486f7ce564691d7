"""Key figures, search results and configuration of a study, for the report and its tables."""

from __future__ import annotations

import json
from typing import Any

from fedadmm.core.config_tree import flattened
from fedadmm.study import formatting, run_history
from fedadmm.study.formatting import Table
from fedadmm.study.results import MethodSummary, search_notes, table
from fedadmm.study.study_result import StudyResult


def final_metrics(content: StudyResult) -> list[str]:
    """Return the metrics with a column in the results: the compared one, an accuracy, losses."""
    names = list(dict.fromkeys(name for row in content.results.rows for name in row.final))
    accuracy = [name for name in names if "accuracy" in name][:1]
    wanted = [content.results.metric, *accuracy, "test_loss", "loss", "objective", "sparsity"]
    same = all(run.final.get("loss") == run.final.get("objective") for run in content.runs)
    if content.results.metric != "objective" and same:
        wanted.remove("objective")
    return [name for name in dict.fromkeys(wanted) if name in names] + content.results.over_clients


def results_table(content: StudyResult) -> Table:
    """Return the results of a comparison, with the values that a search chose."""
    found = content.results
    rounds, seeds = (content.document.get(key) for key in ("rounds", "seeds"))
    goal = f"; target: {formatting.describe(found.target)}" if found.target is not None else ""
    about = f", {rounds} rounds, seeds {seeds}" if rounds is not None else ""
    return table(found, f"{content.problem}{about}{goal}", content.search)


def all_tables(content: StudyResult) -> dict[str, Table]:
    """Return the tables of the report by the names of their files."""
    found = {"runs": _runs(content)}
    if content.comparison:
        found["results"] = results_table(content)
    settings = configuration(content)[1]
    search = search_table(content)
    found |= {"settings": settings} if settings.lines else {}
    return found | ({"search": search} if search is not None else {})


def _runs(content: StudyResult) -> Table:
    data = [
        {"method": run.method, "seed": run.seed, "status": run.status}
        | {key: run.tally[key] for key in ("rounds", "bytes_up", "bytes_down", "seconds")}
        | {"sha256": run.summary.get("params_sha256")}
        | {f"final.{name}": value for name, value in run.final.items()}
        for run in content.runs
    ]
    lines = [
        [
            *(str(row[key]) for key in ("method", "seed", "rounds")),
            *(formatting.size(row[key]) for key in ("bytes_up", "bytes_down")),
            formatting.duration(row["seconds"]),
            str(row["status"]),
        ]
        for row in data
    ]
    headings = ["method", "seed", "rounds", "up", "down", "time", "status"]
    return Table("Runs", headings, lines, data=data)


def key_figures(content: StudyResult) -> list[tuple[str, str, str]]:
    """Return the key figures at the top of the page as (title, value, remark)."""
    tallies = [run.tally for run in content.runs]
    traffic = sum(tally["bytes_up"] + tally["bytes_down"] for tally in tallies)
    seconds = sum(tally["seconds"] for tally in tallies)
    rounds = sum(tally["rounds"] for tally in tallies)
    figures = [*_target_figure(content), *_best_figure(content)]
    if content.comparison:
        states = [run.code for run in content.runs]
        words = {"target": "reached the target"}
        parts = [f"{states.count(code)} {words.get(code, code)}" for code in dict.fromkeys(states)]
        figures.append(("Runs", str(len(states)), ", ".join(parts)))
    figures.append(("Rounds", f"{rounds:,}", "in all runs" if content.comparison else ""))
    figures.append(("Communication", formatting.size(traffic), "up and down"))
    figures.append(("Training time", formatting.duration(seconds), "without evaluation"))
    return figures


def _target_figure(content: StudyResult) -> list[tuple[str, str, str]]:
    if content.target is None:
        return []
    what = "Fewest rounds to the target" if content.comparison else "Rounds to the target"
    found = content.results
    first = found.best_first()[0]
    if not first.rounds.complete:
        part = f"{first.reached} of {first.seeds} runs of {first.method}"
        small = part if content.comparison else formatting.describe(content.target)
        return [(what, "not reached", small)]
    small = ""
    if content.comparison:
        small = first.method
        gap, other = first.difference, found.named(first.compared_with)
        if gap is not None and gap.beyond_chance:
            small += f", {formatting.number(-gap.mean)} fewer than {other}"
        elif gap is not None and gap.low is not None:
            small += f", no significant difference from {other}"
    return [(what, f"{first.rounds.mean:.4g}", small)]


def _best_figure(content: StudyResult) -> list[tuple[str, str, str]]:
    name = content.results.metric
    scored = [row for row in content.results.rows if name in row.final]
    if name is None or not scored:
        return []
    metric = run_history.metric(name)
    sign = 1 if metric.up else -1

    def mean(row: MethodSummary) -> float:
        return row.final[metric.name].mean or 0.0

    best = max(scored, key=lambda row: sign * mean(row))
    what = f"{'Best final' if content.comparison else 'Final'} {metric.title.lower()}"
    return [(what, formatting.metric(name, mean(best)), best.method if content.comparison else "")]


def search_table(content: StudyResult) -> Table | None:
    """Return the table of a search, with the score of each value per label and the chosen value."""
    search = content.search
    if not search or not search.get("tried"):
        return None
    scores: dict[str, dict[str, list[Any]]] = {}
    marks: dict[tuple[str, str], str] = {}
    for row in search["tried"]:
        label = content.names.get(row["label"], row["label"])
        value = ", ".join(json.dumps(value) for value in row["value"].values())
        scores.setdefault(label, {}).setdefault(value, []).append((row["metric"], row["best"]))
        if search["chosen"].get(row["label"], {}).get("value") == row["value"]:
            marks[label, value] = " ✓"
    rows: dict[str, dict[str, str]] = {}
    for label, found in scores.items():
        for value, pairs in sorted(found.items(), key=lambda item: _sort_key(item[0])):
            known = [best for _, best in pairs if best is not None]
            shown = formatting.NOTHING
            if len(known) == len(pairs):
                shown = formatting.metric(pairs[0][0], sum(known) / len(known))
            rows.setdefault(label, {})[value] = shown + marks.get((label, value), "")
    values = sorted({value for cells in rows.values() for value in cells}, key=_sort_key)
    lines = [
        [label, *(cells.get(value, formatting.NOTHING) for value in values)]
        for label, cells in rows.items()
    ]
    note = ". ".join(search_notes(search))
    return Table("Hyper-parameter search", ["method", *values], lines, note)


def _sort_key(value: str) -> tuple[bool, float, str]:
    """Numbers by size, then words."""
    try:
        return False, float(value), ""
    except ValueError:
        return True, 0.0, value


def configuration(content: StudyResult) -> tuple[list[tuple[str, str]], Table]:
    """Return the options that all runs share, by dotted keys, and a table of those that differ.

    The seed of the runs of a comparison is left out.
    """
    firsts = [flattened(runs[0].config) for runs in content.labels.values()]
    shared: list[tuple[str, str]] = []
    different: list[list[str]] = []
    for key in dict.fromkeys(key for flat in firsts for key in flat):
        if key == "seed" and content.comparison:
            continue
        values = [_shown(flat[key]) if key in flat else formatting.NOTHING for flat in firsts]
        if len(set(values)) == 1:
            shared.append((key, values[0]))
        else:
            different.append([key, *values])
    title = "What differs between the methods"
    return shared, Table(title, ["key", *content.names.values()], different)


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
