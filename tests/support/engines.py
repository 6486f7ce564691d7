"""Federations with unequal clients, and the comparison of two engines on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.core.objectives import losses
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.data import models
from fedadmm.run.record import flat
from support.records import untimed

SIZES = (7, 23, 1, 12, 10, 31)
"""With batches of five: full ones, rests, and clients smaller than a batch."""


def _draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _inputs(client: int, rows: int, width: int) -> Tensor:
    return torch.randn(rows, width, generator=_draws(client), dtype=torch.float64)


def _labels(client: int, rows: int, classes: int) -> Tensor:
    return torch.randint(0, classes, (rows,), generator=_draws(100 + client))


def tanh_net() -> nn.Module:
    """A model without hand-written passes."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def model_federation(
    make: Any, loss: Any = losses.cross_entropy, sizes: tuple[int, ...] = SIZES, **options: Any
) -> fa.Problem:
    """One client a size around one module with four inputs and three classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        flat = FlatModule(make().double())
    initial = flat.vector.clone()
    clients = [
        fa.ModelObjective(flat, loss, _inputs(i, n, 4), _labels(i, n, 3))
        for i, n in enumerate(sizes)
    ]
    return fa.Problem(clients, initial=initial, **options)


def closed_form_federation(kind: str) -> fa.Problem:
    """Quadratics, least squares or logistic regressions with four unknowns."""
    clients: list[Any] = []
    for client, size in enumerate(SIZES):
        x = _inputs(client, size, 4)
        if kind == "quadratic":
            clients.append(fa.Quadratic(x.T @ x / size + torch.eye(4).double(), x.sum(0)))
        elif kind == "least squares":
            clients.append(fa.LeastSquares(x, x.sum(1).sin(), ridge=0.1 * (client % 3)))
        else:
            clients.append(fa.LogisticRegression(x, _labels(client, size, 2), ridge=0.05))
    return fa.Problem(clients, initial=torch.ones(4, dtype=torch.float64))


PROBLEMS = {
    "perceptron": lambda: model_federation(lambda: models.mlp(4, 6, 3)),
    "tanh": lambda: model_federation(tanh_net),
    "quadratic": lambda: closed_form_federation("quadratic"),
    "least squares": lambda: closed_form_federation("least squares"),
    "logistic": lambda: closed_form_federation("logistic"),
}

ALGORITHMS = {
    "fedsgd": fa.FedSGD(lr=0.1),
    "fedavg": fa.FedAvg(),
    "fedprox": fa.FedProx(rho=0.3),
    "fedavgm": fa.FedAvgM(nesterov=True),
    "fedadagrad": fa.FedAdagrad(),
    "fedadam": fa.FedAdam(),
    "fedyogi": fa.FedYogi(),
    "fednova": fa.FedNova(),
    "fedexp": fa.FedExP(),
    "fedcm": fa.FedCM(alpha=0.5),
    "fedmid": fa.FedMid(),
    "feddualavg": fa.FedDualAvg(),
    "scaffnew": fa.Scaffnew(p=0.3),
    "adabest": fa.AdaBest(mu=0.2),
    "scaffold-1": fa.Scaffold(option=1),
    "scaffold-2": fa.Scaffold(option=2),
    "feddyn": fa.FedDyn(eta=0.7),
    "pfedme": fa.PFedMe(rho=0.5, step=0.7),
    "fedpd": fa.FedPD(eta=0.7, skip_probability=0.4),
    "fedadmm": fa.FedADMM(rho=0.5),
    "fedadmm-seen": fa.FedADMM(rho=0.5, members="seen"),
    "aligned-admm": fa.AlignedADMM(rho=0.5),
    "consensus-admm": fa.ConsensusADMM(rho=0.5),
    "fedadmm-in": fa.FedADMMIn(beta=0.5),
    "fedadmm-insa": fa.FedADMMInSa(beta=0.5, mu=1.5),
    "feddr": fa.FedDR(eta=0.6, alpha=1.2, init="prox"),
    "feddr-ii": fa.FedDRII(eta=0.6),
    "fedsplit": fa.FedSplit(eta=0.6),
}


def run(engine: Any, algorithm: Any, problem: fa.Problem, rounds: int = 4, **options: Any) -> Any:
    """A short run with partial participation where the method allows it."""
    settings: dict[str, Any] = {
        "sampler": None if algorithm.requirements.full_participation else fa.UniformSampling(4),
        "solver": fa.SGD(lr=0.1, batch_size=5),
        "stop": fa.UniformEpochs(3),
        "keep_trajectory": True,
        "evaluate": False,
        "seed": 5,
    }
    return fa.simulate(algorithm, problem, rounds, engine=engine, **(settings | options))


def assert_same_run(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    """Trajectories, client states and every number in the history are equal."""
    torch.testing.assert_close(found.trajectory, expected.trajectory, rtol=0, atol=tolerance)
    assert sorted(found.clients) == sorted(expected.clients)
    for client, state in expected.clients.items():
        pairs = zip(trees.tensors(found.clients[client]), trees.tensors(state), strict=True)
        for left, right in pairs:
            torch.testing.assert_close(left, right, rtol=0, atol=tolerance)
    for one, other in zip(untimed(found.history), untimed(expected.history), strict=True):
        left, right = flat(one), flat(other)
        for name in left:
            torch.testing.assert_close(
                torch.tensor(left[name], dtype=torch.float64),
                torch.tensor(right[name], dtype=torch.float64),
                rtol=1e-9,
                atol=tolerance,
                msg=lambda text, name=name: f"{name}: {text}",
            )
