"""Runs whose penalty is too small end with a larger one to try."""

from __future__ import annotations

from typing import Any

import pytest

import fedadmm as fa
from fedadmm.run.penalty_advice import advice_on_penalty


def history(primal: list[float], dual: float, penalty: float = 0.01) -> Any:
    return [
        {"work": {"primal_residual": one, "dual_residual": dual, "penalty_mean": penalty}}
        for one in primal
    ]


FALLING = [2.0] * 5 + [1.5] * 5 + [1.2] * 5 + [1.0] * 5
GROWING = [2.0] * 5 + [1.5] * 5 + [1.8] * 5 + [2.0] * 5


def test_a_growing_and_unbalanced_residual_gives_advice() -> None:
    """The ratio is 2 / 0.02 = 100 in the last quarter, ten times what balancing allows."""
    advice = advice_on_penalty(history(GROWING, 0.02))
    assert advice is not None
    assert "0.01" in advice
    assert advice.endswith("try 0.1")


@pytest.mark.parametrize(
    ("primal", "dual"),
    [(FALLING, 0.02), (GROWING, 0.5), (GROWING[:12], 0.02), (GROWING, 0.0)],
    ids=["falling", "balanced", "short", "no duals"],
)
def test_other_runs_get_none(primal: list[float], dual: float) -> None:
    assert advice_on_penalty(history(primal, dual)) is None


@pytest.mark.parametrize(("rho", "small"), [(0.01, True), (0.1, False)])
def test_a_run_ends_with_the_advice(rho: float, small: bool) -> None:
    """Label-sorted clients, two epochs of Adam and full participation."""
    problem = fa.problems.load("digits", clients=50, partition="shards", model="mlp-64-32-10")
    local = {"solver": fa.Adam(lr=0.001, batch_size=10), "stop": fa.Epochs(2)}
    result = fa.simulate(fa.FedADMM(rho=rho), problem, 40, evaluate=False, **local)
    assert ("probably too small" in result.status) == small
    assert result.code == "completed"


def test_fedavg_gets_no_advice() -> None:
    problem = fa.problems.load("digits", clients=10, partition="shards", model="mlp-64-32-10")
    result = fa.simulate(fa.FedAvg(), problem, 20, solver=fa.SGD(0.1), evaluate=False)
    assert "penalty" not in result.status
