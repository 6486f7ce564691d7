"""A study's folder: results.json, its runs, and what a page shows of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedadmm.core.config_tree import flattened, to_config
from fedadmm.core.errors import DataError
from fedadmm.run.evaluation import Target
from fedadmm.study import formatting, run_history
from fedadmm.study.formatting import NOTHING, SPREAD, Table, number_cell
from fedadmm.study.results import Results, by_label, results, row_documents
from fedadmm.study.run_dir import RecordedRun, RunDir, plain, read_json, read_run, write_json
from fedadmm.study.spec import RESULTS, Cell, Study, setting_of, short_keys
from fedadmm.study.statistics import spread

if TYPE_CHECKING:
    from fedadmm.study.runner import Searched
    from fedadmm.study.search import SearchResult


@dataclass(frozen=True)
class PartitionSummary:
    """How many rows of each label each client holds; of many clients only the first are listed."""

    clients: int
    sizes: list[int]
    names: list[str] = field(default_factory=list)
    """What the clients are called, when they have names."""
    labels: list[str] = field(default_factory=list)
    counts: list[list[int]] = field(default_factory=list)
    weights: str = "equal"
    """What a client counts: "equal", or by its "rows"."""


@dataclass(frozen=True)
class StudyResult:
    """A study's folder, what its results.json says, and its runs in the order of that document.

    A single run is a study of kind "run", which has no such file.
    """

    directory: Path
    document: dict[str, Any]
    runs: list[RecordedRun]

    def of(self, key: str, value: Any) -> StudyResult:
        """The part of it whose runs have this value of a key."""
        pairs = zip(self.document["runs"], self.runs, strict=True)
        some = [(row, run) for row, run in pairs if row[key] == value]
        document = self.document | {"runs": [row for row, _ in some]}
        return StudyResult(self.directory, document, [run for _, run in some])

    @property
    def comparison(self) -> bool:
        """Whether there is more than one run to show."""
        return bool(self.document["kind"] != "run")

    @property
    def search(self) -> Any:
        """What a search for learning rates found, as it was written."""
        return self.document.get("search")

    @property
    def target(self) -> Target | None:
        return target_of(self.document["target"])

    @cached_property
    def problem(self) -> str:
        run = self.runs[0]
        named = self.document.get("problem") or run.config.get("problem")
        if isinstance(named, Mapping):
            named = named.get("name")
        named = named or run.summary.get("problem")
        return str(named or "a problem without a name")

    @cached_property
    def settings(self) -> dict[str, dict[str, str]]:
        """What each label of a sweep sets; empty when this is none."""
        rows = self.document["runs"] if self.document["kind"] == "sweep" else []
        found = {row["label"]: setting_of(row["set"]) for row in rows}
        return {label: one for label, one in found.items() if one}

    @cached_property
    def labels(self) -> dict[str, list[RecordedRun]]:
        """The runs of each label, in the order of their first appearance."""
        return by_label(self.runs)

    @cached_property
    def names(self) -> dict[str, str]:
        """What each label is called."""
        return {label: runs[0].method for label, runs in self.labels.items()}

    @cached_property
    def results(self) -> Results:
        """The rows that every table shows."""
        compare = self.document["kind"] != "sweep"
        reference = self.document.get("compared_with")
        return results(self.runs, self.target, reference, compare)

    @cached_property
    def partition(self) -> PartitionSummary | None:
        """That of the first run which has one."""
        folders = [self.directory, *(run.directory for run in self.runs)]
        value = next(filter(None, (RunDir(folder).partition() for folder in folders)), None)
        if value is None:
            return None
        counts = value.get("counts") or []
        sizes = value.get("sizes") or [sum(row) for row in counts]
        names = [str(name) for name in value.get("names") or []]
        return PartitionSummary(
            clients=int(value.get("clients", len(sizes))),
            sizes=sizes,
            names=[] if all(name.isdecimal() for name in names) else names,
            labels=[str(label) for label in value.get("labels") or []],
            counts=counts,
            weights=str(value.get("weights", "equal")),
        )


def collect_result(
    study: Study,
    found: Sequence[tuple[Cell, RecordedRun]],
    out: Path,
    searched: Searched | None = None,
) -> StudyResult:
    """Collect the runs of a study, what its searches evaluated, and what they chose."""
    chosen = {} if searched is None else {n: one.chosen for n, one in searched.results.items()}
    table = []
    for setting in dict.fromkeys(cell.setting for cell, _ in found):
        some = [(cell, run) for cell, run in found if cell.setting == setting]
        distinct = {(run.label, run.directory): run for _, run in some}  # a trial drawn twice
        compare, reference = study.kind != "sweep", study.about.get("compared_with")
        own = results(list(distinct.values()), some[0][0].run.target, reference, compare)
        values = {c.label: chosen[c.tuned] for c, _ in some if c.tuned in chosen}
        table += [{"setting": setting} | row for row in row_documents(own, values)]
    runs = [cell.run for cell in study.cells]
    search = None
    if study.search is not None and searched is not None:
        search = {
            "seeds": list(study.search.seeds),
            "keep": study.search.keep,
            **study.search.about,
            "samples": _samples_of([row["metric"] for row in searched.trials]),
            "grid": {n: {k: list(v) for k, v in one.grid.items()} for n, one in _found(searched)},
            "interior": {name: one.interior for name, one in _found(searched)},
            "chosen": {name: {"value": one.chosen} for name, one in _found(searched)},
            "tried": searched.trials,
        }
    document = {
        "kind": study.kind,
        "problem": _shared([run.name("problem") for run in runs]),
        "target": _shared([run.tree.get("target") for run in runs]),
        "seeds": list(study.seeds or dict.fromkeys(run.seed for run in runs)),
        "rounds": _shared([run.rounds for run in runs]),
        **study.about,
        "search": search,
        "table": table,
        "runs": [_run_document(cell, run, out) for cell, run in found],
    }
    return StudyResult(out, plain(document), [run for _, run in found])


def _found(searched: Searched) -> list[tuple[str, SearchResult]]:
    return list(searched.results.items())


def _samples_of(metrics: Sequence[str | None]) -> str:
    """Name the samples that a search was decided on."""
    known = {str(name) for name in metrics if name is not None}
    for kind in ("test", "validation"):
        if any(name.startswith(f"{kind}_") for name in known):
            return kind
    return "training"


def _shared(values: Sequence[Any]) -> Any:
    """The value that all have; None where they differ, or where there is none."""
    return values[0] if values and all(value == values[0] for value in values) else None


def _run_document(cell: Cell, run: RecordedRun, out: Path) -> dict[str, Any]:
    tallied = ("rounds", "rounds_to_target", "bytes_to_target", "bytes_up", "bytes_down")
    return {
        "label": run.label,
        "setting": cell.setting,
        "set": dict(cell.values),
        "method": run.method,
        "algorithm": run.algorithm,
        "seed": run.seed,
        "status": run.status,
        "code": run.code,
        "target": None if cell.target is None else to_config(cell.target),
        **{key: run.tally[key] for key in (*tallied, "seconds", "final")},
        "params_sha256": run.summary.get("params_sha256"),
        "directory": os.path.relpath(run.directory, out),
    }


def write_results(found: StudyResult) -> None:
    """Write results.json."""
    write_json(found.directory / RESULTS, found.document)


def _understood(path: Path) -> dict[str, Any]:
    """What results.json says, with the rows of its runs as they must be."""
    document = read_json(path)
    rows = document.get("runs")
    kinds = {"directory": str, "label": str, "target": dict | None}
    for number, row in enumerate(rows if isinstance(rows, list) else [None]):
        for key, kind in kinds.items():
            if not isinstance(row, dict) or not isinstance(row.get(key, path), kind):
                raise DataError(f"{path}: is damaged: runs[{number}] has no proper {key}")
    if not isinstance(document.get("kind"), str):
        raise DataError(f"{path}: is damaged: it does not say which kind of study it is of")
    return document


def read_study(directory: Path) -> StudyResult:
    """A run, or a study with every run of it that can be read, while it may still go on."""
    if not directory.is_dir():
        raise DataError(f"{directory}: no such directory")
    if (directory / RESULTS).is_file():
        document = _understood(directory / RESULTS)
        known = [r for r in document["runs"] if RunDir(directory / r["directory"]).can_be_drawn]
        runs = [
            read_run(directory / row["directory"]).judged(row["label"], target_of(row["target"]))
            for row in known
        ]
        return StudyResult(directory, document | {"runs": known}, runs)
    comparison = (directory / "runs").is_dir()
    if not comparison and not RunDir(directory).can_be_drawn:
        raise DataError(
            f"{directory}: neither a run (metrics.jsonl) nor a study ({RESULTS}, or runs/ while a "
            "comparison goes on)"
        )
    folders = _runs_below(directory) if comparison else [directory]
    if not folders:
        raise DataError(f"{directory}: the comparison holds no run yet")
    given = next(filter(None, (RunDir(folder).summary().get("target") for folder in folders)), None)
    kind = "comparison" if comparison else "run"
    runs = [read_run(folder, target_of(given)) for folder in folders]
    return StudyResult(directory, {"kind": kind, "target": given, "runs": []}, runs)


def _runs_below(directory: Path) -> list[Path]:
    return [one for one in sorted((directory / "runs").glob("*")) if RunDir(one).can_be_drawn]


def drawn(found: StudyResult) -> StudyResult:
    """What a page shows of it: of a comparison also its new runs."""
    document, runs = found.document, list(found.runs)
    if document["kind"] == "comparison":  # it may go on, with runs that are not named yet
        known = {run.directory.resolve() for run in runs}
        new = [one for one in _runs_below(found.directory) if one.resolve() not in known]
        runs += [read_run(folder, found.target) for folder in new]
    if not runs:
        raise DataError(f"{found.directory}: the study holds no run yet")
    return StudyResult(found.directory, document, runs)


def target_of(found: Mapping[str, Any] | None) -> Target | None:
    """The target that a document tells of."""
    if not isinstance(found, Mapping) or not {"metric", "value"} <= found.keys():
        return None
    metric = str(found["metric"])
    at_least = found.get("at_least", run_history.metric(metric).up)
    return Target(metric, float(found["value"]), bool(at_least))


def runs_table(document: Mapping[str, Any]) -> Table:
    """One line per setting of a sweep: the values that were set, and means over its seeds.

    A missed target counts as all rounds of its run.
    """
    rows = document["runs"]
    targeted = any(row["target"] is not None for row in rows)
    metrics = list(dict.fromkeys(name for row in rows for name in row["final"]))
    settings: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        own = {key: value for key, value in row["set"].items() if key != "seed"}
        settings.setdefault(json.dumps(own, sort_keys=True), []).append(row)
    averaged = len(settings) < len(rows)
    lines = []
    for some in settings.values():
        done = _mean_cell([row["rounds"] for row in some])
        if lost := sum(row["code"] == "diverged" for row in some):
            done += f" ({lost} diverged)" if averaged else " (diverged)"
        given = some[0]["set"] | ({"seed": len(some)} if averaged else {})
        cells = [*map(number_cell, given.values()), done]
        if targeted:
            reached = [row["rounds_to_target"] for row in some]
            counted = [n or row["rounds"] for n, row in zip(reached, some, strict=True)]
            missed = reached.count(None)
            bound = "≥ " if missed else ""
            cells.append(NOTHING if missed == len(some) else bound + _mean_cell(counted))
        cells += [_mean_cell([row["final"].get(name) for row in some]) for name in metrics]
        lines.append(cells)
    keys = short_keys(list(rows[0]["set"])) if rows else []
    keys = ["seeds" if averaged and key == "seed" else key for key in keys]
    headings = [*keys, "rounds done", *(["rounds to target"] if targeted else []), *metrics]
    note = f"{SPREAD}; tables/cells.csv has a row per run" if averaged else ""
    return Table("Sweep", headings, lines, note, data=[flattened(row) for row in rows])


def _mean_cell(values: Sequence[Any]) -> str:
    """Format one value, or the mean ± standard deviation of several; None is a missing value."""
    if len(values) == 1 or None in values:
        return number_cell(values[0] if len(values) == 1 else None)
    return formatting.spread(spread(values))
