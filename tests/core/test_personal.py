"""What clients keep for themselves: Ditto's models and own layers, against numpy.

Each on every engine and through an interruption; a deployed run is in tests/flower.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.core.objectives import losses
from fedadmm.core.objectives.flat import FlatModule
from support import resumable
from support.engines import ALGORITHMS, PROBLEMS, assert_same_run, run
from support.federations import WEIGHTS, Array, assert_same, federation, run as run_quadratics
from support.rejections import naming

LR, STEPS, WEIGHT, RHO, ROUNDS = 0.05, 4, 0.7, 1.3, 12
COHORTS = fa.UniformSampling(2)
DITTO = fa.Ditto(WEIGHT)
HEAD = fa.PersonalLayers(["2.*"])
PERSONAL = {"ditto": DITTO, "layers": HEAD}


def ditto(given) -> tuple[Array, dict[int, Array]]:
    """Algorithm 1 of the paper with FedAvg for theta: v_i goes on from where it was."""
    theta, own = given.start.copy(), {}
    trajectory = []
    for t in range(ROUNDS):
        cohort = list(COHORTS.sample(0, t, given.clients))
        models = {}
        for i in cohort:
            w, v = theta.copy(), own.get(i, given.start)
            for _ in range(STEPS):
                w = w - LR * given.gradient(i, w)
                v = v - LR * (given.gradient(i, v) + WEIGHT * (v - theta))
            models[i], own[i] = w, v
        theta = sum(given.a[i] * models[i] for i in cohort) / given.a[cohort].sum()
        trajectory.append(theta)
    return np.array(trajectory), own


def test_ditto_is_the_papers():
    given = federation(41, weights=WEIGHTS)
    options: dict[str, Any] = {"sampler": COHORTS, "stop": fa.Steps(STEPS), "rounds": ROUNDS}
    options |= {"solver": fa.SGD(LR, None)}
    found = run_quadratics(fa.FedAvg(), given, personal=DITTO, **options)
    trajectory, own = ditto(given)
    assert_same(found.trajectory, trajectory)
    for client, v in own.items():
        np.testing.assert_allclose(found.personal(client), v, rtol=0, atol=1e-12)
    assert found.history[-1]["work"]["passes"] == pytest.approx(2 * STEPS)
    plain = run_quadratics(fa.FedAvg(), given, **options)
    assert torch.equal(found.params, plain.params)


@pytest.mark.parametrize("method", [fa.FedADMM(RHO), fa.AlignedADMM(RHO), fa.FedDR(0.6)], ids=str)
def test_ditto_rests_at_the_proximal_points_of_the_optimum(method):
    given = federation(42, weights=WEIGHTS)
    options: dict[str, Any] = {"sampler": fa.UniformSampling(3), "rounds": 400}
    result = run_quadratics(method, given, personal=DITTO, **options)
    np.testing.assert_allclose(result.params, given.optimum, rtol=0, atol=1e-10)
    for client in range(given.clients):
        expected = given.prox(client, given.optimum, 1 / WEIGHT)
        np.testing.assert_allclose(result.personal(client), expected, rtol=0, atol=1e-9)


def lines(seed: int) -> tuple[fa.Problem, list[tuple[Array, Array]]]:
    """Regressions on two columns, with an intercept that is another at each client."""
    draws = np.random.default_rng(seed)
    flat = FlatModule(nn.Sequential(nn.Linear(2, 1)).double())
    initial = torch.from_numpy(draws.normal(size=3))
    rows = []
    for client in range(4):
        x = draws.normal(size=(9, 2))
        rows.append((x, x @ [1.0, -2.0] + 3 * client + 0.1 * draws.normal(size=9)))
    clients = [
        fa.ModelObjective(flat, losses.half_squared_error, torch.from_numpy(x), torch.from_numpy(y))
        for x, y in rows
    ]
    return fa.Problem(clients, initial=initial, weights=[0.4, 0.3, 0.2, 0.1]), rows


def test_fedavg_with_own_intercepts_in_numpy():
    problem, rows = lines(0)
    start = problem.initial.numpy()
    theta, own, a = start[:2].copy(), [start[2]] * 4, np.array([0.4, 0.3, 0.2, 0.1])
    for t in range(ROUNDS):
        cohort = list(COHORTS.sample(0, t, 4))
        models = {}
        for i in cohort:
            (x, y), w, b = rows[i], theta.copy(), own[i]
            for _ in range(STEPS):
                error = x @ w + b - y
                w, b = w - LR * x.T @ error / 9, b - LR * error.mean()
            models[i], own[i] = w, b
        theta = sum(a[i] * models[i] for i in cohort) / a[cohort].sum()
    options: dict[str, Any] = {"solver": fa.SGD(LR, None), "stop": fa.Steps(STEPS), "seed": 0}
    options |= {"sampler": COHORTS, "personal": fa.PersonalLayers(["0.bias"])}
    result = fa.simulate(fa.FedAvg(), problem, ROUNDS, **options)
    np.testing.assert_allclose(result.params, [*theta, start[2]], rtol=0, atol=1e-12)
    for client in result.clients:
        model = [*theta, own[client]]
        np.testing.assert_allclose(result.personal(client), model, rtol=0, atol=1e-12)


METHODS = [fa.FedADMM(RHO), fa.FedDR(0.6), fa.AlignedADMM(RHO), fa.Scaffold(), fa.FedDyn(0.6)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_own_layers_rest_at_the_joint_optimum(method):
    """Least squares with one slope for all and an intercept for each client."""
    problem, rows = lines(1)
    a = [0.4, 0.3, 0.2, 0.1]
    centred = [(x - x.mean(0), y - y.mean(), s) for (x, y), s in zip(rows, a, strict=True)]
    slope = np.linalg.solve(
        sum(s * x.T @ x for x, _, s in centred), sum(s * x.T @ y for x, y, s in centred)
    )
    options: dict[str, Any] = {"solver": fa.SGD(0.1, None), "stop": fa.Steps(10), "seed": 2}
    options |= {"sampler": fa.UniformSampling(3), "personal": fa.PersonalLayers(["*.bias"])}
    result = fa.simulate(method, problem, 500, **options)
    for client, (x, y) in enumerate(rows):
        expected = [*slope, (y - x @ slope).mean()]
        np.testing.assert_allclose(result.personal(client), expected, rtol=0, atol=1e-8)


TRAINING = {name: one for name, one in ALGORITHMS.items() if one.requirements.local.local_solve}


@pytest.mark.parametrize("name", TRAINING)
def test_own_layers_do_not_reach_the_server(name):
    """With other labels the server holds the same numbers for them, bit for bit."""
    found = []
    for shift in (0, 1):
        problem = PROBLEMS["perceptron"]()
        begin = next(s.begin for s in problem.clients[0].flat.slots if s.name == "3.weight")
        for client in problem.clients:
            client.targets.copy_((client.targets + shift) % 3)
        layers = fa.PersonalLayers(["3.*"])
        found.append(run("sequential", TRAINING[name], problem, rounds=5, personal=layers))
        start = problem.initial[begin:]
        torch.testing.assert_close(found[-1].params[begin:], start, rtol=0, atol=1e-12)
    one, other = found
    assert not torch.equal(one.params[:begin], other.params[:begin])
    for ours, theirs in zip(trees.tensors(one.server), trees.tensors(other.server), strict=True):
        if ours.shape == one.params.shape:
            assert torch.equal(ours[begin:], theirs[begin:])
    for client in one.clients:
        assert bool((one.personal(client) != other.personal(client))[begin:].any())


@pytest.mark.parametrize("personal", PERSONAL)
@pytest.mark.parametrize("name", ["fedavg", "scaffold-2", "fedadmm", "aligned-admm", "feddr"])
@pytest.mark.parametrize("engine", ["vectorised", "workers"])
def test_every_engine(engine, name, personal):
    solver = fa.Adam(0.02, 4, moments="kept") if name == "fedadmm" else fa.SGD(0.1, 5, momentum=0.3)
    given = {"personal": PERSONAL[personal], "solver": solver}
    expected = run("sequential", ALGORITHMS[name], PROBLEMS["tanh"](), **given)
    found = run(engine, ALGORITHMS[name], PROBLEMS["tanh"](), **given)
    assert_same_run(found, expected)
    for client in expected.clients:
        torch.testing.assert_close(
            found.personal(client), expected.personal(client), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("personal", PERSONAL)
def test_resumed(personal, kind, tmp_path):
    options = {"personal": PERSONAL[personal], "algorithm": fa.AlignedADMM(RHO)}
    options |= {"problem": PROBLEMS["tanh"](), "solver": fa.Adam(0.02, 4, moments="kept")}
    result = resumable.interrupted(tmp_path, 5, kind=kind, **options)()
    expected = resumable.run(8, **options)
    resumable.assert_continued(result, expected, 5)
    for client in expected.clients:
        assert torch.equal(result.personal(client), expected.personal(client))


def test_the_gain_of_personalised_models_is_measured():
    problem, rows = lines(3)
    options: dict[str, Any] = {"solver": fa.SGD(0.1, None), "stop": fa.Steps(10)}
    options |= {"evaluate": fa.Evaluation(target="both"), "personal": fa.PersonalLayers(["*.bias"])}
    result = fa.simulate(fa.FedAvg(), problem, 60, **options)
    value = sum(
        s * float(np.mean((x @ model[:2] + model[2] - y) ** 2)) / 2
        for client, ((x, y), s) in enumerate(zip(rows, [0.4, 0.3, 0.2, 0.1], strict=True))
        for model in [result.personal(client).numpy()]
    )
    assert result.history[-1]["metrics"]["loss_own"] == pytest.approx(value, abs=1e-12)
    assert result.history[-1]["metrics"]["loss_gain"] > 1


def test_what_does_not_fit_is_rejected():
    given = federation(43)
    with pytest.raises(fa.errors.CompatibilityError, match=naming("algorithm FedPD Ditto")):
        run_quadratics(fa.FedPD(0.7, 0.3), given, personal=DITTO)
    with pytest.raises(fa.errors.CompatibilityError, match=naming("algorithm FedSGD Ditto")):
        run_quadratics(fa.FedSGD(0.1), given, personal=DITTO)
    with pytest.raises(fa.errors.ParameterError, match=naming("PersonalLayers stay 'bias'")):
        fa.simulate(
            fa.FedAvg(), lines(4)[0], 1, solver=fa.SGD(), personal=fa.PersonalLayers(["bias"])
        )
    with pytest.raises(fa.errors.ParameterError, match=naming("PersonalLayers stay '0'")):
        run_quadratics(fa.FedAvg(), given, solver=fa.SGD(), personal=fa.PersonalLayers(["0"]))
    with pytest.raises(fa.errors.CompatibilityError, match=naming("regularizer L1 PersonalLayers")):
        fa.simulate(
            fa.FedADMM(1.0),
            lines(4)[0],
            1,
            solver=fa.SGD(),
            personal=fa.PersonalLayers(["*.bias"]),
            regularizer=fa.L1(0.1),
        )
