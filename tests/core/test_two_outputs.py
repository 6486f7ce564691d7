"""Two models measured in one training: each as if it had been handed out alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedadmm as fa
from support.rejections import naming
from support.resumable import assert_continued, interrupted, run as resumable_run, untimed

METRICS = ("loss", "objective", "gradient_mapping")
BOTH = fa.outputs.TwoOutputs("last-iterate", "random-iterate")


def _metrics(history: list[dict[str, Any]], ending: str = "") -> list[list[float]]:
    return [[record["metrics"][name + ending] for name in METRICS] for record in history]


def test_each_output_is_measured_as_in_a_run_with_one_output() -> None:
    last = resumable_run(8, output=fa.outputs.LastIterate())
    drawn = resumable_run(8, output=fa.outputs.RandomIterate())
    assert _metrics(last.history) != _metrics(drawn.history)
    for handed, measured, alone, attachments in (
        ("last-iterate", "random-iterate", last, drawn),
        ("random-iterate", "last-iterate", drawn, last),
    ):
        result = resumable_run(8, output=fa.outputs.TwoOutputs(handed, measured))
        ending = "_" + measured.replace("-", "_")
        assert _metrics(result.history) == _metrics(alone.history)
        assert _metrics(result.history, ending) == _metrics(attachments.history)
        assert result.params.equal(alone.params)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_run_is_taken_up_with_both(kind: str, tmp_path: Path) -> None:
    for after in (2, 5):
        resume = interrupted(tmp_path / str(after), after, kind=kind, output=BOTH)
        assert_continued(resume(), resumable_run(8, output=BOTH), after)


def test_equal_and_unknown_outputs_are_rejected() -> None:
    with pytest.raises(
        fa.errors.ParameterError, match=naming("TwoOutputs measured 'last-iterate'")
    ):
        fa.outputs.TwoOutputs("last-iterate", "last-iterate")
    with pytest.raises(fa.errors.ParameterError, match=naming("TwoOutputs handed 'two-outputs'")):
        fa.outputs.TwoOutputs("two-outputs", "last-iterate")


def test_a_run_may_wait_for_both_to_reach_the_target() -> None:
    plain = resumable_run(30, output=BOTH)
    curve = [record["metrics"]["loss"] for record in plain.history]
    other = [record["metrics"]["loss_random_iterate"] for record in plain.history]
    pairs = list(zip(curve, other, strict=True))
    goal, first, both = next(
        (goal, hits[0], met[0])
        for goal in sorted(curve, reverse=True)
        if (hits := [i for i, value in enumerate(curve) if value <= goal])
        and (met := [i for i, pair in enumerate(pairs) if max(pair) <= goal])
        and met[0] > hits[0]  # or the test would not see a difference
    )
    target = fa.Target("loss", goal, at_least=False)
    waiting = fa.Target("loss", goal, at_least=False, also=("loss_random_iterate",))
    assert len(resumable_run(30, output=BOTH, target=target).history) == first + 1
    ended = resumable_run(30, output=BOTH, target=waiting)
    assert len(ended.history) == both + 1
    assert ended.code == "target"
    assert untimed(ended.history) == untimed(plain.history[: both + 1])


def test_a_target_of_a_metric_that_is_not_measured_is_rejected() -> None:
    target = fa.Target("loss", 0.0, at_least=False, also=("loss_averaged",))
    with pytest.raises(fa.errors.ParameterError, match=naming("target 'loss_averaged'")):
        resumable_run(3, output=BOTH, target=target)


def test_the_average_moves_by_a_share_of_the_way_to_the_participants_mean() -> None:
    thetas: list[Any] = []
    method = fa.FedDyn(2.0)
    result = resumable_run(
        12,
        algorithm=method,
        output=fa.outputs.Averaged(),
        keep_trajectory=True,
        callbacks=[lambda report: thetas.append(method.participants_mean(report.state.server))],
    )
    average = None
    for number, (mean, handed) in enumerate(zip(thetas, result.trajectory, strict=True), 1):
        share = min(1.0, 9 / (number + 8))
        average = mean if average is None else (1 - share) * average + share * mean
        assert handed.numpy() == pytest.approx(average.numpy(), abs=1e-12)


@pytest.mark.parametrize("method", [fa.FedDyn(2.0), fa.FedDyn(2.0, members="seen"), fa.AdaBest()])
def test_the_participants_mean_is_the_mean_of_what_they_solved(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved: list[Any] = []
    update = type(method).client_update

    def noted(self: Any, cast: Any, client: Any, result: Any) -> Any:
        solved.append(result.params.clone())
        return update(self, cast, client, result)

    monkeypatch.setattr(type(method), "client_update", noted)
    result = resumable_run(
        6,
        algorithm=method,
        output=fa.outputs.ParticipantsMean(),
        keep_trajectory=True,
        engine="sequential",
    )
    assert len(solved) == 6 * 3
    for number, handed in enumerate(result.trajectory):
        mean = sum(solved[3 * number : 3 * number + 3]) / 3
        assert handed.numpy() == pytest.approx(mean.numpy(), abs=1e-12)


@pytest.mark.parametrize("output", [fa.outputs.Averaged(), fa.outputs.TwoOutputs()])
def test_an_average_is_taken_up_where_it_was(output: Any, tmp_path: Path) -> None:
    resume = interrupted(tmp_path, 3, kind="memory", output=output)
    assert_continued(resume(), resumable_run(8, output=output), 3)
