"""A search over any keys of a configuration with optuna: what is promising is tried, the rest cut.

study.toml      the configuration and the ranges, which a resumed search must have too
tune.db         optuna's memory (SQLite)
cells/HASH/     one run directory a trial; one that was cut can be gone on with
best.toml       the complete configuration of the best trial
results.json    every trial, as that of a sweep, and which one is the best
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
from fedadmm.study import config, formatting
from fedadmm.study.outcome import Outcome, outcome, runs_table, write_results
from fedadmm.study.records import Columns
from fedadmm.study.rundir import RecordedRun, create, read_run, write_toml
from fedadmm.study.runner import Began, Ended, Job, Recorded, Watch, execute, no_watch
from fedadmm.study.study import PLAN, Cell, Setting, Study, below
from fedadmm.study.sweeping import axis, cell_of
from fedadmm.study.sweeping import plan as plan_sweep

MEMORY, BEST = "tune.db", "best.toml"

Draw = Callable[[Mapping[str, Any]], Cell]
"""Makes a trial's cell from what was drawn."""


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
            if not all(isinstance(one, bool | int | float | str) for one in values):
                raise ConfigError(
                    f"--keys is {self.key}={self.text!r}, but a list holds numbers and words"
                )
            return distributions.CategoricalDistribution(values)
        low, high = (self._number(text) for text in found.group(1, 2))
        log = found[3] is not None
        if not low < high or (log and low <= 0):
            wanted = "0 < LOW < HIGH" if log else "LOW < HIGH"
            raise ConfigError(f"--keys is {self.key}={self.text!r}, but must have {wanted}")
        if isinstance(low, int) and isinstance(high, int):
            return distributions.IntDistribution(low, high, log=log)
        return distributions.FloatDistribution(float(low), float(high), log=log)

    def _number(self, text: str) -> int | float:
        found = config.plain_value(text)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise ConfigError(
                f"--keys is {self.key}={self.text!r}, but must be LOW..HIGH, LOW..HIGH log or A,B,C"
            )
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
        return None if found is None else self._gap(found)

    def _gap(self, found: float) -> float | None:
        target = self._run.target
        if not math.isfinite(found):
            return None
        if target is None:
            return -found if metric(self._metric or "").up else found
        gap = target.value - found if target.at_least else found - target.value
        return max(0.0, gap / max(abs(target.value), 1e-12))

    def of_run(self, columns: Columns, rounds_to_target: float | None) -> float | None:
        """The score of a whole run; one that misses its target is behind all that reach it."""
        if rounds_to_target is not None:
            return rounds_to_target
        self._metric = primary(columns.names("metrics"), self._run.target)
        values = columns.measured(self._metric or "")
        found = [gap for one in values if (gap := self._gap(one)) is not None]
        if not found:
            return None
        return found[-1] if self._run.target is None else self._run.rounds * (1 + min(found))


def tune(
    tree: Tree,
    ranges: Sequence[Range],
    out: Path,
    trials: int,
    *,
    settings: Sequence[Setting] = (),
    prune: bool = True,
    watch: Watch = no_watch,
) -> Outcome:
    """Try until there are `trials`, those of before among them, and write results.json.

    `settings` go to every trial that has the key.
    """
    optuna = _optuna()
    space = {one.key: one.distribution() for one in ranges}
    ground, above = below(tree, settings, space)
    named(tree, ranges, settings)  # refused before anything is written
    first, applied = cell_of(ground, {}, above)
    draw = partial(_drawn, ground, above)
    plan: Tree = {"config": first.run.tree, "ranges": {one.key: one.text for one in ranges}}
    others = {key: value for key, value in above if (key, value) not in applied}
    plan |= {"set": others} if others else {}
    create(out)
    _refuse_another(out, plan)
    write_toml(out / PLAN, plan)
    memory = optuna.create_study(
        study_name="tune",
        storage=f"sqlite:///{(out / MEMORY).resolve()}",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4)
        if prune
        else optuna.pruners.NopPruner(),
    )
    for one in memory.trials:  # an interrupted one is drawn again, and goes on where it was
        if one.state.name == "RUNNING":
            memory.tell(one.number, state=optuna.trial.TrialState.FAIL)
    runs: dict[Path, RecordedRun] = {}
    while (done := len(_finished(memory))) < trials:
        # A sampler a trial: a resumed search draws what an uninterrupted one would have.
        memory.sampler = optuna.samplers.TPESampler(seed=first.run.seed + done)
        trial = memory.ask(space)
        cell = draw(trial.params)
        run = _try(optuna, memory, trial, cell, cell.directory(out), watch)
        runs[run.directory] = run
    return _result(memory, draw, plan, out, runs)


def named(tree: Tree, ranges: Sequence[Range], settings: Sequence[Setting]) -> Study:
    """One cell for each combination of the parts that a search chooses from."""
    below(tree, settings, (one.key for one in ranges))  # refuses a key that is both
    names = [axis(f"{one.key}={one.text}", "--keys") for one in ranges if one.key.endswith(".name")]
    return plan_sweep(tree, names, [], settings)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            f"tune needs optuna, which is not installed ({error}); pip install 'fedadmm[tune]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _refuse_another(out: Path, plan: Tree) -> None:
    """Refuse a folder that holds another search."""
    if not (out / PLAN).is_file():
        return
    before, now = flattened(config.table(out / PLAN)), flattened(plan)
    differing = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if differing:
        raise StateError(
            f"--out is '{out}', which holds another search, that differs in "
            f"{', '.join(differing)}; choose another folder"
        )


def _finished(memory: Any) -> list[Any]:
    return [one for one in memory.trials if one.state.name in ("COMPLETE", "PRUNED")]


def _drawn(tree: Tree, settings: Sequence[Setting], drawn: Mapping[str, Any]) -> Cell:
    """A trial's cell; numbers have four digits, which can be read and typed."""
    values = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in drawn.items()}
    return cell_of(tree, values, settings)[0]


def _try(
    optuna: Any, memory: Any, trial: Any, cell: Cell, directory: Path, watch: Watch
) -> RecordedRun:
    score, cut = Score(cell.run), optuna.trial.TrialState.PRUNED

    def observe(record: Record) -> None:
        watch(Recorded(trial.number, record))
        found = score.of_round(record)
        if found is not None:
            trial.report(found, record["round"])
            if trial.should_prune():
                raise Cut

    watch(Began(trial.number, cell.name, cell.run.rounds))
    try:
        found = execute(Job(cell.name, cell.run, directory), observe)
    except Cut:
        memory.tell(trial, state=cut)
        found = read_run(directory, cell.target)
    except FedADMMError:
        memory.tell(trial, state=optuna.trial.TrialState.FAIL)  # so that a resumed search goes on
        raise
    else:
        total = None if found.diverged else score.of_run(found.columns, found.to_target("rounds"))
        memory.tell(trial, total, state=cut if total is None else None)
    watch(Ended(trial.number))
    return found


def _result(
    memory: Any, draw: Draw, plan: Tree, out: Path, runs: Mapping[Path, RecordedRun]
) -> Outcome:
    finished = _finished(memory)
    cells = [draw(one.params) for one in finished]
    found = []
    for cell in cells:
        directory = cell.directory(out)
        run = runs[directory] if directory in runs else read_run(directory)
        found.append((cell, run.judged(cell.label, cell.target, cell.baseline)))
    result = outcome(Study("tuning", cells), found, out)
    rows = result.document["runs"]
    for number, (row, one) in enumerate(zip(rows, finished, strict=True)):
        cut = one.state.name == "PRUNED" and row["code"] != "diverged"
        row |= {"trial": number, "state": "cut" if cut else row["code"], "score": one.value}
    ranked = sorted((row for row in rows if row["score"] is not None), key=lambda row: row["score"])
    best = ranked[0] if ranked else None
    result.document.update(ranges=plan["ranges"], best=best)
    if best is not None:
        write_toml(out / BEST, cells[best["trial"]].run.tree)
    write_results(result)
    formatting.write_tables(out, {"trials": runs_table(result.document)})
    return result
