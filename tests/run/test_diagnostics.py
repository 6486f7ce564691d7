"""Diagnostics: numbers against hand calculations, silence when all is well, causes when not."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.data import problems
from fedadmm.run.checkpoint import Checkpoints
from support.federations import WEIGHTS, Federation, federation, run, snapshots, stacked
from support.rejections import naming

EVERYBODY: dict[str, Any] = {"evaluate": False, "callbacks": [fa.Diagnostics(1, clients=0)]}
METHODS = {
    "FedADMM": fa.FedADMM(9.0),
    "FedADMM-In": fa.FedADMMIn(9.0),
    "FedDR": fa.FedDR(1 / 9.0),
    "FedDR-II": fa.FedDRII(1 / 9.0),
}


def states(name: str, clients: list[Any]) -> tuple[Any, Any]:
    """w and y of all clients, from the variables of each method (rho = 9)."""
    if name.startswith("FedADMM"):
        return stacked([c.w for c in clients]), stacked([c.y for c in clients])
    x = stacked([c.x for c in clients])
    if name == "FedDR":
        return x, 9.0 * (x - stacked([c.v for c in clients]))
    return x, 9.0 * stacked([c.w for c in clients])


@pytest.mark.parametrize("name", METHODS)
def test_every_quantity_by_hand(name):
    rho, lam = 9.0, 0.3
    given = federation(61, weights=WEIGHTS, regularizer=fa.L1(lam))
    options = {"sampler": fa.UniformSampling(2), "seed": 3}
    shots = snapshots(METHODS[name], given, 8, **options)
    looked = run(METHODS[name], given, 8, **EVERYBODY, **options)
    for shot, record in zip(shots, looked.history, strict=True):
        theta = shot.theta.numpy()
        w, y = states(name, shot.clients)
        slopes = [given.gradient(i, w[i]) + y[i] for i in range(5)]
        stationarity = given.a @ [s @ s for s in slopes]
        consensus = given.a @ np.sum((w - theta) ** 2, 1)
        inner = theta + given.a @ y
        prox = np.sign(inner) * np.maximum(np.abs(inner) - lam, 0)
        dual_sum = np.sum((theta - prox) ** 2)
        values = [w[i] @ given.A[i] @ w[i] / 2 - given.b[i] @ w[i] for i in range(5)]
        terms = [y[i] @ (w[i] - theta) + rho / 2 * np.sum((w[i] - theta) ** 2) for i in range(5)]
        lagrangian = given.a @ (np.array(values) + terms) + lam * np.abs(theta).sum()
        assert record["callbacks"]["stationarity"] == pytest.approx(math.sqrt(stationarity))
        assert record["callbacks"]["consensus"] == pytest.approx(math.sqrt(consensus))
        assert record["callbacks"]["dual_sum"] == pytest.approx(math.sqrt(dual_sum))
        assert record["callbacks"]["kkt_residual"] == pytest.approx(
            math.sqrt(stationarity + consensus + dual_sum)
        )
        assert record["callbacks"]["lagrangian"] == pytest.approx(lagrangian)
        norms = np.linalg.norm(y, axis=1)
        assert record["callbacks"]["dual_norm"] == pytest.approx(norms.mean())
        assert record["callbacks"]["dual_norm_max"] == pytest.approx(norms.max())
        assert record["callbacks"].get("mean_drift", 0.0) < 1e-12


@pytest.mark.parametrize("name", [*METHODS, "FedADMM off the mean"])
def test_gongs_measure_by_hand_without_knowing_anything_of_the_problem(name):
    """With a numeric step the gradient in theta, which tracking keeps at zero, counts too."""
    given = federation(66)
    options = {"sampler": fa.UniformSampling(2), "seed": 3}
    method = METHODS.get(name, fa.FedADMM(9.0, step=0.9))
    shots = snapshots(method, given, 8, **options)
    looked = run(method, given, 8, **EVERYBODY, **options)
    assert given.problem.facts == fa.Facts()
    for shot, record in zip(shots, looked.history, strict=True):
        theta = shot.theta.numpy()
        w, y = states(name, shot.clients)
        pulls = y + 9.0 * (w - theta)
        slopes = [given.gradient(i, w[i]) + pulls[i] for i in range(5)]
        V = np.sum(pulls.sum(0) ** 2) + np.sum(np.square(slopes)) + np.sum((w - theta) ** 2)
        assert record["callbacks"]["gong_v"] == pytest.approx(V / 5, rel=1e-9)


@pytest.mark.parametrize("changed", [{"weights": WEIGHTS}, {"regularizer": fa.L1(0.1)}])
def test_gongs_measure_is_left_out_where_it_is_not_defined(changed):
    looked = run(fa.FedADMM(9.0), federation(67, **changed), 2, **EVERYBODY)
    assert "gong_v" not in looked.history[0]["callbacks"]
    assert "lagrangian" in looked.history[0]["callbacks"]


@pytest.mark.parametrize("step", [0.9, fa.schedules.Piecewise({0: 0.9})])
def test_a_lost_mean_shows_as_drift(step):
    given = federation(62)
    options = {"sampler": fa.UniformSampling(2), "seed": 1}
    method = fa.FedADMM(9.0, step=step)
    result = run(method, given, 5, **EVERYBODY, **options)
    (warning,) = result.history[0]["callbacks"]["warnings"]
    assert "away from the mean of its clients" in warning
    assert warning.endswith(
        "likely cause: step 0.9 is more than the share 0.4 of the clients that replied, so that "
        "the server leaves their mean; use 'tracking'"
    )


@pytest.mark.parametrize("name", METHODS)
def test_within_the_theorems_conditions_the_lagrangian_falls_and_nothing_is_warned_of(name):
    given = federation(63)  # L is at most 3
    sampler = fa.UniformSampling(2)
    result = run(METHODS[name], given, 120, **EVERYBODY, sampler=sampler, seed=2)
    assert not [record for record in result.history if "warnings" in record["callbacks"]]
    values = [record["callbacks"]["lagrangian"] for record in result.history]
    heard = accumulate((set(record["cohort"]["clients"]) for record in result.history), set.union)
    start = [len(seen) for seen in heard].index(given.clients)
    assert all(b <= a + 1e-9 for a, b in zip(values[start:], values[start + 1 :], strict=False))
    assert (
        result.history[-1]["callbacks"]["kkt_residual"]
        < 1e-3 * result.history[0]["callbacks"]["kkt_residual"]
    )


def tilted(concave: float = -0.9) -> Federation:
    """Scalar quadratics of which two are concave, as in the tests of certificates; L = 1."""
    A = np.array([1.0, 1.0, concave, concave + 0.2]).reshape(4, 1, 1)
    b = np.array([0.0, 0.0, 1.0, -1.0]).reshape(4, 1)
    clients = [fa.Quadratic(torch.from_numpy(A[i]), torch.from_numpy(b[i])) for i in range(4)]
    return Federation(A, b, np.full(4, 0.25), np.ones(1), fa.Problem(clients))


def warned(result: fa.Result) -> list[str]:
    return [text for record in result.history for text in record["callbacks"].get("warnings", [])]


def test_a_penalty_that_is_too_small_is_named_before_the_loss_explodes():
    result = run(fa.FedADMM(1 / 0.7), tilted(), 60, **EVERYBODY)
    first = next(r["round"] for r in result.history if "warnings" in r["callbacks"])
    thetas = [abs(float(theta)) for theta in result.trajectory]
    assert thetas[first - 1] < 1e-2 * max(thetas)
    assert any("the augmented Lagrangian rose from" in text for text in warned(result))
    assert all(
        "likely cause: the penalty 1.43 is small for the curvature 1 at client" in text
        for text in warned(result)
    )


def test_a_learning_rate_that_is_too_large_is_named():
    """GD on f_i + rho/2: stable below 2/(L + rho); the steepest client has a curvature near 3."""
    given = federation(64)
    for lr in (0.25, [0.25] * given.clients, fa.schedules.Piecewise({0: 0.25})):
        options = {"solver": fa.GradientDescent(lr), "stop": fa.Steps(5)}
        result = run(fa.FedADMM(9.0), given, 8, **EVERYBODY, **options)
        assert any(
            "likely cause: the learning rate 0.25 is above 2/(L + rho)" in t for t in warned(result)
        )
    calm = {"solver": fa.GradientDescent(lr=0.08), "stop": fa.Steps(5)}
    assert not warned(run(fa.FedADMM(9.0), given, 8, **EVERYBODY, **calm))


def test_some_clients_every_few_rounds():
    problem = problems.load("saturating", clients=20, dimension=3)
    look = [fa.Diagnostics(4, clients=3)]
    options = {"solver": fa.GradientDescent(0.1), "stop": fa.Steps(3), "callbacks": look}
    result = fa.simulate(fa.FedADMM(8.0), problem, 12, **options)
    found = [record["round"] for record in result.history if "callbacks" in record]
    assert found == [4, 8, 12]
    record = result.history[3]
    assert not {"lagrangian", "dual_sum", "mean_drift"} & record["callbacks"].keys()
    assert record["callbacks"]["kkt_residual"] == pytest.approx(
        math.hypot(record["callbacks"]["stationarity"], record["callbacks"]["consensus"])
    )
    assert record["clock"]["diagnostics_seconds"] > 0


def test_a_resumed_run_compares_with_what_it_saw_before(tmp_path):
    given, method = tilted(), fa.FedADMM(1 / 0.7)
    whole = run(method, given, 30, **EVERYBODY)
    saved = Checkpoints(tmp_path, every=4)
    run(method, given, 12, **EVERYBODY, checkpoints=saved)
    rest = run(method, given, 30, **EVERYBODY, checkpoints=saved, resume=True)
    assert [r["callbacks"].get("warnings") for r in rest.history] == [
        r["callbacks"].get("warnings") for r in whole.history[12:]
    ]


@pytest.mark.parametrize("method", [fa.AlignedADMM(1.0), fa.AFedPD(1.0)])
def test_clients_that_move_while_they_are_absent_are_rejected(method):
    name = type(method).__name__
    with pytest.raises(
        fa.errors.CompatibilityError,
        match=naming(f"{name} FedADMM"),
    ):
        run(method, federation(65), 1, **EVERYBODY)


def test_methods_without_duals_are_rejected():
    with pytest.raises(
        fa.errors.CompatibilityError,
        match=naming("FedAvg FedADMM FedADMMIn"),
    ):
        run(fa.FedAvg(), federation(65), 1, **EVERYBODY)
