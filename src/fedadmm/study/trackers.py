"""Runs in other people's tools: TensorBoard, MLflow, Weights & Biases, or your own.

A tracker sees the configuration once, every record, and the summary.  Its files lie in the run
directory unless the tool's own environment variables say otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from fedadmm.core import clock
from fedadmm.core.errors import ConfigError
from fedadmm.core.parts import imported, is_external
from fedadmm.core.tables import flattened, suggestion
from fedadmm.run.record import Record, numbers
from fedadmm.study import records


class Tracker(Protocol):
    """What `trackers` in a configuration names."""

    def start(self, directory: Path, config: Mapping[str, Any], first_round: int) -> None:
        """Before the first round; `first_round` is above 1 when the run is resumed."""

    def record(self, record: Record) -> None:
        """After every round."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """After the last round, or when the run was interrupted."""


class TensorBoard:
    """Event files for `tensorboard --logdir RUN` (the extra `tensorboard`)."""

    def start(self, directory: Path, config: Mapping[str, Any], first_round: int) -> None:
        """Open the event file; rounds that will be run again are purged."""
        module = _needed("torch.utils.tensorboard", "tensorboard")
        folder = str(directory / "tensorboard")
        self._writer = module.SummaryWriter(folder, purge_step=first_round)

    def record(self, record: Record) -> None:
        """One scalar a number."""
        for key, value in numbers(record).items():
            self._writer.add_scalar(key, value, records.number(record))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Close the event file."""
        self._writer.close()


class MLflow:
    """An MLflow run in RUN/mlflow.db (SQLite), or wherever MLFLOW_TRACKING_URI points."""

    def start(self, directory: Path, config: Mapping[str, Any], first_round: int) -> None:
        """Begin a run with the configuration as its parameters."""
        tracking = _needed("mlflow.tracking", "mlflow")
        place = directory.resolve()
        given = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = tracking.MlflowClient(given or f"sqlite:///{place / 'mlflow.db'}")
        found = self._client.get_experiment_by_name("fedadmm")
        artifacts = None if given else (place / "mlflow").as_uri()  # not where one happens to stand
        experiment = (
            found.experiment_id
            if found
            else self._client.create_experiment("fedadmm", artifact_location=artifacts)
        )
        self._run = self._client.create_run(experiment, run_name=directory.name).info.run_id
        param = _needed("mlflow.entities", "mlflow").Param
        about = [param(key, str(value)[:500]) for key, value in flattened(config).items()]
        for begin in range(0, len(about), 100):  # as many as MLflow takes at once
            self._client.log_batch(self._run, params=about[begin : begin + 100])

    def record(self, record: Record) -> None:
        """One metric each, at the round as its step."""
        metric = _needed("mlflow.entities", "mlflow").Metric
        now = round(1000 * datetime.fromisoformat(clock.timestamp()).timestamp())
        step = records.number(record)
        found = [metric(key, value, now, step) for key, value in numbers(record).items()]
        self._client.log_batch(self._run, metrics=found)  # one transaction a round

    def finish(self, summary: Mapping[str, Any]) -> None:
        """End the run with the status that MLflow knows."""
        known = {"diverged": "FAILED", "failed": "FAILED", "interrupted": "KILLED"}
        status = known.get(str(summary["code"]), "FINISHED")
        self._client.set_terminated(self._run, status)


class WeightsAndBiases:
    """A run of Weights & Biases in RUN/wandb, offline until `wandb sync`, or as WANDB_MODE says."""

    def start(self, directory: Path, config: Mapping[str, Any], first_round: int) -> None:
        """Begin a run with the configuration; a resumed one is another run of the same group."""
        self._run = _needed("wandb", "wandb").init(
            project=os.environ.get("WANDB_PROJECT", "fedadmm"),
            name=directory.name,
            group=directory.name,
            dir=str(directory),
            config=dict(config),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def record(self, record: Record) -> None:
        """One point each, at the round as its step."""
        self._run.log(numbers(record), step=records.number(record))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Keep how it ended, and end the run."""
        told = ("code", "status", "rounds", "best", "rounds_to_target")
        self._run.summary.update({key: summary[key] for key in told})
        failed = summary["code"] in ("diverged", "failed", "interrupted")
        self._run.finish(exit_code=int(failed))


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def tracker(name: str) -> Tracker:
    """A tracker by its name, or any other as package.module:name."""
    if name in TRACKERS:
        return TRACKERS[name]()
    if not is_external(name):
        near = suggestion(name, [*TRACKERS, "package.module:name"])
        raise ConfigError(f"trackers names {name!r}, which is not known; {near}")
    kind = imported(f"trackers names {name!r}", name)
    missing = [member for member in ("start", "record", "finish") if not hasattr(kind, member)]
    if not isinstance(kind, type) or missing:
        raise ConfigError(
            f"trackers names {name!r}, which has no {', '.join(missing)}, but must be a class with "
            "start, record and finish"
        )
    made: Tracker = kind()
    return made


def _needed(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"trackers names {extra!r}, which is not installed ({error}); "
            f"pip install 'fedadmm[{extra}]'"
        ) from None
