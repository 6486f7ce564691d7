"""The command line in this process, and a configuration that runs in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from fedadmm.cli import app
from fedadmm.run.callbacks import Callback
from fedadmm.study.study_result import StudyResult, drawn, read_study

SMALL: dict[str, Any] = {
    "rounds": 4,
    "problem": {"name": "quadratics", "clients": 4, "dimension": 3},
    "algorithm": {"name": "fedadmm", "rho": 1.0},
    "local": {
        "solver": {"name": "gradient-descent", "lr": 0.05},
        "stop": {"name": "steps", "steps": 3},
    },
    "sampler": {"name": "uniform", "size": 2},
    "checkpoint": {"every": 2},
}
"""Four small quadratics; nothing is downloaded, nothing is random but the participation."""


def call(*arguments: object) -> Result:
    """One command line; its exit code, standard output and standard error."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write_small(path: Path, **changes: Any) -> Path:
    """The small configuration as a file."""
    import tomli_w

    path.write_text(tomli_w.dumps(SMALL | changes), "utf-8")
    return path


@dataclass(frozen=True)
class Interrupter(Callback):
    """Presses Ctrl-C in the third round, as `support.commands:Interrupter`."""

    def round(self, report: Any, live: Any) -> None:
        if report.record["round"] == 3:
            raise KeyboardInterrupt


def read_content(directory: Path) -> StudyResult:
    """What the page of a folder shows."""
    return drawn(read_study(directory))
