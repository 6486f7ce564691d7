"""Results found again: a cell is a run directory named by the hash of its configuration.

A finished cell is never run again, an interrupted one goes on where it stopped.  The hash covers
everything that the result depends on, and nothing about how it is computed (an engine that only
makes it faster, device, checkpoints, trackers).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from fedadmm.study import rundir as files
from fedadmm.study.config import RunConfig
from fedadmm.study.pool import Job, Watch, nobody, run_jobs
from fedadmm.study.summary import Summary

_NO_MATTER = ("engine", "device", "checkpoint", "trackers")


def cell_hash(config: RunConfig) -> str:
    """Sixteen hexadecimal digits."""
    ignored = set(_NO_MATTER)
    if getattr(config.engine.made_from, "shapes_the_run", False):
        ignored.remove("engine")
    tree = {key: value for key, value in config.tree().items() if key not in ignored}
    tree["store"] = config.store.primal
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


class Cells:
    """The cells below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, config: RunConfig) -> Path:
        """Where a cell's run lies, or will."""
        return self.root / cell_hash(config)

    def finished(self, config: RunConfig) -> Summary | None:
        """The summary of a cell that needs nothing more."""
        path = self.directory(config) / files.SUMMARY
        if not path.is_file():
            return None
        summary = files.read_json(path)
        return None if summary["code"] == "interrupted" else summary

    def forget(self, config: RunConfig) -> None:
        """Remove a cell, so that it is run again."""
        shutil.rmtree(self.directory(config), ignore_errors=True)

    def run(
        self, cells: Mapping[str, RunConfig], processes: int = 1, watch: Watch = nobody
    ) -> dict[str, Summary]:
        """The summary of every cell by its label, running those that are not finished."""
        files.create(self.root)
        missing = {
            cell_hash(config): (label, config)
            for label, config in cells.items()
            if self.finished(config) is None
        }
        jobs = [
            Job(label, config.tree(), self.directory(config), resume=True)
            for label, config in missing.values()
        ]
        run_jobs(jobs, processes, watch)
        summaries = {label: self.finished(config) for label, config in cells.items()}
        return {label: summary for label, summary in summaries.items() if summary is not None}
