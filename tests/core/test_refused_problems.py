"""Problems and objectives that make no sense, word for word."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.problem import LazyClients
from support.models import perceptron, rows, small_federation
from support.refusals import (
    EYE,
    START,
    Cases,
    Untouchable,
    refused,
)

PARAMETERS: Cases = {
    "problem weights": (
        lambda: fa.Problem([Untouchable()] * 3, weights=[1.0, 2.0]),
        "Problem: weights has shape (2,), but must hold one number for each of the 3 clients",
    ),
    "problem weight zero": (
        lambda: fa.Problem([Untouchable()] * 2, weights=[1.0, 0.0]),
        "Problem: weights must be finite and greater than zero",
    ),
    "problem buffers": (
        lambda: fa.Problem([Untouchable()], buffers="forget"),
        "Problem: buffers is 'forget', but must be one of 'keep-local', 'average'",
    ),
    "ridge": (
        lambda: fa.LeastSquares(EYE, START, -1.0),
        "LeastSquares: ridge is -1.0, but must be >= 0",
    ),
    "nothing to train": (
        lambda: FlatModule(nn.Tanh()),
        "module is Tanh with no trainable parameter, but must have one",
    ),
}

DATA: Cases = {
    "a client that is none": (
        lambda: fa.Problem([Untouchable(), object()]),
        "Problem: client 1 is a object, but must be a fedadmm.Objective; let its class inherit "
        "from it",
    ),
    "no clients": (
        lambda: fa.Problem([]),
        "Problem: clients is empty, but at least one is needed",
    ),
    "clients of different lengths": (
        lambda: fa.Problem([fa.Quadratic(EYE, START), fa.Quadratic(EYE[:2, :2], START[:2])]),
        "Problem: client 1 has 2 parameters, but must have as many as client 0, 3",
    ),
    "tests for others": (
        lambda: fa.Problem([Untouchable()] * 3, client_tests=[lambda x: {}]),
        "Problem: 1 client_tests for 3 clients, but there must be one a client",
    ),
    "quadratic shapes": (
        lambda: fa.Quadratic(EYE, START[:2]),
        "Quadratic: A has shape (3, 3) and b (2,), but A must be (D, D) and b (D,)",
    ),
    "quadratic symmetry": (
        lambda: fa.Quadratic(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.zeros(2)),
        "Quadratic: A is not symmetric, but must be",
    ),
    "rows": (
        lambda: fa.LeastSquares(EYE, START[:2]),
        "LeastSquares: features have shape (3, 3) and targets (2,), but must be (m, D) and (m,)",
    ),
    "no rows": (
        lambda: fa.LeastSquares(EYE[:0], START[:0]),
        "LeastSquares: no rows, but at least one is needed",
    ),
    "classes": (
        lambda: fa.LogisticRegression(EYE, START + 2),
        "LogisticRegression: targets must be 0 or 1",
    ),
    "model rows": (
        lambda: fa.ModelObjective(
            perceptron(), nn.functional.cross_entropy, rows(0, 5)[0], rows(0, 4)[1]
        ),
        "ModelObjective: 5 inputs and 4 targets, but there must be one target an input",
    ),
    "model without rows": (
        lambda: fa.ModelObjective(perceptron(), nn.functional.cross_entropy, *rows(0, 0)),
        "ModelObjective: no rows, but at least one is needed",
    ),
}


@pytest.mark.parametrize("case", PARAMETERS)
def test_parameters(case: str) -> None:
    refused(fa.ParameterError, PARAMETERS[case])


@pytest.mark.parametrize("case", DATA)
def test_data(case: str) -> None:
    refused(fa.DataError, DATA[case])


def _second(client: object) -> fa.Problem:
    """Three perceptrons that are made when they are asked for; the one in the middle is another."""
    given = small_federation(clients=3)
    clients = LazyClients(3, lambda index: client if index == 1 else given.clients[index])
    return fa.Problem(clients, initial=given.initial)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(
    ("client", "why"),
    [
        (object(), "Problem: client 1 is a object, but must be a fedadmm.Objective"),
        (fa.Quadratic(EYE, START), "Problem: client 1 has 3 parameters, but must have as many as"),
        (
            fa.ModelObjective(
                FlatModule(perceptron()),
                nn.functional.cross_entropy,
                torch.ones(4, 3),
                torch.ones(4).long(),
            ),
            "ModelObjective",
        ),
    ],
    ids=["no objective", "another length", "another width"],
)
def test_a_client_that_is_made_on_demand_is_checked_when_it_takes_part(client, why, engine):
    with pytest.raises(fa.DataError, match=why):
        fa.simulate(fa.FedAvg(), _second(client), 2, solver=fa.SGD(lr=0.1), engine=engine)
