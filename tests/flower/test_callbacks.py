"""Callbacks at a deployed server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fedadmm as fa
from fedadmm.core.parts import part_of
from fedadmm.flower.server.run_recorder import RunRecorder
from fedadmm.flower.server.server_app import serve
from fedadmm.study import trackers  # noqa: F401
from fedadmm.study.run_dir import RunDir

from .harness import FakeGrid, federation

pytestmark = pytest.mark.usefixtures("quick")


@dataclass(frozen=True)
class Diary(fa.Callback):
    """Writes down every call."""

    lines: ClassVar[list[Any]] = []

    def begin(self, run: Any) -> Path:
        self.lines.append(run.state.round)
        return run.directory

    def round(self, report: Any, live: Path) -> None:
        self.lines.append(f"round {report.record['round']} in {live.name}")

    def end(self, summary: Any, live: Path) -> None:
        self.lines.append((summary["code"], summary.get("rounds")))


def test_they_look_at_the_rounds_of_a_server_and_of_its_successor(tmp_path: Path) -> None:
    settings = federation(fa.FedADMM(rho=1.0), rounds=2)
    Diary.lines.clear()
    serve(settings, FakeGrid(settings, tmp_path), tmp_path / "server", [Diary()])
    assert Diary.lines == [0, "round 1 in server", "round 2 in server", ("completed", 2)]
    longer = federation(fa.FedADMM(rho=1.0), rounds=3)
    Diary.lines.clear()

    def crash(report: Any) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        serve(longer, FakeGrid(longer, tmp_path), tmp_path / "server", [Diary(), crash])
    assert Diary.lines == [2, "round 3 in server", ("failed", None)]


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # of MLflow in SQLAlchemy
def test_trackers_of_a_configuration_record_the_rounds_of_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="the extra 'mlflow' is missing")
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    settings = federation(fa.FedADMM(rho=1.0), rounds=3, evaluate_every=1)
    chosen = (part_of("callback", "mlflow")(), part_of("callback", "tensorboard")())
    settings = replace(settings, experiment=replace(settings.experiment, callbacks=chosen))
    recorder, folder = RunRecorder(tmp_path / "server"), tmp_path / "server"
    serve(settings, FakeGrid(settings, tmp_path), folder, [recorder])
    losses = [record["metrics"]["loss"] for record in RunDir(folder).records()]
    client = tracking.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("fedadmm").experiment_id])
    assert found.info.status == "FINISHED"
    history = sorted(client.get_metric_history(found.info.run_id, "loss"), key=lambda p: p.step)
    assert [point.value for point in history] == losses
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses)


def test_one_that_measures_on_clients_states_is_refused(tmp_path: Path) -> None:
    settings = federation(fa.FedADMM(rho=1.0), rounds=2)
    with pytest.raises(
        fa.errors.CompatibilityError, match=r"^callbacks has 'diagnostics', which measures on"
    ):
        serve(settings, FakeGrid(settings, tmp_path), tmp_path / "server", [fa.Diagnostics()])
    assert not (tmp_path / "server").exists()
