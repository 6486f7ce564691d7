"""What trackers and exports hold is what metrics.jsonl holds."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import fedadmm as fa
from fedadmm.core.config_tree import flattened
from fedadmm.core.errors import ConfigError, DataError
from fedadmm.study.config import resolve
from fedadmm.study.export import export
from fedadmm.study.run_dir import RunDir
from fedadmm.study.single_run import run
from support.commands import SMALL


def losses(directory: Path) -> list[float]:
    return [record["metrics"]["loss"] for record in RunDir(directory).records()]


def test_tensorboard_holds_every_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(resolve(SMALL | {"callbacks": [{"name": "tensorboard"}]}), tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    assert [step for step, _ in found] == [1, 2, 3, 4]
    assert [value for _, value in found] == pytest.approx(losses(tmp_path))


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # of MLflow in SQLAlchemy
def test_mlflow_holds_parameters_metrics_and_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="the extra 'mlflow' is missing")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run(resolve(SMALL | {"callbacks": [{"name": "mlflow"}]}), tmp_path)
    client = tracking.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fedadmm")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["algorithm.rho"] == "1.0"
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [point.value for point in sorted(history, key=lambda p: p.step)] == losses(tmp_path)


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # of MLflow in SQLAlchemy
def test_a_resumed_run_continues_its_mlflow_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="the extra 'mlflow' is missing")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tree = SMALL | {"callbacks": [{"name": "mlflow"}]}

    def found() -> list[Any]:
        client = tracking.MlflowClient(f"sqlite:///{tmp_path / 'run/mlflow.db'}")
        experiment = client.get_experiment_by_name("fedadmm").experiment_id
        return [
            (one.info.status, [p.step for p in client.get_metric_history(one.info.run_id, "loss")])
            for one in client.search_runs([experiment])
        ]

    interrupt = {"name": "support.commands:Interrupter"}
    with pytest.raises(KeyboardInterrupt):
        run(resolve(tree | {"callbacks": [*tree["callbacks"], interrupt]}), tmp_path / "run")
    assert found() == [("KILLED", [1, 2, 3])]
    run(resolve(tree), tmp_path / "run", resume=True)
    assert found() == [("FINISHED", [1, 2, 3, 4])]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    run(resolve(tree | {"rounds": 6}), tmp_path / "run", resume=True)  # the other server has none
    client = tracking.MlflowClient(f"sqlite:///{tmp_path / 'other.db'}")
    assert len(client.search_runs([client.get_experiment_by_name("fedadmm").experiment_id])) == 1


def steps_of(path: Path) -> list[tuple[int, float]]:
    """The rounds of a Weights & Biases file, each with its loss."""
    from wandb.proto.wandb_internal_pb2 import Record as Entry
    from wandb.sdk.internal.datastore import DataStore

    store, found = DataStore(), []
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
        entry = Entry()
        entry.ParseFromString(data)
        items = {(i.key or i.nested_key[0]): i.value_json for i in entry.history.item}
        if "loss" in items:
            found.append((entry.history.step.num, json.loads(items["loss"])))
    store.close()
    return found


def test_weights_and_biases_holds_every_round_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="the extra 'wandb' is not installed")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    run(resolve(SMALL | {"callbacks": [{"name": "wandb"}]}), tmp_path)
    wandb.teardown()  # ends the process that writes the file
    (path,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert steps_of(path) == list(zip([1, 2, 3, 4], losses(tmp_path), strict=True))


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (
            [{"name": "tensorbord"}],
            r"^callbacks\[0\].name is 'tensorbord', .*did you mean tensor",
        ),
        ([{"name": "no.such.module:Thing"}], "cannot be imported"),
        (["tensorboard"], r"^callbacks\[0\]: got 'tensorboard', expected a table whose name is"),
        ([{"name": "diagnostics"}] * 2, "^callbacks: got 'diagnostics' twice"),
    ],
)
def test_what_is_no_callback_is_refused(callbacks: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(SMALL | {"callbacks": callbacks})


@pytest.mark.parametrize(
    "tracker", [fa.trackers.TensorBoard(), fa.trackers.MLflow(), fa.trackers.WeightsAndBiases()]
)
def test_a_tracker_needs_a_run_directory(tracker: fa.Callback) -> None:
    problem = resolve(SMALL).load_problem()
    with pytest.raises(ConfigError, match=r"writes into a run directory, but this run has none"):
        fa.simulate(fa.FedADMM(1.0), problem, 1, solver=fa.ExactSolver(), callbacks=[tracker])


def test_tables_become_dotted_keys() -> None:
    assert flattened({"a": {"b": {"c": 1}}, "d": [2]}) == {"a.b.c": 1, "d": [2]}


def test_csv_holds_every_round_of_every_run(tmp_path: Path) -> None:
    for seed in (0, 1):
        run(resolve(SMALL | {"seed": seed}), tmp_path / f"seed{seed}")
    path, rows = export(tmp_path, "csv")
    assert rows == 8
    with path.open(encoding="utf-8", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [float(row["loss"]) for row in table if row["run"] == "seed1"] == losses(
        tmp_path / "seed1"
    )
    assert {row["seed"] for row in table} == {"0", "1"}


def test_csv_holds_no_formula(tmp_path: Path) -> None:
    cells = ["=cmd|' /C calc'!A0", "+1", "-1+2", "@SUM(A1)", "\tx", "plain", "a=b"]
    for index, label in enumerate(cells):
        run(resolve(SMALL | {"rounds": 1}), tmp_path / str(index), label=label)
    metrics = tmp_path / "0/metrics.jsonl"
    record = json.loads(metrics.read_text())
    metrics.write_text(json.dumps(record | {"metrics": {"loss": -1.5, "=evil": 1.0}}) + "\n")
    path, _ = export(tmp_path, "csv")
    with path.open(encoding="utf-8", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [row["label"] for row in table] == [f"'{cell}" for cell in cells[:5]] + cells[5:]
    assert table[0]["loss"] == "-1.5"  # a number is no formula
    assert "'=evil" in table[0]


def test_a_run_without_a_configuration_is_exported(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"round": 1, "metrics": {"loss": 2.0}}\n')
    assert export(tmp_path, "csv")[1] == 1


def test_json_lines_keep_lists_and_numbers(tmp_path: Path) -> None:
    run(resolve(SMALL), tmp_path)
    path, _ = export(tmp_path, "jsonl", tmp_path / "out.jsonl")
    table = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["loss"] for row in table] == losses(tmp_path)
    assert [row["clients"] for row in table] == [
        record["cohort"]["clients"] for record in RunDir(tmp_path).records()
    ]


def test_exports_refuse_other_formats_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--format"):
        export(tmp_path, "xlsx")
    with pytest.raises(DataError, match="holds no run with any round yet"):
        export(tmp_path, "csv")
    with pytest.raises(DataError, match="no such folder"):
        export(tmp_path / "nowhere", "csv")
