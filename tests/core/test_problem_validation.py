"""Invalid problems and objectives are rejected where they are made."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.problem import LazyClients
from support.models import perceptron, rows, small_federation
from support.rejections import EYE, START, Cases, Untouchable, assert_rejected, naming

PARAMETERS: Cases = {
    "problem weights": (
        lambda: fa.Problem([Untouchable()] * 3, weights=[1.0, 2.0]),
        "Problem weights 3",
    ),
    "problem weight zero": (
        lambda: fa.Problem([Untouchable()] * 2, weights=[1.0, 0.0]),
        "Problem weights",
    ),
    "problem buffers": (
        lambda: fa.Problem([Untouchable()], buffers="forget"),
        "Problem buffers 'forget' 'keep-local' 'average'",
    ),
    "ridge": (
        lambda: fa.LeastSquares(EYE, START, -1.0),
        "LeastSquares ridge -1.0 0",
    ),
    "nothing to train": (
        lambda: FlatModule(nn.Tanh()),
        "module Tanh",
    ),
}

DATA: Cases = {
    "a client that is none": (
        lambda: fa.Problem([Untouchable(), object()]),
        "Problem client 1 object fedadmm.Objective",
    ),
    "no clients": (
        lambda: fa.Problem([]),
        "Problem clients",
    ),
    "clients of different lengths": (
        lambda: fa.Problem([fa.Quadratic(EYE, START), fa.Quadratic(EYE[:2, :2], START[:2])]),
        "Problem client 1 2 3",
    ),
    "tests for others": (
        lambda: fa.Problem([Untouchable()] * 3, client_tests=[lambda x: {}]),
        "Problem client_tests 1 3",
    ),
    "quadratic shapes": (
        lambda: fa.Quadratic(EYE, START[:2]),
        "Quadratic A b",
    ),
    "quadratic symmetry": (
        lambda: fa.Quadratic(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.zeros(2)),
        "Quadratic A symmetric",
    ),
    "rows": (
        lambda: fa.LeastSquares(EYE, START[:2]),
        "LeastSquares features targets",
    ),
    "no rows": (
        lambda: fa.LeastSquares(EYE[:0], START[:0]),
        "LeastSquares",
    ),
    "classes": (
        lambda: fa.LogisticRegression(EYE, START + 2),
        "LogisticRegression targets 0 1",
    ),
    "model rows": (
        lambda: fa.ModelObjective(
            perceptron(), nn.functional.cross_entropy, rows(0, 5)[0], rows(0, 4)[1]
        ),
        "ModelObjective inputs targets 5 4",
    ),
    "model without rows": (
        lambda: fa.ModelObjective(perceptron(), nn.functional.cross_entropy, *rows(0, 0)),
        "ModelObjective",
    ),
}


@pytest.mark.parametrize("case", PARAMETERS)
def test_an_invalid_option_is_rejected(case: str) -> None:
    assert_rejected(fa.errors.ParameterError, PARAMETERS[case])


@pytest.mark.parametrize("case", DATA)
def test_invalid_data_are_rejected(case: str) -> None:
    assert_rejected(fa.errors.DataError, DATA[case])


def _second(client: object) -> fa.Problem:
    """Return three clients that are made on demand, the second of which is `client`."""
    given = small_federation(clients=3)
    clients = LazyClients(3, lambda index: client if index == 1 else given.clients[index])
    return fa.Problem(clients, initial=given.initial)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(
    ("client", "names"),
    [
        (object(), "Problem client 1 object"),
        (fa.Quadratic(EYE, START), "Problem client 1 3"),
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
def test_a_client_made_on_demand_is_validated_when_it_participates(client, names, engine):
    with pytest.raises(fa.errors.DataError, match=naming(names)):
        fa.simulate(fa.FedAvg(), _second(client), 2, solver=fa.SGD(lr=0.1), engine=engine)
