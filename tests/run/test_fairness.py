"""What a model is worth to every client: worst, percentile, spread, and where they are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core.errors import CompatibilityError
from fedadmm.run import evaluation as evaluating
from fedadmm.run.metrics import metric
from fedadmm.study.compare import compare, plan
from fedadmm.study.report.panels import sections
from fedadmm.study.report.summaries import final_metrics
from support.commands import SMALL, call, read_content as read
from support.rejections import naming
from support.resumable import problem, run as simulated


def losses(found: fa.Problem, params: torch.Tensor) -> np.ndarray:
    return np.array([float(client.value(params)) for client in found.clients])


@pytest.mark.parametrize("target", ["global", "local"])
def test_worst_percentile_and_spread_are_those_of_the_clients_own_losses(target: Any) -> None:
    chosen = problem()
    result = simulated(3, problem=chosen, evaluate=fa.Evaluation(target=target, clients=True))
    record = result.history[-1]
    values = np.array(record["clients"]["loss_by_client"])
    if target == "global":
        assert values == pytest.approx(losses(chosen, result.params), rel=1e-12)
        assert record["metrics"]["loss"] == pytest.approx(values.mean(), rel=1e-12)
    assert record["metrics"]["loss_mean"] == pytest.approx(values.mean(), rel=1e-12)
    assert record["metrics"]["loss_worst"] == values.max()
    assert record["metrics"]["loss_p90"] == pytest.approx(np.percentile(values, 90), rel=1e-12)
    assert record["metrics"]["loss_spread"] == pytest.approx(values.std(), rel=1e-12)


class Score:
    """A client's own held-out rows; one client has none."""

    def __init__(self, value: float | None) -> None:
        self._value = value

    def __call__(self, params: torch.Tensor) -> dict[str, float]:
        return {} if self._value is None else {"test_accuracy": self._value}


def test_more_is_better_for_accuracies_and_a_client_without_samples_is_left_out() -> None:
    base = problem()
    scores = [0.9, 0.5, None, 0.7, 0.8, 0.6, 1.0, 0.4]
    chosen = fa.Problem(
        list(base.clients), initial=base.initial, client_tests=[Score(one) for one in scores]
    )
    plain = fa.Evaluation(objective=False, clients=True)
    record = simulated(1, problem=chosen, evaluate=plain).history[0]
    known = np.array([one for one in scores if one is not None])
    assert record["clients"] == {"test_accuracy_by_client": scores}
    assert record["metrics"]["test_accuracy_worst"] == 0.4
    assert record["metrics"]["test_accuracy_p10"] == pytest.approx(np.percentile(known, 10))
    assert record["metrics"]["test_accuracy_spread"] == pytest.approx(known.std())
    assert "test_accuracy" not in record["metrics"]  # nobody asked for the mean


def test_asking_changes_no_other_number_and_many_clients_are_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = simulated(2).history[-1]["metrics"]
    monkeypatch.setattr(evaluating, "LISTED", 7)
    asked = simulated(2, evaluate=fa.Evaluation(clients=True)).history[-1]
    assert {name: asked["metrics"][name] for name in plain} == plain
    assert "clients" not in asked


def test_a_target_may_be_that_of_the_worst_client() -> None:
    free = simulated(6, evaluate=fa.Evaluation(clients=True)).history
    worst = [record["metrics"]["loss_worst"] for record in free]
    target = fa.Target("loss_worst", worst[3], at_least=False)
    first = next(i for i, one in enumerate(worst, 1) if one <= worst[3])
    ended = simulated(6, evaluate=fa.Evaluation(clients=True), target=target)
    assert (ended.code, len(ended.history)) == ("target", first)


def test_nothing_to_measure_by_client_is_rejected() -> None:
    with pytest.raises(CompatibilityError, match=naming("clients")):
        simulated(1, evaluate=fa.Evaluation(objective=False, clients=True))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("fair")
    tree = SMALL | {"rounds": 2, "evaluate": {"clients": True}, "seeds": [0, 1]}
    compare(plan(tree, ["fedavg", "fedadmm"]), folder)
    return folder


def test_the_report_has_a_panel_for_every_client_and_columns(comparison: Path) -> None:
    content = read(comparison)
    assert final_metrics(content)[-4:] == ["loss_mean", "loss_worst", "loss_p90", "loss_spread"]
    (section,) = [one for one in sections(content) if one.name == "fairness"]
    *curves, heat = section.panels
    assert [panel.title for panel in curves] == [
        "Loss, mean over the clients",
        "Loss, worst client",
        "Loss, 90th percentile of the clients",
        "Loss, spread over the clients",
    ]
    runs = [run for run in content.runs if run.label == "fedadmm"]
    mean = np.mean([run.columns.by_client["loss_by_client"] for run in runs], axis=0)
    assert heat.values[heat.rows.index("FedADMM")] == pytest.approx(mean, rel=1e-4)
    learning = next(one for one in sections(content) if one.name == "learning")
    assert not [panel for panel in learning.panels if "client" in panel.title]


def test_one_method_has_bars_and_the_terminal_has_columns(comparison: Path) -> None:
    content = read(comparison / "runs/fedadmm-seed0")
    (section,) = [one for one in sections(content) if one.name == "fairness"]
    values = content.runs[0].columns.by_client["loss_by_client"]
    assert section.panels[-1].kind == "bars"
    assert section.panels[-1].values == pytest.approx(values, rel=1e-4)
    told = call("compare", "--out", comparison, "--resume", "--no-report", "--jobs", "1")
    assert told.exit_code == 0, told.stderr
    assert "worst" in told.stdout


def test_the_spread_of_a_second_output_is_good_when_small_too() -> None:
    """`two-outputs` puts the output's name behind every metric."""
    look = fa.Evaluation(clients=True, train=True)
    result = simulated(1, evaluate=look, output=fa.outputs.TwoOutputs())
    name = "train_accuracy_spread_averaged"
    assert name in result.history[0]["metrics"]
    assert not metric(name).up
    assert metric("train_accuracy_worst_averaged").up
