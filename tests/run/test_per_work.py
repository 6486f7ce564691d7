"""`PerWork`: a penalty that is fitted to the clients' local work before the first round."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import fedadmm as fa
from fedadmm.core.contracts import LocalProblem
from fedadmm.core.errors import CompatibilityError, ParameterError
from fedadmm.core.problem import LazyClients
from fedadmm.flower.configured import Deployment, federation
from fedadmm.flower.federation import Federation
from fedadmm.run.simulate import local_length
from fedadmm.study.config import resolve
from fedadmm.study.single_run import run
from support.rejections import naming

DIMENSION = 3


def logistic(rows: int, client: int) -> fa.LogisticRegression:
    chance = torch.Generator().manual_seed(client)
    inputs = torch.randn(rows, DIMENSION, generator=chance, dtype=torch.float64) + client
    return fa.LogisticRegression(inputs, (inputs.sum(1) > client).double(), ridge=0.1)


def problem(*sizes: int) -> fa.Problem:
    clients = [logistic(size, client) for client, size in enumerate(sizes)]
    return fa.Problem(clients, initial=torch.zeros(DIMENSION, dtype=torch.float64))


def by_hand(lr: float, momentum: float, steps: int) -> float:
    """How far that many steps of heavy-ball momentum go when every gradient is one."""
    velocity = way = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + lr
        way += velocity
    return way


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_length_of_local_work_is_the_mean_over_the_clients(momentum):
    """Clients of 7, 10 and 31 rows in batches of 10 make 2 x (1, 1, 4) steps."""
    solver = fa.SGD(lr=0.2, batch_size=10, momentum=momentum)
    wanted = sum(by_hand(0.2, momentum, steps) for steps in (2, 2, 8)) / 3
    assert local_length(problem(7, 10, 31), solver, fa.Epochs(2)) == pytest.approx(
        wanted, rel=1e-12
    )


def test_rates_epochs_and_rules_of_each_client_count():
    solver = fa.SGD(lr=[0.1, 0.3], batch_size=5)
    assert local_length(problem(5, 10), solver, fa.Epochs([4, 1])) == pytest.approx(
        (0.1 * 4 + 0.3 * 2) / 2
    )
    descent = fa.GradientDescent(lr=fa.schedules.Geometric(0.4, 0.5))
    assert local_length(problem(5, 10), descent, fa.Steps(6)) == pytest.approx(0.4 * 6)
    drawn = fa.UniformEpochs(5)
    assert local_length(problem(10, 10), fa.SGD(0.1, 10), drawn) == pytest.approx(0.5)


def test_of_very_many_clients_some_are_asked():
    """Half of the million has ten rows, the other half thirty; most are never made."""
    made: list[int] = []

    def client(number: int) -> fa.LogisticRegression:
        made.append(number)
        return logistic(10 if number < 500_000 else 30, number)

    many = fa.Problem(LazyClients(1_000_000, client))
    made.clear()
    assert local_length(many, fa.SGD(0.1, 10), fa.Epochs(1)) == pytest.approx(0.1 * 2)
    assert len(set(made)) <= 200


@pytest.mark.parametrize("steps", [10, 300])
def test_the_pull_is_what_a_round_brings_back(steps):
    """Without data only the penalty moves w: (1 - lr rho)^steps of the way to theta is left."""
    lr, pull = 0.01, 0.25
    rho = fa.PerWork(pull).penalty(lr * steps)
    flat = fa.Quadratic(torch.zeros(2, 2).double(), torch.zeros(2).double())
    start, centre = torch.tensor([4.0, -2.0]).double(), torch.zeros(2).double()
    local = LocalProblem(
        start, torch.zeros(2).double(), torch.tensor([rho], dtype=torch.float64), centre
    )
    result, _ = fa.GradientDescent(lr).solve(flat, local, fa.Steps(steps), 0)
    left = float(result.params[0] / start[0])
    assert left == pytest.approx((1 - pull / steps) ** steps, rel=1e-12)
    assert left == pytest.approx(math.exp(-pull), rel=2e-2)


SETTINGS: dict[str, Any] = {
    "solver": fa.SGD(lr=0.1, batch_size=4),
    "stop": fa.Epochs(3),
    "sampler": fa.UniformSampling(2),
    "seed": 3,
}


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("kind", [fa.FedADMM, fa.AlignedADMM])
def test_a_run_is_that_with_the_number(engine, kind):
    sizes = (8, 12, 20, 4)  # 2, 3, 5 and 1 steps an epoch
    number = 0.3 / (0.1 * 3 * (2 + 3 + 5 + 1) / 4)
    fitted = fa.simulate(kind(fa.PerWork(0.3)), problem(*sizes), 6, engine=engine, **SETTINGS)
    assert isinstance(fitted.algorithm, kind)
    assert fitted.algorithm.rho == pytest.approx(number, rel=1e-12)
    plain = fa.simulate(
        kind(fitted.algorithm.rho),
        problem(*sizes),
        6,
        engine=engine,
        **SETTINGS,
    )
    assert torch.equal(fitted.params, plain.params)
    assert plain.algorithm == fitted.algorithm


def config(**changes: Any) -> Any:
    tables = {
        "rounds": 4,
        "problem": {"name": "digits", "clients": 6, "partition": "iid", "model": "logistic"},
        "algorithm": {
            "name": "aligned-admm",
            "rho": {"name": "per-work", "pull": 0.5},
        },
        "local": {
            "solver": {"name": "sgd", "lr": 0.1, "batch_size": 20},
            "stop": {"name": "epochs", "epochs": 2},
        },
        "sampler": {"name": "uniform", "size": 3},
        "evaluate": {"objective": False},
        "checkpoint": {"every": 1},
    }
    return resolve(tables | changes)


def test_the_summary_tells_the_number_and_a_resumed_run_has_it_again(tmp_path):
    whole = run(config(), tmp_path / "whole")
    steps = 2 * math.ceil(1437 / 6 / 20)
    assert whole["fitted"] == {"rho": pytest.approx(0.5 / (0.1 * steps))}
    run(config(rounds=2), tmp_path / "parts")
    resumed = run(config(), tmp_path / "parts", resume=True)
    assert resumed["params_sha256"] == whole["params_sha256"]
    assert resumed["fitted"] == whole["fitted"]
    plain = config(algorithm={"name": "aligned-admm", "rho": whole["fitted"]["rho"]})
    number = run(plain, tmp_path / "number")
    assert number["params_sha256"] == whole["params_sha256"]
    assert number["fitted"] == {}


def test_a_deployment_whose_server_can_load_the_data_fits_it_too():
    settings = federation(config(), Deployment(6))
    steps = 2 * math.ceil(1437 / 6 / 20)
    assert settings.experiment.algorithm.rho == pytest.approx(0.5 / (0.1 * steps))
    hospitals = config(problem={"name": "heart-disease"}, sampler={"name": "full"})
    unseen = federation(hospitals, Deployment(4)).experiment.algorithm  # the sites say their work
    assert isinstance(unseen.rho, fa.PerWork)


def test_what_cannot_be_fitted_is_rejected():
    method = fa.FedADMM(fa.PerWork())
    with pytest.raises(CompatibilityError, match=naming("PerWork solver LBFGS SGD")):
        fa.simulate(method, problem(5, 5), 1, solver=fa.LBFGS())
    with pytest.raises(CompatibilityError, match=naming("solver None SGD")):
        fa.simulate(method, problem(5, 5), 1)
    with pytest.raises(ParameterError, match=naming("lr 3 2")):
        fa.simulate(method, problem(5, 5), 1, solver=fa.SGD([0.1, 0.1, 0.1]))
    with pytest.raises(ParameterError, match=naming("PerWork pull=0.25")):
        _ = method.prox_step
    with pytest.raises(CompatibilityError, match=naming("solver LBFGS SGD")):
        Federation(method, 2, 3, initial=torch.zeros(DIMENSION), solver=fa.LBFGS())


def test_the_error_for_adam_suggests_a_penalty_for_its_steps():
    """0.25 * (root mean square of a gradient's entries) / (lr * steps); both clients make 2 steps.

    The gradient of a logistic regression at zero is X' (1/2 - y) / n.
    """
    given, squares = problem(20, 20), []
    for client in given.clients:
        x, y = client.features.numpy(), client.targets.numpy()
        squares.append(((x.T @ (0.5 - y) / 20) ** 2).mean())
    expected = 0.25 * math.sqrt(sum(squares) / 2) / (0.01 * 2)
    solver, method = fa.Adam(lr=0.01, batch_size=20), fa.FedADMM(fa.PerWork())
    with pytest.raises(CompatibilityError, match=naming(f"solver Adam rho={expected:.2g}")):
        fa.simulate(method, given, 1, solver=solver, stop=fa.Epochs(2))
