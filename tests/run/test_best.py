"""The best model of a run: which round's it is, that it survives, and when waiting for it ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fedadmm as fa
from fedadmm.core import codec
from fedadmm.core.errors import ParameterError
from fedadmm.core.outputs import Iterate
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.experiment import Experiment
from fedadmm.run.metrics import ModelSelector
from fedadmm.run.stores import params_sha256
from fedadmm.study.config import resolve
from fedadmm.study.run_dir import RunDir
from fedadmm.study.single_run import run
from support.commands import SMALL
from support.records import made
from support.rejections import naming
from support.resumable import run as simulated


class Scores:
    """An evaluator that says these numbers, one a measurement."""

    def __init__(self, values: list[float], name: str = "score") -> None:
        self._left: Iterator[float] = iter(values)
        self._name = name

    def __call__(self, params: torch.Tensor) -> dict[str, float]:
        return {self._name: next(self._left)}


def scored(values: list[float], name: str = "score", **options: Any) -> fa.Result:
    every = options.pop("every", 1)
    evaluation = fa.Evaluation(every, objective=False, test=False, extra=Scores(values, name))
    rounds = options.pop("rounds", len(values) * every)
    return simulated(rounds, keep_trajectory=True, evaluate=evaluation, **options)


@pytest.mark.parametrize(
    ("name", "values", "best"),
    [
        ("score", [1.0, 3.0, 2.0, 3.0], 4),  # of equals without a loss the last
        ("my_loss", [4.0, 2.0, 5.0, 1.0], 4),
        ("my_loss", [4.0, math.nan, 5.0, 4.5], 1),
        ("score", [math.nan, -1.0, math.nan, -2.0], 2),
    ],
)
def test_the_best_round_is_kept_with_its_model(name: str, values: list[float], best: int) -> None:
    result = scored(values, name)
    assert result.best is not None
    assert (result.best.metric, result.best.round) == (name, best)
    assert result.best.value == values[best - 1]
    assert torch.equal(result.best.model.params, result.trajectory[best - 1])
    assert torch.equal(result.params, result.trajectory[-1])


@pytest.mark.parametrize(
    ("accuracies", "losses", "best"),
    [
        ([0.5, 0.5, 0.5], [3.0, 1.0, 2.0], 2),
        ([0.5, 0.5, 0.5], [1.0, 2.0, 1.0], 3),
        ([0.5, 0.6, 0.5], [3.0, 2.0, 1.0], 2),
        ([0.5, 0.5, 0.4], [2.0, math.nan, 1.0], 2),
    ],
)
def test_ties_are_broken_by_the_loss_and_then_by_the_later_round(
    accuracies: list[float], losses: list[float], best: int
) -> None:
    judge, found = ModelSelector(), None
    for number, (accuracy, loss) in enumerate(zip(accuracies, losses, strict=True), 1):
        record: Any = made(number, test_accuracy=accuracy, test_loss=loss)
        found = judge.update(found, record, Iterate(torch.tensor([float(number)])))
    assert found is not None
    assert (found.round, found.model.params.tolist()) == (best, [float(best)])
    assert found.value == max(accuracies)
    assert found.since == 3 - 1 - accuracies.index(max(accuracies))  # equals are no better


def test_a_target_specifies_metric_and_direction() -> None:
    up = fa.Target("my_loss", 100.0)  # upside down, but that is what it says
    result = scored([4.0, 9.0, 5.0], "my_loss", target=up)
    assert result.best is not None
    assert result.best.round == 2


def test_nothing_measured_has_no_best() -> None:
    assert simulated(2, evaluate=False).best is None


@pytest.mark.parametrize(("every", "patience", "ends"), [(1, 1, 3), (1, 2, 4), (2, 2, 8)])
def test_patience_counts_measurements_without_a_better_one(
    every: int, patience: int, ends: int
) -> None:
    """1 3 | 2 2 …: the best is the second."""
    result = scored([1.0, 3.0, 2.0, 2.0, 3.0], every=every, patience=patience)
    assert (len(result.history), result.code) == (ends, "patience")
    several = "measurements" if patience > 1 else "measurement"
    assert result.status == f"{patience} {several} without a better score than 3 of round " + str(
        2 * every
    )


def test_a_better_one_in_time_starts_the_count_again_and_the_last_round_completes() -> None:
    result = scored([1.0, 3.0, 2.0, 2.0, 5.0, 4.0, 5.0, 5.0], patience=3)
    assert (len(result.history), result.code) == (8, "completed")


def test_patience_without_a_measured_metric_is_rejected() -> None:
    with pytest.raises(ParameterError, match=naming("patience 2")):
        simulated(3, evaluate=False, patience=2)
    with pytest.raises(ParameterError, match=naming("patience 0")):
        scored([1.0], patience=0)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_resumed_run_remembers_the_best_and_how_long_it_waited(tmp_path: Path, cut: int) -> None:
    values = [1.0, 3.0, 2.0, 2.0, 2.5, 9.0]
    whole = scored(values, patience=3)
    checkpoints = Checkpoints(tmp_path, 1)
    scored(values[:cut], checkpoints=checkpoints, rounds=cut)
    rest = scored(values[cut:], checkpoints=checkpoints, rounds=6, resume=True, patience=3)
    assert (rest.code, rest.status) == (whole.code, whole.status)
    assert rest.code == "patience"
    assert rest.best is not None
    assert whole.best is not None
    assert torch.equal(rest.best.model.params, whole.best.model.params)
    over = scored([], checkpoints=checkpoints, rounds=6, resume=True, patience=3)
    assert (over.code, len(over.history)) == ("patience", 0)
    longer = scored([9.0], checkpoints=checkpoints, rounds=6, resume=True, patience=4)
    assert (longer.code, longer.best and longer.best.round) == ("completed", 6)


def test_a_resumed_run_remembers_the_loss_of_the_best(tmp_path: Path) -> None:
    class Both(Scores):
        def __call__(self, params: torch.Tensor) -> dict[str, float]:
            return {"test_accuracy": 0.5, "test_loss": next(self._left)}

    checkpoints = Checkpoints(tmp_path, 1)
    for rounds, losses in ((2, [3.0, 1.0]), (4, [2.0, 1.5])):
        evaluation = fa.Evaluation(1, objective=False, test=False, extra=Both(losses))
        options = {"checkpoints": checkpoints, "resume": rounds > 2}
        result = simulated(rounds, keep_trajectory=True, evaluate=evaluation, **options)
    assert result.best is not None
    assert (result.best.round, result.best.loss) == (2, 1.0)


def small(**changes: Any) -> Experiment:
    """Falls, then oscillates: the best round is the third, not the last."""
    solver = {"name": "gradient-descent", "lr": 0.9}
    return resolve(
        SMALL
        | {
            "local": {"solver": solver, "stop": {"name": "steps", "steps": 1}, "start": "own"},
            "rounds": 6,
        }
        | changes
    )


def kept(directory: Path) -> tuple[int, list[float]]:
    """The round that summary.json says, and the losses of all rounds."""
    folder = RunDir(directory)
    told = folder.summary()["best"]
    losses = [record["metrics"]["objective"] for record in folder.records()]
    assert told["metric"] == "objective"
    assert told["value"] == losses[told["round"] - 1]
    return told["round"], losses


def loss_of(chosen: Experiment, params: torch.Tensor) -> float:
    return float(chosen.load_problem().value(params.double()))


@pytest.mark.parametrize("every", [0, 2])
def test_the_run_directory_keeps_the_best_model_and_the_last(tmp_path: Path, every: int) -> None:
    chosen = small(checkpoint={"every": every})
    summary = run(chosen, tmp_path)
    number, losses = kept(tmp_path)
    assert number == losses.index(min(losses)) + 1 == 3
    folder = RunDir(tmp_path)
    assert loss_of(chosen, folder.model().params) == pytest.approx(min(losses), rel=1e-5)
    assert loss_of(chosen, folder.model(last=True).params) == pytest.approx(losses[-1], rel=1e-5)
    assert params_sha256(folder.model(last=True).params) == summary["params_sha256"]


def test_a_last_model_that_is_the_best_is_kept_once(tmp_path: Path) -> None:
    run(small(rounds=3), tmp_path)
    assert kept(tmp_path)[0] == 3
    assert set(codec.read(tmp_path / "model.safetensors").tensors) == {"params"}
    run(small(rounds=4), tmp_path / "on")
    names = set(codec.read(tmp_path / "on/model.safetensors").tensors)
    assert names == {"params", "last.params"}


def test_a_run_that_diverges_or_is_interrupted_leaves_its_best(tmp_path: Path) -> None:
    steep = {"name": "gradient-descent", "lr": 30.0}
    wild = small(local={"solver": steep, "stop": {"name": "steps", "steps": 1}}, rounds=30)
    assert run(wild, tmp_path / "wild")["code"] == "diverged"
    number, losses = kept(tmp_path / "wild")
    assert losses[number - 1] == min(losses)
    found = loss_of(wild, RunDir(tmp_path / "wild").model().params)
    assert found == pytest.approx(min(losses), rel=1e-5)

    def press(report: Any) -> None:
        if report.record["round"] == 5:
            raise KeyboardInterrupt

    chosen = small()
    whole = run(chosen, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(chosen, tmp_path / "cut", callbacks=[press])
    number, losses = kept(tmp_path / "cut")
    assert losses[number - 1] == min(losses)
    assert run(chosen, tmp_path / "cut", resume=True)["best"] == whole["best"]
    ends = [RunDir(tmp_path / name).model().params for name in ("whole", "cut")]
    assert torch.equal(*ends)


def test_patience_of_a_configuration_may_change_on_the_way(tmp_path: Path) -> None:
    target = {"metric": "loss", "value": -1.0, "at_least": True, "end_run": False}
    falling = {"target": target, "sampler": {"name": "full"}, "local": SMALL["local"]}
    short = run(small(**falling, patience=1), tmp_path)  # never a better one, at least
    assert (short["code"], short["rounds"], short["best"]["round"]) == ("patience", 2, 1)
    assert run(small(**falling, patience=1), tmp_path, resume=True) == short
    longer = run(small(**falling, patience=2), tmp_path, resume=True)
    assert (longer["code"], longer["rounds"]) == ("patience", 3)
