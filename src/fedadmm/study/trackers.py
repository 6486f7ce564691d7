"""Trackers: callbacks that write a run into TensorBoard, MLflow or Weights & Biases.

A tracker gets the configuration once, every record, and the summary.  Its files lie in the run
directory unless the tool's own environment variables say otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from fedadmm.core import atomic_files, clock
from fedadmm.core.config_tree import flattened
from fedadmm.core.errors import ConfigError
from fedadmm.core.parts import part
from fedadmm.run.callbacks import Callback, Run
from fedadmm.run.record import numbers
from fedadmm.run.state import RoundReport


@part("callback", "tensorboard")
class TensorBoard(Callback):
    """Event files for `tensorboard --logdir RUN` (the extra `tensorboard`)."""

    def begin(self, run: Run) -> Any:
        module = _needed("torch.utils.tensorboard", "tensorboard")
        folder = str(_place(run, "tensorboard") / "tensorboard")
        return module.SummaryWriter(folder, purge_step=max(0, run.state.round) + 1)

    def round(self, report: RoundReport, live: Any) -> None:
        for key, value in numbers(report.record).items():
            live.add_scalar(key, value, report.record["round"])

    def end(self, summary: Mapping[str, Any], live: Any) -> None:
        live.close()


@part("callback", "mlflow")
class MLflow(Callback):
    """An MLflow run in RUN/mlflow.db (SQLite), or wherever MLFLOW_TRACKING_URI points.

    A resumed run continues the MLflow run that RUN/mlflow.run names.
    """

    def begin(self, run: Run) -> Any:
        tracking = _needed("mlflow.tracking", "mlflow")
        place = _place(run, "mlflow")
        given = os.environ.get("MLFLOW_TRACKING_URI")
        client = tracking.MlflowClient(given or f"sqlite:///{place / 'mlflow.db'}")
        kept = place / "mlflow.run"
        number = None if run.state.round < 1 else _continued(client, kept)
        if number is not None:
            return client, number
        found = client.get_experiment_by_name("fedadmm")
        artifacts = None if given else (place / "mlflow").as_uri()  # not where one happens to stand
        experiment = (
            found.experiment_id
            if found
            else client.create_experiment("fedadmm", artifact_location=artifacts)
        )
        number = client.create_run(experiment, run_name=place.name).info.run_id
        atomic_files.write(kept, number.encode())
        param = _needed("mlflow.entities", "mlflow").Param
        about = [param(key, str(value)[:500]) for key, value in flattened(run.config).items()]
        for begin in range(0, len(about), 100):  # as many as MLflow takes at once
            client.log_batch(number, params=about[begin : begin + 100])
        return client, number

    def round(self, report: RoundReport, live: Any) -> None:
        client, number = live
        metric = _needed("mlflow.entities", "mlflow").Metric
        now = round(1000 * datetime.fromisoformat(clock.timestamp()).timestamp())
        step = report.record["round"]
        found = [metric(key, value, now, step) for key, value in numbers(report.record).items()]
        client.log_batch(number, metrics=found)  # one transaction a round

    def end(self, summary: Mapping[str, Any], live: Any) -> None:
        client, number = live
        known = {"diverged": "FAILED", "failed": "FAILED", "interrupted": "KILLED"}
        status = known.get(str(summary["code"]), "FINISHED")
        client.set_terminated(number, status)


def _continued(client: Any, kept: Path) -> str | None:
    """Return the MLflow run of a resumed run, which runs again; None if the tool has none."""
    number = (atomic_files.read_if_there(kept) or b"").decode()
    try:
        client.update_run(number, status="RUNNING")
    except _needed("mlflow.exceptions", "mlflow").MlflowException:
        return None
    return number


@part("callback", "wandb")
class WeightsAndBiases(Callback):
    """A run of Weights & Biases in RUN/wandb, offline until `wandb sync`, or as WANDB_MODE says."""

    def begin(self, run: Run) -> Any:
        place = _place(run, "wandb")
        return _needed("wandb", "wandb").init(
            project=os.environ.get("WANDB_PROJECT", "fedadmm"),
            name=place.name,
            group=place.name,
            dir=str(place),
            config=dict(run.config),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def round(self, report: RoundReport, live: Any) -> None:
        live.log(numbers(report.record), step=report.record["round"])

    def end(self, summary: Mapping[str, Any], live: Any) -> None:
        keys = ("code", "status", "rounds", "best", "rounds_to_target")
        live.summary.update({key: summary[key] for key in keys if key in summary})
        failed = summary["code"] in ("diverged", "failed", "interrupted")
        live.finish(exit_code=int(failed))


def _place(run: Run, extra: str) -> Path:
    """The run directory, absolute."""
    if run.directory is None:
        raise ConfigError(
            f"callbacks names {extra!r}, which writes into a run directory, but this run has none; "
            "give simulate(directory=...), or use `fedadmm run`"
        )
    return run.directory.resolve()


def _needed(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"callbacks names {extra!r}, which is not installed ({error}); "
            f"pip install 'fedadmm[{extra}]'"
        ) from None
