"""A run that an estimator carries with it as bytes, and the page about it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedadmm.core.errors import ParameterError, StateError
from fedadmm.core.problem import Problem
from fedadmm.core.protocols import AnyAlgorithm
from fedadmm.run.record import Record
from fedadmm.run.simulation import Result, simulate
from fedadmm.run.stores import Checkpoints
from fedadmm.study.report import write_report
from fedadmm.study.rundir import RunDir, create
from fedadmm.study.summary import Summary

Kept = dict[str, bytes]
"""The files of a checkpoint by their names; empty before the first round."""


def go_on(
    kept: Kept, algorithm: AnyAlgorithm, problem: Problem, rounds: int, **parts: Any
) -> tuple[Result, Kept]:
    """Run up to round `rounds` from what was kept; `parts` are those of `simulate`."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, content in kept.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        checkpoints = Checkpoints(folder, every=rounds)  # so that only the end is saved
        try:
            result = simulate(
                algorithm, problem, rounds, checkpoints=checkpoints, resume=bool(kept), **parts
            )
        except StateError as error:
            reason = str(error).replace(f"the checkpoint in {folder}", "the run so far")
            raise ParameterError(f"partial_fit: {reason}; begin another run with fit") from None
        found = (path for path in folder.rglob("*") if path.is_file())
        return result, {str(path.relative_to(folder)): path.read_bytes() for path in found}


def write_page(
    directory: Path,
    options: Mapping[str, Any],
    summary: Summary,
    partition: Mapping[str, Any] | None,
    history: Sequence[Record],
) -> Path:
    """Write a run directory with its page; over another estimator's, but over no other run."""
    folder = RunDir(directory)
    if folder.can_be_drawn and "estimator" not in folder.config()[1]:
        raise ParameterError(
            f"report: directory is '{directory}', which holds a run of another kind, but must be a "
            "new folder or one that `report` has written"
        )
    create(directory)
    plain = {key: _plain(value) for key, value in options.items() if value is not None}
    config = {"problem": {"name": "your rows"}, "estimator": plain}
    folder.begin(config, summary, partition)
    folder.keep(-1)
    for record in history:
        folder.append(record)
    return write_report(directory)


def _plain(value: object) -> Any:
    """An option as TOML can hold it."""
    return value if isinstance(value, str | int | float | bool) else str(value)
