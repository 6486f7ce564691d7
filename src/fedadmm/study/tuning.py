"""A search over any keys of a configuration with optuna: what is promising is tried, the rest cut.

tune.toml       the configuration and the ranges, which a resumed search must have too
tune.db         optuna's memory (SQLite)
cells/HASH/     one run directory a trial; one that was cut can be gone on with
best.toml       the complete configuration of the best trial
tune.json       every trial, and comparison.json with the best of them, for the report
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.core.errors import ConfigError, FedADMMError, StateError
from fedadmm.core.tables import Tree, flattened
from fedadmm.run.experiment import Experiment
from fedadmm.run.metrics import metric, primary
from fedadmm.run.record import Record, value
from fedadmm.study import loading, overriding, tables
from fedadmm.study.comparing import write_overview
from fedadmm.study.grid import Cell
from fedadmm.study.overriding import Setting
from fedadmm.study.pool import Began, Ended, Job, Recorded, Watch, execute, nobody
from fedadmm.study.rundir import create, plain, write_json, write_toml
from fedadmm.study.sweeping import Point, axis, cell_of, point_of, points_of, short_keys
from fedadmm.study.tables import Table

PLAN, MEMORY, RESULT, BEST = "tune.toml", "tune.db", "tune.json", "best.toml"
SHOWN = 8
"""So many of the best trials have a curve in the report."""


Draw = Callable[[Mapping[str, Any]], Point]
"""Makes a trial's run from what was drawn."""


class Range(NamedTuple):
    """A key and what it may be: a range of numbers, or a list of values."""

    key: str
    text: str
    """As it was written: `0.001..1 log`, `1..20`, or `a,b,c`."""

    def distribution(self) -> Any:
        """What optuna draws from."""
        from optuna import distributions

        found = re.fullmatch(r"\s*(\S+?)\s*\.\.\s*(\S+?)(\s+log)?\s*", self.text)
        if found is None:
            values = axis(f"{self.key}={self.text}", "--keys").values
            return distributions.CategoricalDistribution([_scalar(self, one) for one in values])
        low, high = (self._number(text) for text in found.group(1, 2))
        log = found[3] is not None
        if not low < high or (log and low <= 0):
            wanted = "0 < LOW < HIGH" if log else "LOW < HIGH"
            raise ConfigError(f"--keys is {self.key}={self.text!r}, but must have {wanted}")
        if isinstance(low, int) and isinstance(high, int):
            return distributions.IntDistribution(low, high, log=log)
        return distributions.FloatDistribution(float(low), float(high), log=log)

    def _number(self, text: str) -> int | float:
        found = loading.plain_value(text)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise ConfigError(
                f"--keys is {self.key}={self.text!r}, but must be LOW..HIGH, LOW..HIGH log or A,B,C"
            )
        return found


def _scalar(one: Range, found: Any) -> Any:
    if not isinstance(found, bool | int | float | str):
        raise ConfigError(f"--keys is {one.key}={one.text!r}, but a list holds numbers and words")
    return found


def ranges_of(texts: Sequence[str]) -> list[Range]:
    """The ranges of `KEY=0.001..1 log`, `KEY=1..20`, `KEY=a,b`."""
    found = [Range(key.strip(), text.strip()) for key, _, text in (t.partition("=") for t in texts)]
    for one in found:
        if not one.key or not one.text:
            raise ConfigError(
                f"--keys is {one.key or one.text!r}, but must be KEY=RANGE, as in "
                "'local.solver.lr=0.001..1 log'"
            )
    if not found:
        raise ConfigError("--keys is missing, as in --keys 'local.solver.lr=0.001..1 log'")
    return found


class Cut(KeyboardInterrupt):
    """Ends a run that does not look promising as Ctrl-C would: it keeps its checkpoint."""


class Score:
    """What a trial is judged by, less is better: rounds to the target, or the metric itself."""

    def __init__(self, run: Experiment) -> None:
        self._run = run
        self._metric: str | None = None

    def of_round(self, record: Record) -> float | None:
        """How far a round is from good; None for one that was not measured."""
        target = self._run.target
        if self._metric is None:
            self._metric = primary(list(record["metrics"]), target)
        found = None if self._metric is None else value(record, self._metric)
        if found is None or self._metric is None or not math.isfinite(found):
            return None
        up = metric(self._metric).up if target is None else target.at_least
        return (-found if up else found) if target is None else _gap(target.value, found, up)

    def of_run(self, records: Sequence[Record], rounds_to_target: float | None) -> float | None:
        """The score of a whole run; one that misses its target is behind all that reach it."""
        if rounds_to_target is not None:
            return rounds_to_target
        found = [one for record in records if (one := self.of_round(record)) is not None]
        if not found:
            return None
        return found[-1] if self._run.target is None else self._run.rounds * (1 + min(found))


def _gap(goal: float, found: float, up: bool) -> float:
    return max(0.0, (goal - found if up else found - goal) / max(abs(goal), 1e-12))


def tune(
    tree: Tree,
    ranges: Sequence[Range],
    out: Path,
    trials: int,
    *,
    settings: Sequence[Setting] = (),
    prune: bool = True,
    watch: Watch = nobody,
) -> dict[str, Any]:
    """Try until there are `trials`, those of before among them; what is written to tune.json.

    `settings` go to every trial that has the key.
    """
    optuna = _optuna()
    space = {one.key: one.distribution() for one in ranges}
    ground, above = overriding.below(tree, settings, space)
    named_points(tree, ranges, settings)  # refused before anything is written
    first = point_of(ground, {}, above)
    draw = partial(_point, ground, above)
    create(out)
    _same_plan(out, first, above, ranges)
    study = optuna.create_study(
        study_name="tune",
        storage=f"sqlite:///{(out / MEMORY).resolve()}",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4)
        if prune
        else optuna.pruners.NopPruner(),
    )
    _forget(optuna, study)
    while (done := len(_told(study))) < trials:
        # A sampler a trial: a resumed search draws what an uninterrupted one would have.
        study.sampler = optuna.samplers.TPESampler(seed=first.run.seed + done)
        _try(optuna, study, study.ask(space), draw, out, watch)
    return _result(study, draw, ranges, out)


def named_points(tree: Tree, ranges: Sequence[Range], settings: Sequence[Setting]) -> list[Point]:
    """One run for each combination of the parts that a search chooses from."""
    overriding.below(tree, settings, (one.key for one in ranges))  # refuses a key that is both
    names = [axis(f"{one.key}={one.text}", "--keys") for one in ranges if one.key.endswith(".name")]
    return points_of(tree, names, [], settings)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            f"tune needs optuna, which is not installed ({error}); pip install 'fedadmm[tune]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _same_plan(
    out: Path, first: Point, settings: Sequence[Setting], ranges: Sequence[Range]
) -> None:
    plan: Tree = {"config": first.run.tree, "ranges": {one.key: one.text for one in ranges}}
    others = {key: value for key, value in settings if (key, value) not in first.applied}
    plan |= {"set": others} if others else {}
    if (out / PLAN).is_file():
        before, now = flattened(loading.table(out / PLAN)), flattened(plan)
        differing = sorted(
            key for key in before.keys() | now.keys() if before.get(key) != now.get(key)
        )
        if differing:
            raise StateError(
                f"--out is '{out}', which holds another search, that differs in "
                f"{', '.join(differing)}; choose another folder"
            )
    write_toml(out / PLAN, plan)


def _told(study: Any) -> list[Any]:
    return [one for one in study.trials if one.state.name in ("COMPLETE", "PRUNED")]


def _forget(optuna: Any, study: Any) -> None:
    """Forget a trial that was interrupted: it is drawn again, and its run goes on where it was."""
    for one in study.trials:
        if one.state.name == "RUNNING":
            study.tell(one.number, state=optuna.trial.TrialState.FAIL)


def _try(optuna: Any, study: Any, trial: Any, draw: Draw, out: Path, watch: Watch) -> None:
    cell = cell_of(out, draw(trial.params))
    score, cut = Score(cell.run), optuna.trial.TrialState.PRUNED

    def observe(record: Record) -> None:
        watch(Recorded(trial.number, record))
        found = score.of_round(record)
        if found is not None:
            trial.report(found, record["round"])
            if trial.should_prune():
                raise Cut

    watch(Began(trial.number, cell.label, cell.run.rounds))
    try:
        execute(Job(cell.label, cell.run, cell.directory, resume=True), observe)
    except Cut:
        study.tell(trial, state=cut)
    except FedADMMError:
        study.tell(trial, state=optuna.trial.TrialState.FAIL)  # so that a resumed search goes on
        raise
    else:
        found = cell.read()
        total = None if found.diverged else score.of_run(found.records, found.to_target("rounds"))
        study.tell(trial, total, state=cut if total is None else None)
    watch(Ended(trial.number, {}))


def _point(tree: Tree, settings: Sequence[Setting], drawn: Mapping[str, Any]) -> Point:
    """A trial's run; numbers have four digits, which can be read and typed."""
    values = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in drawn.items()}
    return point_of(tree, values, settings)


def _result(study: Any, draw: Draw, ranges: Sequence[Range], out: Path) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    cells: list[Cell] = []
    for one in _told(study):
        point = draw(one.params)
        cell = cell_of(out, point)
        found = cell.read()
        state = "cut" if one.state.name == "PRUNED" and not found.diverged else found.code
        cells.append(cell)
        rows.append(
            {
                "trial": len(rows),
                "set": point.values,
                "state": state,
                "score": one.value,
                "rounds": found.tally["rounds"],
                "rounds_to_target": found.to_target("rounds"),
                "final": found.final,
                "directory": str(cell.directory.relative_to(out)),
            }
        )
    ranked = sorted((row for row in rows if row["score"] is not None), key=lambda row: row["score"])
    best = ranked[0] if ranked else None
    if best is not None:
        write_toml(out / BEST, cells[best["trial"]].run.tree)
    result = {"trials": rows, "best": best, "ranges": {one.key: one.text for one in ranges}}
    write_json(out / RESULT, result)
    tables.write(out, {"trials": table(result)})
    _overview(out, [cells[row["trial"]] for row in ranked[:SHOWN]], result)
    return result


def _overview(out: Path, cells: Sequence[Cell], result: Mapping[str, Any]) -> None:
    """What the report reads: the best trials as the rows of a comparison, and all scores."""
    if not cells:
        return
    first = cells[0].run
    distinct = {cell.directory: cell for cell in cells}  # a trial may be drawn twice
    write_overview(
        out,
        [cell.read() for cell in distinct.values()],
        problem=first.name("problem"),
        target=first.tree.get("target"),
        seeds=[first.seed],
        rounds=first.rounds,
        more={"tuning": plain(result)},
    )


def table(result: Mapping[str, Any]) -> Table:
    """One line a trial, the best in bold."""
    rows = result["trials"]
    keys = list(result["ranges"])
    metrics = list(dict.fromkeys(name for row in rows for name in row["final"]))
    shown = [name for name in metrics if metric(name).known][:2]
    best = result["best"]["trial"] if result["best"] is not None else None
    lines = []
    for row in rows:
        number = f"**{row['trial']}**" if row["trial"] == best else str(row["trial"])
        values = [*(row["set"][key] for key in keys), row["rounds"], row["state"]]
        values += [row["final"].get(name) for name in shown]
        lines.append([number, *map(tables.number_cell, values)])
    headings = ["trial", *short_keys(keys), "rounds", "state", *shown]
    note = f"Trial {best} is the best." if best is not None else ""
    return Table("Trials", headings, lines, note, data=[flattened(row) for row in rows])
