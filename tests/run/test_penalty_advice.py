"""Runs whose penalty is too small end with a larger one to try."""

from __future__ import annotations

from statistics import fmean
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


def test_the_advised_penalty_keeps_the_local_models_closer_together() -> None:
    """Label-sorted clients, two epochs of Adam, full participation and a small penalty."""
    problem = fa.problems.load("digits", clients=50, partition="shards", model="mlp-64-32-10")
    given = {"solver": fa.Adam(lr=0.001, batch_size=10), "stop": fa.Epochs(2), "evaluate": False}
    small = fa.simulate(fa.FedADMM(rho=0.01), problem, 40, **given)
    tried = float(small.status.rpartition("try ")[2])
    assert tried > 0.01
    larger = fa.simulate(fa.FedADMM(rho=tried), problem, 40, **given)
    ends = [
        fmean(record["work"]["primal_residual"] for record in run.history[-10:])
        for run in (small, larger)
    ]
    assert ends[1] < 0.7 * ends[0]


def test_fedavg_gets_no_advice() -> None:
    problem = fa.problems.load("digits", clients=10, partition="shards", model="mlp-64-32-10")
    result = fa.simulate(fa.FedAvg(), problem, 20, solver=fa.SGD(0.1), evaluate=False)
    assert "penalty" not in result.status
